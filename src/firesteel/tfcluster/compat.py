"""``firesteel.tfcluster.compat``: see ``firesteel.frontends.tfcluster.compat``."""

from firesteel.frontends.tfcluster.compat import disable_auto_shard, export_saved_model, is_gpu_available

__all__ = ["disable_auto_shard", "export_saved_model", "is_gpu_available"]
