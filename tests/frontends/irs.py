"""Small OpenVINO models for tests, written as an IR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

WEIGHT = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]], np.float32)
BIAS = np.array([0.5, -1.0], np.float32)


def parameter(name: str, shape: list[int], dtype: Any = np.float32) -> Any:
    made = ops.parameter(shape, dtype, name=name)
    made.output(0).set_names({name})
    return made


def named(node: Any, name: str) -> Any:
    node.output(0).set_names({name})
    return node


def write(model: ov.Model, path: Path) -> str:
    ov.save_model(model, str(path), compress_to_fp16=False)
    return str(path)


def affine(path: Path, rows: int = -1) -> str:
    """``a`` of (rows, 3) to ``y`` = a·W + b of width 2."""
    a = parameter("a", [rows, 3])
    y = ops.add(ops.matmul(a, ops.constant(WEIGHT), False, False), ops.constant(BIAS))
    return write(ov.Model([named(y, "y")], [a]), path)


def two(path: Path) -> str:
    """``p``, ``q`` of (rows, 2) to p − q and p·q."""
    p, q = parameter("p", [-1, 2]), parameter("q", [-1, 2])
    outputs = [named(ops.subtract(p, q), "difference"), named(ops.multiply(p, q), "product")]
    return write(ov.Model(outputs, [p, q]), path)


def stubborn(path: Path, rows: int = 4) -> str:
    """The affine model with its number of rows written into an operation: it cannot be freed."""
    a = parameter("a", [rows, 3])
    fixed = ops.reshape(a, ops.constant(np.array([rows, 3], np.int64)), False)
    y = ops.add(ops.matmul(fixed, ops.constant(WEIGHT), False, False), ops.constant(BIAS))
    return write(ov.Model([named(y, "y")], [a]), path)


def wide(path: Path, width: int) -> str:
    """(rows, width) through a dense matrix: ``width`` squared floats of weights."""
    a = parameter("a", [-1, width])
    matrix = np.eye(width, dtype=np.float32) * 2
    return write(ov.Model([named(ops.matmul(a, ops.constant(matrix), False, False), "y")], [a]), path)
