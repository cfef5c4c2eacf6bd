"""BigDL's layers: each computes what the named torch module does with the same weights, forwards and backwards.

No Spark. A layer is compared with torch's own function of (input, weights); its weights survive a round trip and a
file.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from firesteel.bigdl.nn import layer as bigdl
from firesteel.bigdl.nn.initialization_method import (
    BilinearFiller,
    ConstInitMethod,
    MsraFiller,
    Ones,
    RandomNormal,
    RandomUniform,
    Xavier,
    Zeros,
)
from firesteel.bigdl.nn.layer import *  # noqa: F403 - as users do
from firesteel.bigdl.nn.layer import (
    GRU,
    LSTM,
    CAddTable,
    Concat,
    Dropout,
    HardSigmoid,
    Identity,
    InferReshape,
    Input,
    JoinTable,
    Layer,
    Linear,
    LookupTable,
    Model,
    Narrow,
    Power,
    Recurrent,
    Reshape,
    Select,
    Sequential,
    SoftMax,
    SpatialAveragePooling,
    SpatialBatchNormalization,
    SpatialConvolution,
    SpatialMaxPooling,
    SplitTable,
    Tanh,
    TemporalConvolution,
    Transpose,
)
from firesteel.bigdl.optim.optimizer import L1L2Regularizer, L2Regularizer
from firesteel.core.errors import PlanError, UnknownName, UnsupportedError

B = bigdl


def r(*shape: int) -> np.ndarray:
    """Numbers that depend on the shape alone."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> np.ndarray:
    return np.abs(r(*shape)) + np.float32(0.1)


def _cosine(x: Any, w: Any) -> Any:
    return F.normalize(x, dim=-1) @ F.normalize(w, dim=-1).T


def _maxout(x: Any, w: Any, b: Any) -> Any:
    return torch.stack([F.linear(x, *part) for part in zip(w.chunk(4), b.chunk(4), strict=True)]).amax(0)


def _highway(x: Any, gate: Any, gate_bias: Any, w: Any, b: Any) -> Any:
    t = torch.sigmoid(F.linear(x, gate, gate_bias))
    return t * torch.relu(F.linear(x, w, b)) + (1 - t) * x


def _separable(x: Any, depth: Any, point: Any, b: Any) -> Any:
    deep = [F.conv2d(x[:, [plane]], depth[:, [plane]].transpose(0, 1).transpose(0, 1)) for plane in range(2)]
    return F.conv2d(torch.cat(deep, 1), point, b)


def _local_1d(x: Any, w: Any, b: Any) -> Any:
    places = [x[:, 2 * p : 2 * p + 2].flatten(1) @ w[p].T + b[p] for p in range(len(w))]
    return torch.stack(places, 1)


def _local_2d(x: Any, w: Any, b: Any) -> Any:
    rows = []
    for h in range(4):
        columns = [x[:, :, h : h + 2, c : c + 3].flatten(1) @ w[4 * h + c].T + b[4 * h + c] for c in range(4)]
        rows.append(torch.stack(columns, -1))
    return torch.stack(rows, -2)


def _srelu(x: Any, tl: Any, al: Any, tr: Any, ar: Any) -> Any:
    tr = tl + tr.abs()
    return torch.where(x >= tr, tr + ar * (x - tr), torch.where(x <= tl, tl + al * (x - tl), x))


def _rnn(x: Any, w: Any, b: Any, u: Any, c: Any) -> Any:
    h, outputs = torch.zeros(len(x), len(u)), []
    for step in x.unbind(1):
        h = torch.tanh(F.linear(step, w, b) + F.linear(h, u, c))
        outputs.append(h)
    return torch.stack(outputs, 1)


def _lstm(x: Any, w: Any, b: Any, u: Any) -> Any:
    """torch's own LSTM, which has its blocks in the order input, forget, candidate, output."""
    order = [0, 2, 1, 3]
    w, b, u = (torch.cat([part.chunk(4)[place] for place in order]) for part in (w, b, u))
    made = nn.LSTM(w.shape[1], u.shape[1], batch_first=True)
    weights = {"weight_ih_l0": w, "weight_hh_l0": u, "bias_ih_l0": b, "bias_hh_l0": torch.zeros_like(b)}
    return torch.func.functional_call(made, weights, (x,))[0]


def _peephole(x: Any, w: Any, b: Any, u: Any, pi: Any, pf: Any, po: Any) -> Any:
    h = c = torch.zeros(len(x), u.shape[1])
    outputs = []
    for step in x.unbind(1):
        i, g, f, o = (F.linear(step, w, b) + F.linear(h, u)).chunk(4, -1)
        c_next = torch.sigmoid(f + pf * c) * c + torch.sigmoid(i + pi * c) * torch.tanh(g)
        h = torch.sigmoid(o + po * c_next) * torch.tanh(c_next)
        c = c_next
        outputs.append(h)
    return torch.stack(outputs, 1)


def _gru(x: Any, w: Any, b: Any, u: Any, v: Any) -> Any:
    h, outputs = torch.zeros(len(x), len(v)), []
    for step in x.unbind(1):
        gates = F.linear(step, w, b)
        reset, update = torch.sigmoid(gates[:, : 2 * len(v)] + F.linear(h, u)).chunk(2, -1)
        new = torch.tanh(gates[:, 2 * len(v) :] + F.linear(reset * h, v))
        h = (1 - update) * new + update * h
        outputs.append(h)
    return torch.stack(outputs, 1)


def _two_ways(walk: Callable[..., Any], x: Any, *w: Any) -> Any:
    half = len(w) // 2
    return walk(x, *w[:half]) + walk(x.flip(1), *w[half:]).flip(1)


def _decoder(x: Any, *w: Any) -> Any:
    h, outputs = torch.zeros_like(x), []
    for _ in range(3):
        h = x = torch.tanh(F.linear(x, *w[:2]) + F.linear(h, *w[2:]))
        outputs.append(x)
    return torch.stack(outputs, 1)


