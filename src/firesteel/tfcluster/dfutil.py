"""``firesteel.tfcluster.dfutil``: see ``firesteel.frontends.tfcluster.dfutil``."""

from firesteel.frontends.tfcluster.dfutil import (
    fromTFExample,
    infer_schema,
    isLoadedDF,
    loadTFRecords,
    saveAsTFRecords,
    toTFExample,
)

__all__ = ["fromTFExample", "infer_schema", "isLoadedDF", "loadTFRecords", "saveAsTFRecords", "toTFExample"]
