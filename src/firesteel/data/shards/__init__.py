"""XShards: Python objects spread over Spark."""

from firesteel.data.shards.xshards import SharedValue, SparkXShards, XShards

__all__ = ["SharedValue", "SparkXShards", "XShards", "spark_df_to_pd_sparkxshards"]

spark_df_to_pd_sparkxshards = XShards.from_spark_df
"""The document's name for ``XShards.from_spark_df``."""
