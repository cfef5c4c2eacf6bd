"""``firesteel.tfcluster.gpu_info``: see ``firesteel.frontends.tfcluster.gpu_info``."""

from firesteel.frontends.tfcluster.gpu_info import AS_LIST, AS_STRING, get_gpus, is_gpu_available

__all__ = ["AS_LIST", "AS_STRING", "get_gpus", "is_gpu_available"]
