"""Layers between tables: lists of arrays."""

from __future__ import annotations

from firesteel.frontends.bigdl.layer import Layer, Part
from firesteel.frontends.bigdl.settings import Axis, Count, Flag, Number, Positive, Whole

__all__ = [
    "MM",
    "MV",
    "BifurcateSplitTable",
    "CAddTable",
    "CAveTable",
    "CDivTable",
    "CMaxTable",
    "CMinTable",
    "CMulTable",
    "CSubTable",
    "CosineDistance",
    "CrossProduct",
    "DotProduct",
    "FlattenTable",
    "GaussianSampler",
    "Gemm",
    "JoinTable",
    "MixtureTable",
    "NarrowTable",
    "Pack",
    "PairwiseDistance",
    "SelectTable",
    "SplitTable",
    "TableOperation",
]


class _OfTable(Layer):
    _takes_table = True


class CAddTable(_OfTable):
    """The sum of the table's arrays; shapes broadcast as in torch."""

    inplace: Flag = False


class CSubTable(_OfTable):
    """The first less the second."""


class CMulTable(_OfTable):
    """The product of the table's arrays."""


class CDivTable(_OfTable):
    """The first divided by the second."""


class CMaxTable(_OfTable):
    """Element by element the largest."""


class CMinTable(_OfTable):
    """Element by element the smallest."""


class CAveTable(_OfTable):
    """The mean of the table's arrays."""

    inplace: Flag = False


class TableOperation(_OfTable):
    """A layer on a table of two whose smaller array is expanded first."""

    operation_layer: Part


class JoinTable(_OfTable):
    """The table's arrays joined along an axis; ``n_input_dims`` is the number of a row's axes."""

    dimension: Axis
    n_input_dims: Whole


class Pack(_OfTable):
    """The table's arrays side by side along a new axis."""

    dimension: Axis


class SplitTable(Layer):
    """The slices along an axis, as a table; ``n_input_dims`` is the number of a row's axes."""

    dimension: Axis
    n_input_dims: Whole = -1


class BifurcateSplitTable(Layer):
    """The two halves along an axis, the second the longer one, as a table."""

    dimension: Axis


class SelectTable(_OfTable):
    """One item of a table, from 1, or negative from the end."""

    index: Axis


class NarrowTable(_OfTable):
    """``length`` items of a table from ``offset`` on; -1: up to the last, -2: up to the last but one, and so on."""

    offset: Axis
    length: Axis = 1


class FlattenTable(_OfTable):
    """A table of tables as one table."""


class MixtureTable(_OfTable):
    """``{gater, experts}``: the experts summed up, weighted by the gater's columns.

    The experts are a table, or an array with an axis of them: ``dim``, default 2 of a batch.
    """

    dim: Axis | None = None


class DotProduct(_OfTable):
    """Row by row the product of two."""


class CosineDistance(_OfTable):
    """Row by row the cosine similarity of two."""


class PairwiseDistance(_OfTable):
    """Row by row the norm of the difference of two."""

    norm: Positive = 2


class CrossProduct(_OfTable):
    """Row by row the products of all pairs of the table's arrays: 1·2, 1·3, 2·3 and so on.

    ``numTensor`` and ``embeddingSize``, where given, are checked against the input.
    """

    numTensor: Count = 0
    embeddingSize: Count = 0


class MM(_OfTable):
    """The matrix product of two, also of batches of matrices."""

    trans_a: Flag = False
    trans_b: Flag = False


class MV(_OfTable):
    """A matrix times a vector, also batches of them."""

    trans: Flag = False


class Gemm(_OfTable):
    """``alpha·A·B + beta·C``."""

    alpha: Number = 1.0
    beta: Number = 1.0
    trans_a: Flag = False
    trans_b: Flag = False


class GaussianSampler(_OfTable):
    """A sample from ``{mean, log variance}``."""
