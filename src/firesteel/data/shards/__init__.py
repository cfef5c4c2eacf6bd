"""XShards: Python objects spread over Spark."""

from firesteel.data.shards.xshards import SharedValue, SparkXShards, XShards

__all__ = ["SharedValue", "SparkXShards", "XShards"]