# A layer, its input, and what torch makes of the input and the layer's weights.
WITH_WEIGHTS: dict[str, tuple[Callable[[], Any], Any, Callable[..., Any]]] = {
    "Linear": (lambda: B.Linear(3, 4), r(5, 3), F.linear),
    "Linear, one row": (lambda: B.Linear(3, 4), r(3), F.linear),
    "Linear, no bias": (lambda: B.Linear(3, 4, False), r(5, 3), F.linear),
    "Bilinear": (lambda: B.Bilinear(2, 3, 4), [r(5, 2), r(5, 3)], lambda x, w, b: F.bilinear(*x, w, b)),
    "LookupTable": (lambda: B.LookupTable(4, 3), np.array([[1, 4], [2, 2]]), lambda x, w: F.embedding(x - 1, w)),
    "Add": (lambda: B.Add(3), r(5, 3), torch.add),
    "CAdd": (lambda: B.CAdd([2, 1]), r(5, 2, 3), torch.add),
    "Mul": (lambda: B.Mul(), r(5, 3), torch.mul),
    "CMul": (lambda: B.CMul([1, 2, 1]), r(5, 2, 3), torch.mul),
    "Scale": (lambda: B.Scale([2, 1]), r(5, 2, 3), lambda x, w, b: x * w + b),
    "Cosine": (lambda: B.Cosine(3, 4), r(5, 3), _cosine),
    "Euclidean": (lambda: B.Euclidean(3, 4), r(5, 3), lambda x, w: torch.cdist(x, w.T)),
    "Maxout": (lambda: B.Maxout(3, 2, 4), r(5, 3), _maxout),
    "Highway": (lambda: B.Highway(3, activation="relu"), r(5, 3), _highway),
    "SpatialConvolution": (
        lambda: B.SpatialConvolution(2, 4, 3, 2, 2, 1, 1, 0),
        r(3, 2, 5, 6),
        lambda x, w, b: F.conv2d(x, w[0], b, (1, 2), (0, 1)),
    ),
    "SpatialConvolution, groups": (
        lambda: B.SpatialConvolution(4, 6, 3, 2, n_group=2),
        r(3, 4, 5, 6),
        lambda x, w, b: F.conv2d(x, w.flatten(0, 1), b, groups=2),
    ),
    "SpatialConvolution, same": (
        lambda: B.SpatialConvolution(2, 4, 3, 2, 1, 1, -1, -1),
        r(3, 2, 5, 6),
        lambda x, w, b: F.conv2d(F.pad(x, (1, 1, 0, 1)), w[0], b),  # the odd pixel at the bottom
    ),
    "SpatialConvolution, NHWC": (
        lambda: B.SpatialConvolution(2, 4, 3, 2, data_format="NHWC"),
        r(3, 5, 6, 2),
        lambda x, w, b: F.conv2d(x.movedim(-1, 1), w[0].permute(3, 2, 0, 1), b).movedim(1, -1),
    ),
    "SpatialShareConvolution": (
        lambda: B.SpatialShareConvolution(2, 4, 3, 2),
        r(3, 2, 5, 6),
        lambda x, w, b: F.conv2d(x, w[0], b),
    ),
    "SpatialDilatedConvolution": (
        lambda: B.SpatialDilatedConvolution(2, 4, 3, 2, 1, 2, 1, 0, 2, 3),
        r(3, 2, 7, 8),
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (0, 1), (3, 2)),
    ),
    "SpatialFullConvolution": (
        lambda: B.SpatialFullConvolution(2, 4, 3, 2, 2, 3, 1, 0, 1, 2),
        r(3, 2, 4, 5),
        lambda x, w, b: F.conv_transpose2d(x, w[0], b, (3, 2), (0, 1), (2, 1)),
    ),
    "SpatialFullConvolution, like": (
        lambda: B.SpatialFullConvolution(2, 4, 3, 3, 2, 2, 1, 1, n_group=2),
        [r(3, 2, 4, 5), r(3, 1, 8, 9)],
        lambda x, w, b: F.conv_transpose2d(x[0], w.flatten(0, 1), b, 2, 1, (1, 0), 2),
    ),
    "SpatialSeparableConvolution": (lambda: B.SpatialSeparableConvolution(2, 3, 2, 3, 2), r(2, 2, 5, 6), _separable),
    "TemporalConvolution": (
        lambda: B.TemporalConvolution(2, 3, 2, 2),
        r(4, 6, 2),
        lambda x, w, b: F.conv1d(x.transpose(1, 2), w.view(3, 2, 2).transpose(1, 2), b, 2).transpose(1, 2),
    ),
    "LocallyConnected1D": (lambda: B.LocallyConnected1D(6, 2, 3, 2, 2), r(4, 6, 2), _local_1d),
    "LocallyConnected2D": (lambda: B.LocallyConnected2D(2, 6, 5, 3, 3, 2), r(4, 2, 5, 6), _local_2d),
    "VolumetricConvolution": (
        lambda: B.VolumetricConvolution(2, 3, 2, 3, 1, 1, 2, 1, 1, 0, 0),
        r(2, 2, 4, 5, 6),
        lambda x, w, b: F.conv3d(x, w, b, (1, 1, 2), (1, 0, 0)),
    ),
    "VolumetricFullConvolution": (
        lambda: B.VolumetricFullConvolution(2, 4, 2, 3, 1, 2, 1, 1, 0, 1, 0, 1, 0, 0, 2),
        r(2, 2, 3, 4, 4),
        lambda x, w, b: F.conv_transpose3d(x, w.flatten(0, 1), b, (2, 1, 1), (0, 0, 1), (1, 0, 0), 2),
    ),
    "PReLU": (lambda: B.PReLU(3), r(2, 3, 4), F.prelu),
    "SReLU": (lambda: B.SReLU([2, 3], [1]), 2 * r(4, 2, 3), _srelu),
    "BatchNormalization": (
        lambda: B.BatchNormalization(3),
        r(6, 3),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    ),
    "SpatialBatchNormalization, NHWC": (
        lambda: B.SpatialBatchNormalization(3, data_format="NHWC"),
        r(4, 2, 2, 3),
        lambda x, w, b: F.batch_norm(x.movedim(-1, 1), None, None, w, b, training=True).movedim(1, -1),
    ),
    "LayerNormalization": (lambda: B.LayerNormalization(3), r(4, 3), lambda x, w, b: F.layer_norm(x, (3,), w, b, 1e-6)),
    "NormalizeScale": (
        lambda: B.NormalizeScale(2.0, 20.0, [1, 3, 1, 1]),
        r(2, 3, 4, 4),
        lambda x, w: F.normalize(x, eps=1e-10) * w,
    ),
    "RnnCell": (lambda: B.Recurrent().add(B.RnnCell(2, 3, B.Tanh())), r(4, 5, 2), _rnn),
    "LSTM": (lambda: B.Recurrent().add(B.LSTM(2, 3)), r(4, 5, 2), _lstm),
    "LSTMPeephole": (lambda: B.Recurrent().add(B.LSTMPeephole(2, 3)), r(4, 5, 2), _peephole),
    "GRU": (lambda: B.Recurrent().add(B.GRU(2, 3)), r(4, 5, 2), _gru),
    "MultiRNNCell": (
        lambda: B.Recurrent().add(B.MultiRNNCell([B.LSTM(2, 3), B.GRU(3, 2)])),
        r(4, 5, 2),
        lambda x, *w: _gru(_lstm(x, *w[:3]), *w[3:]),
    ),
    "BiRecurrent": (lambda: B.BiRecurrent().add(B.GRU(2, 3)), r(4, 5, 2), lambda x, *w: _two_ways(_gru, x, *w)),
    "RecurrentDecoder": (lambda: B.RecurrentDecoder(3).add(B.RnnCell(2, 2, "tanh")), r(4, 2), _decoder),
    "Sequential": (
        lambda: B.Sequential().add(B.Linear(3, 4)).add(B.ReLU()).add(B.Linear(4, 2)).add(B.LogSoftMax()),
        r(5, 3),
        lambda x, w, b, u, c: F.log_softmax(F.linear(torch.relu(F.linear(x, w, b)), u, c), -1),
    ),
    "Concat": (
        lambda: B.Concat(2).add(B.Linear(3, 2)).add(B.Linear(3, 4)),
        r(5, 3),
        lambda x, w, b, u, c: torch.cat([F.linear(x, w, b), F.linear(x, u, c)], 1),
    ),
    "ConcatTable": (
        lambda: B.ConcatTable().add(B.Linear(3, 2)).add(B.Tanh()),
        r(5, 3),
        lambda x, w, b: [F.linear(x, w, b), torch.tanh(x)],
    ),
    "ParallelTable": (
        lambda: B.ParallelTable().add(B.Linear(3, 2)).add(B.Tanh()),
        [r(5, 3), r(5, 2)],
        lambda x, w, b: [F.linear(x[0], w, b), torch.tanh(x[1])],
    ),
    "MapTable": (
        lambda: B.MapTable(B.Linear(3, 2)),
        [r(5, 3), r(4, 3)],
        lambda x, w, b: [F.linear(each, w, b) for each in x],
    ),
    "Bottle": (lambda: B.Bottle(B.Linear(3, 2)), r(4, 5, 3), F.linear),
    "TimeDistributed": (lambda: B.TimeDistributed(B.Linear(3, 2)), r(4, 5, 3), F.linear),
    "a torch module": (
        lambda: B.Sequential().add(nn.Linear(3, 2)).add(nn.Tanh()),
        r(5, 3),
        lambda *x: torch.tanh(F.linear(*x)),
    ),
}

