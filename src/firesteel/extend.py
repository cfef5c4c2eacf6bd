"""What a bench of one's own is written with: a framework that Firesteel does not know. See ``docs/extending.md``."""

from firesteel.core.flat import FlatReplica
from firesteel.core.ports import Framework, Replica, State, Trainable
from firesteel.core.program import Program
from firesteel.core.spec import Batch, batch_of, rows_of
from firesteel.testing.contracts import check_framework, check_sync

__all__ = [
    "Batch",
    "FlatReplica",
    "Framework",
    "Program",
    "Replica",
    "State",
    "Trainable",
    "batch_of",
    "check_framework",
    "check_sync",
    "rows_of",
]
