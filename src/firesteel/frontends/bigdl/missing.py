"""Names of BigDL's that are not offered, and what to use in their place."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["explain"]

_INSTEAD = {
    "Attention": "torch.nn.MultiheadAttention",
    "BinaryTreeLSTM": None,
    "ConvLSTMPeephole": None,
    "ConvLSTMPeephole3D": None,
    "DenseToSparse": None,
    "DetectionOutputFrcnn": None,
    "DetectionOutputSSD": None,
    "FPN": "torchvision.ops.FeaturePyramidNetwork",
    "FeedForwardNetwork": "torch.nn.TransformerEncoderLayer",
    "LookupTableSparse": "torch.nn.EmbeddingBag",
    "MeanAveragePrecisionObjectDetection": None,
    "Pooler": "torchvision.ops.MultiScaleRoIAlign",
    "PriorBox": None,
    "Proposal": None,
    "RoiAlign": "torchvision.ops.RoIAlign",
    "RoiPooling": "torchvision.ops.RoIPool",
    "SequenceBeamSearch": None,
    "SparseJoinTable": None,
    "SparseLinear": "torch.nn.EmbeddingBag",
    "SpatialContrastiveNormalization": None,
    "SpatialConvolutionMap": "torch.nn.Conv2d",
    "SpatialDivisiveNormalization": None,
    "SpatialSubtractiveNormalization": None,
    "Transformer": "torch.nn.Transformer",
}


def explain(module: str, name: str) -> NoReturn:
    """Say why a module has no such name.

    Raises:
        ImportError: one of BigDL's names that is not offered, with the torch module to use where there is one.
        AttributeError: any other.
    """
    if name not in _INSTEAD:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    instead = _INSTEAD[name]
    use = "" if instead is None else f" Use {instead}: any torch module can be added to a container as it is."
    # Not an AttributeError: Python would put words of its own in the place of these.
    raise ImportError(f"{name} is one of BigDL's that is not offered here.{use}")