WITHOUT_WEIGHTS: dict[str, tuple[Callable[[], Any], Any, Callable[..., Any]]] = {
    "ReLU": (lambda: B.ReLU(), r(4, 3), torch.relu),
    "ReLU6": (lambda: B.ReLU6(), 5 * r(4, 3), F.relu6),
    "LeakyReLU": (lambda: B.LeakyReLU(0.1), r(4, 3), lambda x: F.leaky_relu(x, 0.1)),
    "ELU": (lambda: B.ELU(0.5), r(4, 3), lambda x: F.elu(x, 0.5)),
    "RReLU, scoring": (lambda: B.RReLU().evaluate(), r(4, 3), lambda x: F.rrelu(x, 1 / 8, 1 / 3, False)),
    "Tanh": (lambda: B.Tanh(), r(4, 3), torch.tanh),
    "TanhShrink": (lambda: B.TanhShrink(), r(4, 3), F.tanhshrink),
    "Sigmoid": (lambda: B.Sigmoid(), r(4, 3), torch.sigmoid),
    "LogSigmoid": (lambda: B.LogSigmoid(), r(4, 3), F.logsigmoid),
    "SoftPlus": (lambda: B.SoftPlus(2.0), r(4, 3), lambda x: F.softplus(x, 2.0)),
    "SoftSign": (lambda: B.SoftSign(), r(4, 3), F.softsign),
    "SoftShrink": (lambda: B.SoftShrink(0.3), r(4, 3), lambda x: F.softshrink(x, 0.3)),
    "HardShrink": (lambda: B.HardShrink(0.3), r(4, 3), lambda x: F.hardshrink(x, 0.3)),
    "HardTanh": (lambda: B.HardTanh(-0.4, 0.6), r(4, 3), lambda x: F.hardtanh(x, -0.4, 0.6)),
    "Threshold": (lambda: B.Threshold(0.2, 0.1), r(4, 3), lambda x: F.threshold(x, 0.2, 0.1)),
    "HardSigmoid": (lambda: B.HardSigmoid(), 3 * r(4, 3), lambda x: (0.2 * x + 0.5).clamp(0, 1)),
    "SoftMax": (lambda: B.SoftMax(), r(2, 3, 4), lambda x: F.softmax(x, -1)),
    "SoftMin": (lambda: B.SoftMin(), r(4, 3), lambda x: F.softmin(x, -1)),
    "LogSoftMax": (lambda: B.LogSoftMax(), r(4, 3), lambda x: F.log_softmax(x, -1)),
    "SpatialMaxPooling": (
        lambda: B.SpatialMaxPooling(2, 3, 2, 1, 1, 0, True),
        r(2, 3, 6, 7),
        lambda x: F.max_pool2d(x, (3, 2), (1, 2), (0, 1), ceil_mode=True),
    ),
    "SpatialMaxPooling, one row": (lambda: B.SpatialMaxPooling(2, 2, 2, 2), r(3, 6, 7), lambda x: F.max_pool2d(x, 2)),
    "SpatialAveragePooling": (
        lambda: B.SpatialAveragePooling(2, 3, 2, 1, 1, 0, count_include_pad=False),
        r(2, 3, 6, 7),
        lambda x: F.avg_pool2d(x, (3, 2), (1, 2), (0, 1), False, False),
    ),
    "SpatialAveragePooling, same": (
        lambda: B.SpatialAveragePooling(2, 2, 2, 2, -1, -1, count_include_pad=False),
        r(1, 1, 5, 5),
        lambda x: F.avg_pool2d(x, 2, 2, 0, True, False),
    ),
    "SpatialAveragePooling, global": (
        lambda: B.SpatialAveragePooling(1, 1, global_pooling=True),
        r(2, 3, 6, 7),
        lambda x: F.adaptive_avg_pool2d(x, 1),
    ),
    "TemporalMaxPooling": (
        lambda: B.TemporalMaxPooling(2),
        r(2, 6, 3),
        lambda x: F.max_pool1d(x.transpose(1, 2), 2).transpose(1, 2),
    ),
    "VolumetricMaxPooling": (
        lambda: B.VolumetricMaxPooling(2, 2, 3, 1, 2, 1, 1, 1, 1),
        r(2, 3, 4, 5, 6),
        lambda x: F.max_pool3d(x, (2, 3, 2), (1, 1, 2), 1),
    ),
    "VolumetricAveragePooling": (
        lambda: B.VolumetricAveragePooling(2, 2, 3, 1, 2, 1, 1, 1, 1, False, True),
        r(2, 3, 4, 5, 6),
        lambda x: F.avg_pool3d(x, (2, 3, 2), (1, 1, 2), 1, True, False),
    ),
    "SpatialZeroPadding": (lambda: B.SpatialZeroPadding(-1, 2, 0, 1), r(2, 3, 4, 5), lambda x: F.pad(x, (-1, 2, 0, 1))),
    "Cropping2D": (lambda: B.Cropping2D([1, 1], [0, 2], "NHWC"), r(2, 4, 5, 3), lambda x: x[:, 1:-1, :-2]),
    "Cropping3D": (lambda: B.Cropping3D([1, 1], [0, 2], [1, 0]), r(2, 3, 4, 5, 6), lambda x: x[:, :, 1:-1, :-2, 1:]),
    "UpSampling1D": (
        lambda: B.UpSampling1D(3),
        r(2, 4, 3),
        lambda x: F.interpolate(x.transpose(1, 2), scale_factor=3).transpose(1, 2),
    ),
    "UpSampling2D": (lambda: B.UpSampling2D([2, 3]), r(2, 3, 2, 2), lambda x: F.interpolate(x, scale_factor=(2, 3))),
    "UpSampling3D": (
        lambda: B.UpSampling3D([1, 2, 3]),
        r(2, 3, 2, 2, 2),
        lambda x: F.interpolate(x, scale_factor=(1, 2, 3)),
    ),
    "ResizeBilinear": (
        lambda: B.ResizeBilinear(5, 7),
        r(2, 3, 3, 4),
        lambda x: F.interpolate(x, (5, 7), mode="bilinear"),
    ),
    "ResizeBilinear, corners": (
        lambda: B.ResizeBilinear(5, 7, True, "NHWC"),
        r(2, 3, 4, 3),
        lambda x: F.interpolate(x.movedim(-1, 1), (5, 7), mode="bilinear", align_corners=True).movedim(1, -1),
    ),
    "SpatialCrossMapLRN": (
        lambda: B.SpatialCrossMapLRN(3, 2.0, 0.5, 1.5),
        r(2, 5, 3, 3),
        lambda x: F.local_response_norm(x, 3, 2.0, 0.5, 1.5),
    ),
    "SpatialWithinChannelLRN": (
        lambda: B.SpatialWithinChannelLRN(3, 2.0, 0.5),
        r(2, 2, 5, 5),
        lambda x: x / (1 + 2 * F.avg_pool2d(x**2, 3, 1, 1)) ** 0.5,
    ),
    "Normalize": (lambda: B.Normalize(1.0), r(2, 3, 4), lambda x: F.normalize(x, 1.0)),
    "Dropout, scoring": (lambda: B.Dropout().evaluate(), r(4, 3), lambda x: x),
    "SpatialDropout2D, scoring": (lambda: B.SpatialDropout2D().evaluate(), r(2, 3, 4, 4), lambda x: x),
    "GaussianDropout, scoring": (lambda: B.GaussianDropout(0.5).evaluate(), r(4, 3), lambda x: x),
    "GaussianNoise, scoring": (lambda: B.GaussianNoise(0.5).evaluate(), r(4, 3), lambda x: x),
    "Reshape": (lambda: B.Reshape([3, 1]), r(4, 3), lambda x: x.view(4, 3, 1)),
    "InferReshape": (lambda: B.InferReshape([0, -1], True), r(2, 3, 4), lambda x: x.view(2, 3, 4)),
    "View": (lambda: B.View([12], 2), r(2, 3, 4), lambda x: x.view(2, 12)),
    "View, a multiple": (lambda: B.View([6]), r(4, 3), lambda x: x.view(2, 6)),
    "View, worked out": (lambda: B.View([-1]), r(2, 3, 4), lambda x: x.view(2, 12)),
    "Squeeze": (lambda: B.Squeeze(1, 2), r(3, 1, 4), lambda x: x.squeeze(1)),
    "Unsqueeze": (lambda: B.Unsqueeze(1, 1), r(3, 4), lambda x: x.unsqueeze(1)),
    "Transpose": (lambda: B.Transpose([(1, 2), (2, 3)]), r(2, 3, 4), lambda x: x.transpose(0, 1).transpose(1, 2)),
    "Select": (lambda: B.Select(2, -2), r(2, 5, 3), lambda x: x[:, -2]),
    "Narrow": (lambda: B.Narrow(-1, 2, -2), r(2, 5), lambda x: x[:, 1:4]),
    "Index": (lambda: B.Index(2), [r(3, 4), np.array([4.0, 1.0])], lambda x: x[0][:, [3, 0]]),
    "MaskedSelect": (lambda: B.MaskedSelect(), [r(2, 2), np.array([[1, 0], [0, 1]])], lambda x: x[0][[0, 1], [0, 1]]),
    "Replicate": (lambda: B.Replicate(3, 1, 1), r(4, 2), lambda x: x.unsqueeze(1).expand(4, 3, 2)),
    "Tile": (lambda: B.Tile(2, 3), r(4, 2), lambda x: x.repeat(1, 3)),
    "ExpandSize": (lambda: B.ExpandSize([2, -1]), r(1, 3), lambda x: x.expand(2, -1)),
    "Reverse": (lambda: B.Reverse(2), r(4, 3), lambda x: x.flip(1)),
    "Padding": (lambda: B.Padding(1, 2, 1, 0.5), r(4, 3), lambda x: F.pad(x, (0, 2), value=0.5)),
    "Padding, inside": (
        lambda: B.Padding(1, -1, 1, 0.5, 2),
        r(4, 3),
        lambda x: torch.cat([x[:, :1], torch.full((4, 1), 0.5), x[:, 1:]], 1),
    ),
    "Max": (lambda: B.Max(1, 1), r(4, 3), lambda x: x.amax(1)),
    "Min": (lambda: B.Min(), r(4, 3), lambda x: x.amin(0)),
    "Mean": (lambda: B.Mean(1, 1, False), r(4, 3), lambda x: x.mean(1, keepdim=True)),
    "Sum": (lambda: B.Sum(2, -1, True), r(4, 3), lambda x: x.mean(1)),
    "Abs": (lambda: B.Abs(), r(4, 3), torch.abs),
    "Exp": (lambda: B.Exp(), r(4, 3), torch.exp),
    "Log": (lambda: B.Log(), pos(4, 3), torch.log),
    "Sqrt": (lambda: B.Sqrt(), pos(4, 3), torch.sqrt),
    "Square": (lambda: B.Square(), r(4, 3), torch.square),
    "Negative": (lambda: B.Negative(), r(4, 3), torch.neg),
    "Power": (lambda: B.Power(3, 2, 1), r(4, 3), lambda x: (1 + 2 * x) ** 3),
    "Clamp": (lambda: B.Clamp(-0.5, 0.5), r(4, 3), lambda x: x.clamp(-0.5, 0.5)),
    "AddConstant": (lambda: B.AddConstant(2.0), r(4, 3), lambda x: x + 2),
    "MulConstant": (lambda: B.MulConstant(2.0), r(4, 3), lambda x: x * 2),
    "Identity": (lambda: B.Identity(), r(4, 3), lambda x: x),
    "Contiguous": (lambda: B.Contiguous(), r(4, 3), lambda x: x),
    "Echo": (lambda: B.Echo(), r(4, 3), lambda x: x),
    "Masking": (
        lambda: B.Masking(0.0),
        r(2, 3, 4) * np.array([[1], [0], [1]], np.float32),
        lambda x: x * (x != 0).any(-1, True),
    ),
    "CAddTable": (lambda: B.CAddTable(), [r(2, 3), r(2, 1), r(3)], lambda x: x[0] + x[1] + x[2]),
    "CSubTable": (lambda: B.CSubTable(), [r(2, 3), r(3)], lambda x: x[0] - x[1]),
    "CMulTable": (lambda: B.CMulTable(), [r(2, 3), r(2, 1)], lambda x: x[0] * x[1]),
    "CDivTable": (lambda: B.CDivTable(), [r(2, 3), pos(2, 3)], lambda x: x[0] / x[1]),
    "CMaxTable": (lambda: B.CMaxTable(), [r(2, 3), r(3)], lambda x: torch.maximum(*x)),
    "CMinTable": (lambda: B.CMinTable(), [r(2, 3), r(3)], lambda x: torch.minimum(*x)),
    "CAveTable": (lambda: B.CAveTable(), [r(2, 3), r(3)], lambda x: (x[0] + x[1]) / 2),
    "TableOperation": (
        lambda: B.TableOperation(B.CMulTable()),
        [r(2, 3), r(2, 3, 4)],
        lambda x: x[0][..., None] * x[1],
    ),
    "JoinTable": (lambda: B.JoinTable(2, 2), [r(3, 4, 2), r(3, 4, 5)], lambda x: torch.cat(x, 2)),
    "Pack": (lambda: B.Pack(2), [r(4, 2), r(4, 2)], lambda x: torch.stack(x, 1)),
    "SplitTable": (lambda: B.SplitTable(-1), r(4, 3), lambda x: list(x.unbind(-1))),
    "BifurcateSplitTable": (lambda: B.BifurcateSplitTable(2), r(4, 5), lambda x: [x[:, :2], x[:, 2:]]),
    "SelectTable": (lambda: B.SelectTable(-1), [r(4, 2), r(3, 2)], lambda x: x[1]),
    "NarrowTable": (lambda: B.NarrowTable(2, -1), [r(4), r(3), r(2)], lambda x: x[1:]),
    "FlattenTable": (lambda: B.FlattenTable(), [r(4), [r(3), [r(2)]]], lambda x: [x[0], x[1][0], x[1][1][0]]),
    "MixtureTable": (
        lambda: B.MixtureTable(),
        [r(2, 3), [r(2, 4)] * 3],
        lambda x: sum(x[0][:, [i]] * x[1][i] for i in range(3)),
    ),
    "MixtureTable, an axis": (
        lambda: B.MixtureTable(3),
        [r(2, 3), r(2, 4, 3)],
        lambda x: (x[1] * x[0][:, None]).sum(-1),
    ),
    "DotProduct": (lambda: B.DotProduct(), [r(4, 3), r(3)], lambda x: (x[0] * x[1]).sum(-1)),
    "CosineDistance": (lambda: B.CosineDistance(), [r(4, 3), r(3)], lambda x: F.cosine_similarity(*x, dim=-1)),
    "PairwiseDistance": (lambda: B.PairwiseDistance(1), [r(4, 3), r(3)], lambda x: (x[0] - x[1]).abs().sum(-1)),
    "CrossProduct": (
        lambda: B.CrossProduct(),
        [r(4, 3), 2 * r(4, 3), 3 * r(4, 3)],
        lambda x: torch.stack([(x[i] * x[j]).sum(-1) for i, j in ((0, 1), (0, 2), (1, 2))], -1),
    ),
    "MM": (lambda: B.MM(True, True), [r(2, 3, 2), r(2, 4, 3)], lambda x: x[0].mT @ x[1].mT),
    "MV": (lambda: B.MV(True), [r(2, 3, 4), r(2, 3)], lambda x: torch.einsum("nij,ni->nj", *x)),
    "Gemm": (lambda: B.Gemm(2.0, 3.0), [r(2, 3), r(3, 4), r(2, 4)], lambda x: 2 * x[0] @ x[1] + 3 * x[2]),
}

