"""The readers under the document's name. Inside this package ``import pandas`` is still pandas itself."""

from firesteel.data.tables import read_csv, read_json, read_parquet

__all__ = ["read_csv", "read_json", "read_parquet"]
