"""Tables in files, as XShards of pandas frames: CSV, JSON and Parquet."""

from firesteel.data.tables.readers import read_csv, read_json, read_parquet

__all__ = ["read_csv", "read_json", "read_parquet"]
