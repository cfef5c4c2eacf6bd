"""``firesteel.tfcluster.TFParallel``: see ``firesteel.frontends.tfcluster.parallel``."""

from firesteel.frontends.tfcluster.parallel import run

__all__ = ["run"]