ALL = WITH_WEIGHTS | WITHOUT_WEIGHTS


def tensors(value: Any) -> Any:
    if isinstance(value, list):
        return [tensors(each) for each in value]
    return torch.tensor(value, requires_grad=value.dtype.kind == "f")


def flat(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in flat(each)] if isinstance(value, (list, tuple)) else [value]


def changed(layer: Layer) -> Layer:
    """With weights that no default would give: of normalizations, say, ones and zeros hide mistakes."""
    weights = layer.get_weights()
    if weights is not None:
        layer.set_weights([r(*w.shape) + np.float32(0.1 * place) for place, w in enumerate(weights)])
    return layer


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_torch(name: str) -> None:
    make, given, reference = ALL[name]
    layer = changed(make())
    x = tensors(given)
    weights = [torch.tensor(w, requires_grad=True) for w in layer.get_weights() or ()]
    expected = flat(reference(x, *weights))
    found = flat(layer.forward(given))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == tuple(theirs.shape)
        np.testing.assert_allclose(mine, theirs.detach().numpy(), atol=1e-6, rtol=1e-5)

    grads = [r(*each.shape) for each in expected]
    pairs = [(e, torch.tensor(g)) for e, g in zip(expected, grads, strict=True) if e.requires_grad]
    torch.autograd.backward([e for e, _ in pairs], [g for _, g in pairs])
    layer.zero_grad_parameters()
    inputs = flat(layer.backward(given, grads if len(grads) > 1 else grads[0]))
    for mine, theirs in zip(inputs, flat(x), strict=True):
        wanted = np.zeros(theirs.shape) if theirs.grad is None else theirs.grad.numpy()
        np.testing.assert_allclose(mine, wanted, atol=2e-6, rtol=1e-4)
    named = [value for entry in layer.parameters().values() for key, value in entry.items() if key.startswith("grad")]
    for mine, theirs in zip(named, weights, strict=True):
        np.testing.assert_allclose(mine, theirs.grad.numpy(), atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_weights_round_trip(name: str, tmp_path: Path) -> None:
    make, given, _ = WITH_WEIGHTS[name]
    layer = changed(make())
    before = layer.forward(given)
    weights = layer.get_weights()
    assert weights is not None
    assert layer.is_with_weights()
    layer.set_weights(layer.get_weights())
    for again, once in zip(layer.get_weights() or (), weights, strict=True):
        np.testing.assert_array_equal(again, once)
    with pytest.raises(PlanError, match="arrays were given"):
        layer.set_weights([*weights, np.zeros(1)])
    with pytest.raises(PlanError, match="shape"):
        layer.set_weights([np.zeros((*w.shape, 2)) for w in weights])
    path = str(tmp_path / "model.json")
    if name == "a torch module":
        with pytest.raises(UnsupportedError, match="torch module"):
            layer.saveModel(path) or Model.loadModel(path)
        return
    layer.saveModel(path)
    loaded = Model.loadModel(path)
    assert type(loaded) is type(layer)
    assert loaded.name() == layer.name()
    for mine, theirs in zip(flat(loaded.forward(given)), flat(before), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# --- what the spec says in numbers ------------------------------------------------------------------------------------


def test_reshape() -> None:
    assert Reshape([784]).forward(r(4, 28, 28)).shape == (4, 784)
    assert Reshape([6]).forward(r(2, 3)).shape == (6,)
    assert Reshape([2, 3]).forward(r(1, 6)).shape == (1, 2, 3)
    assert Reshape([3], True).forward(r(2, 3)).shape == (2, 3)
    with pytest.raises(PlanError, match=r"4 elements.*6 elements"):
        Reshape([4]).forward(r(2, 3))
    assert InferReshape([4, 0, 3, -1]).forward(r(4, 5, 6, 7)).shape == (4, 5, 3, 14)


def test_axes_count_from_one() -> None:
    x = r(2, 5, 3)
    np.testing.assert_array_equal(Select(2, -1).forward(x), x[:, -1])
    assert JoinTable(1, 1).forward([r(4, 2), r(4, 2)]).shape == (4, 4)
    assert JoinTable(1, 2).forward([r(4, 2), r(4, 2)]).shape == (8, 2)
    assert Concat(2).add(Linear(3, 2)).add(Linear(3, 2)).forward(r(5, 3)).shape == (5, 4)
    assert Transpose([(1, 2)]).forward(r(2, 3)).shape == (3, 2)
    np.testing.assert_array_equal(Narrow(2, 2, -1).forward(np.array([[1.0, 2, 3, 4]])), [[2, 3, 4]])
    assert [each.shape for each in SplitTable(1, 1).forward(r(2, 3))] == [(2,)] * 3
    for wrong in (lambda: Select(0, 1), lambda: Select(4, 1).forward(x), lambda: Select(1, 3).forward(x)):
        with pytest.raises(PlanError):
            wrong()


def test_width_comes_first() -> None:
    assert SpatialConvolution(1, 1, 3, 1).forward(r(1, 1, 4, 5)).shape == (1, 1, 4, 3)
    image = r(1, 1, 5, 5)
    assert SpatialMaxPooling(2, 2, 2, 2).forward(image).shape == (1, 1, 2, 2)
    assert SpatialMaxPooling(2, 2, 2, 2, to_ceil=True).forward(image).shape == (1, 1, 3, 3)
    assert SpatialMaxPooling(2, 2, 2, 2, -1, -1).forward(image).shape == (1, 1, 3, 3)
    numbers = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    sums = SpatialAveragePooling(2, 2, 2, 2, divide=False).forward(numbers)
    np.testing.assert_array_equal(sums.ravel(), [14, 22, 46, 54])


@pytest.mark.parametrize(
    "make",
    [
        lambda format: SpatialConvolution(3, 4, 3, 2, 2, 1, 1, 0, data_format=format),
        lambda format: SpatialConvolution(3, 4, 3, 2, 2, 3, -1, -1, data_format=format),
        lambda format: SpatialMaxPooling(3, 2, 2, 1, 1, 0, format=format),
        lambda format: SpatialAveragePooling(3, 2, 2, 1, -1, -1, format=format),
        lambda format: SpatialBatchNormalization(3, data_format=format),
    ],
)
def test_nhwc_is_nchw_turned(make: Callable[[str], Any]) -> None:
    first, last = make("NCHW"), make("NHWC")
    if first.is_with_weights() and isinstance(first, SpatialConvolution):
        weight, bias = first.get_weights()
        last.set_weights([weight[0].transpose(2, 3, 1, 0)[np.newaxis], bias])
    x = r(2, 3, 5, 6)
    turned = last.forward(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(turned, first.forward(x), atol=1e-6)


def test_convolution_takes_torchs_weights_too() -> None:
    layer = SpatialConvolution(4, 6, 3, 2, n_group=2)
    weight, bias = r(6, 2, 2, 3), r(6)
    layer.set_weights([weight, bias])
    np.testing.assert_array_equal((layer.get_weights() or [])[0], weight.reshape(2, 3, 2, 2, 3))


def test_temporal_convolution() -> None:
    layer = TemporalConvolution(2, 1, 2, init_weight=np.array([[1.0, 2, 3, 4]]), init_bias=np.zeros(1))
    frames = np.array([[[1.0, 2], [3, 4], [5, 6], [7, 8]]])
    np.testing.assert_allclose(layer.forward(frames).ravel(), [30, 50, 70])


def test_lookup_table() -> None:
    layer = LookupTable(3, 2)
    layer.set_weights(np.array([[1.0, 2], [3, 4], [5, 6]]))
    np.testing.assert_array_equal(layer.forward(np.array([[1, 3], [2, 2]])), [[[1, 2], [5, 6]], [[3, 4], [3, 4]]])
    np.testing.assert_array_equal(layer.forward(np.array([3.0])), [[5, 6]])
    for wrong in (0, 4, 1.5):
        with pytest.raises(PlanError, match=f"1 to 3, not {wrong}"):
            layer.forward(np.array([wrong]))
    short = LookupTable(2, 2, max_norm=1.0)
    short.set_weights(np.array([[3.0, 4], [0.1, 0]]))
    np.testing.assert_allclose(short.forward(np.array([1, 2])), [[0.6, 0.8], [0.1, 0]], atol=1e-6)
    padded = LookupTable(2, 1, padding_value=1)
    padded.backward(np.array([1, 2]), np.ones((2, 1)))
    (entry,) = padded.parameters().values()
    np.testing.assert_array_equal(entry["gradWeight"], [[0], [1]])


def test_lstm_and_gru_in_numbers() -> None:
    lstm = Recurrent().add(LSTM(1, 1))
    lstm.set_weights([np.array([[1.0], [2], [3], [4]]), np.zeros(4), np.zeros((4, 1))])
    np.testing.assert_allclose(lstm.forward(np.ones((1, 2, 1))).ravel(), [0.596456, 0.864245], atol=1e-6)
    hidden, memory = lstm.get_hidden_state()
    assert hidden.shape == memory.shape == (1, 1)
    gru = Recurrent().add(GRU(1, 2))
    inputs = np.array([[0.0], [2], [0], [0], [1], [1]])
    gru.set_weights([inputs, np.zeros(6), np.zeros((4, 2)), np.array([[0.0, 1], [1, 0]])])
    expected = [[0.380797, 0.380797], [0.625681, 0.605750]]
    np.testing.assert_allclose(gru.forward(np.ones((1, 2, 1)))[0], expected, atol=1e-6)


def test_small_functions_in_numbers() -> None:
    np.testing.assert_allclose(HardSigmoid().forward(np.array([-3.0, -1, 0, 1, 3])), [0, 0.3, 0.5, 0.7, 1], atol=1e-7)
    np.testing.assert_allclose(Power(2, 2, 1).forward(np.array([0.0, 1, 2])), [1, 9, 25])
    np.testing.assert_allclose(SoftMax().forward(r(2, 3, 4)).sum(-1), np.ones((2, 3)), atol=1e-6)


# --- noise and penalties ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shape", "together"),
    [
        (lambda: B.SpatialDropout1D(0.5), (8, 5, 6), (1,)),
        (lambda: B.SpatialDropout2D(0.5), (8, 6, 3, 3), (2, 3)),
        (lambda: B.SpatialDropout2D(0.5, "NHWC"), (8, 3, 3, 6), (1, 2)),
        (lambda: B.SpatialDropout3D(0.5), (8, 6, 2, 3, 3), (2, 3, 4)),
    ],
)
def test_spatial_dropout_drops_whole_maps(make: Callable[[], Any], shape: Any, together: Any) -> None:
    layer = make().set_seed(3)
    kept = layer.forward(np.ones(shape)) != 0
    assert (kept.all(together) | ~kept.any(together)).all()
    assert 0.2 < kept.mean() < 0.8


def test_dropout() -> None:
    x = np.ones((200, 50))
    scaled = Dropout(0.25).set_seed(1).forward(x)
    assert set(np.unique(scaled.round(5))) == {0.0, np.float32(4 / 3).round(5)}
    plain = Dropout(0.25, scale=False).set_seed(1)
    assert set(np.unique(plain.forward(x))) == {0.0, 1.0}
    np.testing.assert_allclose(plain.evaluate().forward(x), 0.75 * x)
    # Backwards goes the way of the last forward: the same elements are dropped.
    layer = Dropout(0.5)
    np.testing.assert_array_equal(layer.forward(x) != 0, layer.backward(x, np.ones_like(x)) != 0)


def test_penalties_enter_the_gradient() -> None:
    x, g = np.array([[1.0, -2.0], [0.5, 3.0]]), np.ones((2, 2))
    np.testing.assert_allclose(B.L1Penalty(2.0).backward(x, g), 1 + 2 * np.sign(x))
    np.testing.assert_allclose(B.L1Penalty(2.0, True).backward(x, g), 1 + np.sign(x) / 2)
    np.testing.assert_allclose(B.L1Penalty(2.0, provide_output=False).backward(x, g), 2 * np.sign(x))
    np.testing.assert_allclose(B.ActivityRegularization(1.0, 0.5).backward(x, g), 1 + np.sign(x) + x)
    p = np.abs(x)
    np.testing.assert_allclose(B.NegativeEntropyPenalty(0.1).backward(p, g), 1 + 0.1 * (np.log(p) + 1), rtol=1e-6)
    np.testing.assert_allclose(B.GradientReversal(2.0).backward(x, g), -2 * g)
    np.testing.assert_array_equal(B.BinaryThreshold(0.7).backward(x, g), x > 0.7)


def test_a_sampler_samples() -> None:
    mean, log_variance = np.full((2000, 2), 3.0), np.full((2000, 2), math.log(4.0))
    sample = B.GaussianSampler().set_seed(5).forward([mean, log_variance])
    assert abs(sample.mean() - 3) < 0.2
    assert abs(sample.std() - 2) < 0.2


# --- weights ----------------------------------------------------------------------------------------------------------


def test_parameters_add_up_and_update() -> None:
    layer = Linear(2, 1).set_name("fc")
    layer.set_weights([np.array([[1.0, 2.0]]), np.array([3.0])])
    x = np.array([[1.0, 1.0], [2.0, 0.0]])
    assert layer.forward(x).ravel().tolist() == [6.0, 5.0]
    for _ in range(2):
        np.testing.assert_allclose(layer.backward(x, np.ones((2, 1))), [[1, 2], [1, 2]])
    entry = layer.parameters()["fc"]
    np.testing.assert_allclose(entry["gradWeight"], [[6, 2]])
    np.testing.assert_allclose(entry["gradBias"], [4])
    layer.update_parameters(0.5)
    np.testing.assert_allclose((layer.get_weights() or [])[0], [[-2, 1]])
    layer.zero_grad_parameters()
    np.testing.assert_array_equal(layer.parameters()["fc"]["gradWeight"], [[0, 0]])
    assert layer.backward(x, np.ones((2, 1))).tolist() == [[-2, 1], [-2, 1]]  # with the weights as they are now


def test_default_weights_are_spread_by_fan_in() -> None:
    layer = SpatialConvolution(4, 64, 3, 3).set_seed(1).reset()
    weight, bias = layer.get_weights()
    bound = 1 / math.sqrt(3 * 3 * 4)
    for values in (weight, bias):
        assert np.abs(values).max() <= bound
        assert np.abs(values).max() > 0.9 * bound
    table = (LookupTable(1000, 10).get_weights() or [])[0]
    assert abs(table.std() - 1) < 0.05


def test_initialization_methods() -> None:
    layer = Linear(300, 200)

    def weight(method: Any) -> np.ndarray:
        layer.set_init_method(method, Zeros())
        first, bias = layer.get_weights()
        assert not bias.any()
        return first

    assert set(weight(Ones()).ravel()) == {1.0}
    assert set(weight(ConstInitMethod(0.5)).ravel()) == {0.5}
    assert 0.9 / math.sqrt(300) < np.abs(weight(RandomUniform())).max() <= 1 / math.sqrt(300)
    assert -2 <= weight(RandomUniform(-2.0, 3.0)).min() < -1.9 < 2.9 < weight(RandomUniform(3.0, -2.0)).max() <= 3
    assert abs(weight(RandomNormal(1.0, 2.0)).std() - 2) < 0.05
    assert 0.99 < np.abs(weight(Xavier())).max() / math.sqrt(6 / 500) <= 1
    assert abs(weight(MsraFiller()).std() - math.sqrt(2 / 250)) < 0.002
    assert abs(weight(MsraFiller(False)).std() - math.sqrt(2 / 200)) < 0.002
    full = B.SpatialFullConvolution(1, 1, 4, 4, 2, 2, 1, 1, no_bias=True).set_init_method(BilinearFiller())
    enlarged = full.forward(np.arange(9.0).reshape(1, 1, 3, 3))
    assert enlarged[0, 0, 2, 2] == pytest.approx(4 - 1.0, abs=1e-6)  # a quarter of the way from the middle
    with pytest.raises(PlanError, match="square"):
        B.SpatialFullConvolution(1, 1, 4, 3).set_init_method(BilinearFiller())
    with pytest.raises(PlanError, match="initialization_method"):
        layer.set_init_method("xavier")  # type: ignore[arg-type]


def test_running_means() -> None:
    layer = B.BatchNormalization(2).set_name("bn")
    layer.set_running_mean(np.array([1.0, 2.0])).set_running_std(np.array([4.0, 9.0]))
    layer.evaluate()
    np.testing.assert_allclose(layer.forward(np.array([[3.0, 5.0]])), [[1, 1]], atol=1e-4)
    entry = layer.parameters()["bn"]
    assert entry["runningMean"].tolist() == [1, 2]
    assert entry["runningVar"].tolist() == [4, 9]
    with pytest.raises(UnsupportedError, match="running"):
        Linear(1, 1).set_running_mean(np.zeros(1))


def test_freezing_and_regularizers_survive_a_file(tmp_path: Path) -> None:
    model = Sequential().add(Linear(2, 2, wRegularizer=L2Regularizer(0.1)).set_name("a"))
    model.add(Linear(2, 2).set_name("b"))
    model.freeze(["a"])
    model.layers[1].setBRegularizer(L1L2Regularizer(0.1, 0.2))
    model.layers[1].set_init_method(Ones())
    path = str(tmp_path / "m")
    model.saveModel(path)
    with pytest.raises(FileExistsError):
        model.saveModel(path)
    model.saveModel(path, over_write=True)
    loaded = Model.loadModel(path)
    assert [p.requires_grad for p in loaded.to_torch().parameters()] == [False, False, True, True]
    first, second = loaded.to_torch().parts
    assert first.regularizers == {"weight": (0.0, 0.1)}
    assert second.regularizers == {"bias": (0.1, 0.2)}
    assert not loaded.reset().unfreeze().layers[1].get_weights()[0].std()  # type: ignore[attr-defined]
    with pytest.raises(UnknownName, match=r"'c'.*a, b"):
        model.freeze(["c"])


def test_no_file_holds_a_pickle(tmp_path: Path) -> None:
    Sequential().add(Linear(2, 2)).saveModel(str(tmp_path / "m"), str(tmp_path / "w"))
    for path in tmp_path.iterdir():
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError)):
            pickle.loads(path.read_bytes())  # noqa: S301
    jvm = tmp_path / "jvm"
    jvm.write_bytes(b"\x08\x01\x12\x07BigDLModule")
    with pytest.raises(UnsupportedError, match="JVM"):
        Model.loadModel(str(jvm))


