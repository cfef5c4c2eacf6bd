"""Strings to ids and numbers to scale, fitted over all rows by Spark SQL: on XShards of pandas and on DataFrames."""

from firesteel.data.transformer.encoding import StringIndex, category_encode, encode_string, gen_string_idx
from firesteel.data.transformer.indexer import StringIndexer
from firesteel.data.transformer.scalers import MinMaxScaler, StandardScaler

__all__ = [
    "MinMaxScaler",
    "StandardScaler",
    "StringIndex",
    "StringIndexer",
    "category_encode",
    "encode_string",
    "gen_string_idx",
]