def test_a_state_dict_of_torch_loads(tmp_path: Path) -> None:
    model = Sequential().add(Linear(2, 3)).add(Tanh())
    other = Sequential().add(Linear(2, 3)).add(Tanh())
    torch.save(other.to_torch().state_dict(), tmp_path / "state")
    model.load_torch(str(tmp_path / "state"))
    np.testing.assert_array_equal(model.forward(r(4, 2)), other.forward(r(4, 2)))


# --- graphs and containers --------------------------------------------------------------------------------------------


def test_graph() -> None:
    a = Input()
    linear = Linear(2, 2).set_name("fc")
    model = Model([a], [CAddTable()([a, linear(a)])])
    x = r(3, 2)
    np.testing.assert_allclose(model.forward(x), x + linear.forward(x), atol=1e-6)
    b = Input()
    both = Model([a, b], [Tanh()(linear(a)), JoinTable(1, 1)([a, b])])
    first, second = both.forward([x, x])
    np.testing.assert_allclose(first, np.tanh(linear.forward(x)), atol=1e-6)
    assert second.shape == (3, 4)
    assert both.node("fc").element() is linear
    with pytest.raises(UnknownName, match="fc"):
        both.node("other")
    with pytest.raises(PlanError, match="table of 2"):
        both.forward(x)
    with pytest.raises(PlanError, match="no output"):
        Model([a, b], Tanh()(a))
    with pytest.raises(PlanError, match="none of the graph's inputs"):
        Model(a, CAddTable()([a, b]))


def test_stop_gradient(tmp_path: Path) -> None:
    a = Input()
    first = Linear(2, 2).set_name("first")
    model = Model(a, Linear(2, 1).set_name("second")(first(a)))
    model.stop_gradient(["first"])
    for each in (model, None):
        if each is None:
            model.saveModel(str(tmp_path / "m"))
            each = Model.loadModel(str(tmp_path / "m"))
        assert not each.backward(r(3, 2), np.ones((3, 1))).any()
        entries = each.parameters()
        assert not entries["first"]["gradWeight"].any()
        assert entries["second"]["gradWeight"].any()


def test_a_shared_layer_is_one(tmp_path: Path) -> None:
    shared = Linear(2, 2)
    model = Sequential().add(shared).add(Tanh()).add(shared)
    assert len(model.get_weights() or []) == 2
    x = r(3, 2)
    model.saveModel(str(tmp_path / "m"))
    loaded = Model.loadModel(str(tmp_path / "m"))
    assert loaded.layers[0] is loaded.layers[2]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(loaded.forward(x), model.forward(x))


def test_a_container_grows_while_it_is_used() -> None:
    inner = Sequential()
    model = Sequential().add(inner).add(Identity())
    x = r(3, 2)
    np.testing.assert_array_equal(model.forward(x), x)
    inner.add(Tanh())
    np.testing.assert_allclose(model.forward(x), np.tanh(x), atol=1e-6)
    assert [type(each).__name__ for each in model.flattened_layers()] == ["Tanh", "Identity"]
    assert [type(each).__name__ for each in model.flattened_layers(True)] == [
        "Tanh",
        "Sequential",
        "Identity",
        "Sequential",
    ]
    for wrong in (model, 3, Tanh):
        with pytest.raises(PlanError):
            inner.add(wrong)
    with pytest.raises(PlanError, match="called 'x'"):
        Sequential().add(Linear(1, 1).set_name("x")).add(Linear(1, 1).set_name("x")).forward(r(1, 1))


def test_doubles() -> None:
    layer = Linear(2, 2, bigdl_type="double")
    assert layer.forward(r(3, 2)).dtype == np.float64
    assert (layer.get_weights() or [])[0].dtype == np.float64
    with pytest.raises(PlanError, match="bigdl_type"):
        Linear(2, 2, bigdl_type="half")


# --- wrong words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Linear(0, 2), "input_size"),
        (lambda: Linear(2, 2, wRegularizer=0.1), "wRegularizer"),
        (lambda: Dropout(1.5), "init_p"),
        (lambda: SpatialConvolution(3, 4, 2, 2, n_group=2), "n_group"),
        (lambda: SpatialConvolution(2, 4, 2, 2, pad_w=-1), "pad_w and pad_h"),
        (lambda: SpatialConvolution(2, 4, 2, 2, data_format="NCWH"), '"NCHW" or "NHWC"'),
        (lambda: B.SpatialCrossMapLRN(4), "odd"),
        (lambda: Reshape([2, 0]), "size"),
        (lambda: InferReshape([-1, -1]), "one size"),
        (lambda: Transpose([1, 2]), "pairs"),
        (lambda: Recurrent().add(Linear(2, 2)), "cell"),
        (lambda: LSTM(2, 2).forward(r(1, 1, 2)), "Recurrent"),
        (lambda: LSTM(2, 2, activation="tahn"), "activation"),
        (lambda: Linear(2, 2)(3), "nodes"),
        (lambda: Linear(3, 2).set_name("fc").forward(r(5, 4)), r"Linear 'fc' takes \(…, 3\).*\(5, 4\)"),
        (lambda: SpatialConvolution(3, 2, 2, 2).forward(r(5, 4, 4, 4)), r"\(rows, 3, height, width\).*\(5, 4, 4, 4\)"),
        (lambda: CAddTable().forward(r(2, 3)), "table"),
        (lambda: Sequential().add(Linear(2, 3)).add(Linear(2, 3).set_name("b")).forward(r(1, 2)), "'b'"),
    ],
)
def test_wrong_words(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make()


def test_what_is_not_offered_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"torch\.nn\.Transformer"):
        from firesteel.bigdl.nn.layer import Transformer  # noqa: F401
    with pytest.raises(ImportError, match="not offered"):
        from firesteel.bigdl.optim.optimizer import MeanAveragePrecisionObjectDetection  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name"):
        from firesteel.bigdl.nn.layer import Liner  # noqa: F401


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_an_axis_from_the_end_is_the_same_axis(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(1, len(shape)))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for make in (lambda a: B.Max(a), lambda a: B.Reverse(a), lambda a: Select(a, 1), lambda a: B.Tile(a, 2)):
        np.testing.assert_array_equal(make(axis).forward(x), make(axis - len(shape) - 1).forward(x))
