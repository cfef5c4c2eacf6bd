"""The Orca document's section 6, as it stands there; only imports and the data are ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from firesteel import XShards
from firesteel.learn.openvino import Estimator


@pytest.fixture
def the_file(tmp_path: Path) -> str:
    """A network for images of (3, 224, 224): the mean of each channel, and a dense layer."""
    image = ops.parameter([4, 3, 224, 224], np.float32, name="image")
    mean = ops.reduce_mean(image, ops.constant(np.array([2, 3], np.int64)), False)
    scores = ops.matmul(mean, ops.constant(np.eye(3, 10, dtype=np.float32)), False, False)
    path = str(tmp_path / "model.xml")
    ov.save_model(ov.Model([scores], [image]), path)
    return path


@pytest.mark.usefixtures("spark")
def test_openvino_estimator(the_file: str) -> None:
    model_path = the_file
    est = Estimator.from_openvino(model_path=model_path)

    # ndarray
    input_data = np.random.random([20, 4, 3, 224, 224])
    result = est.predict(input_data)

    # xshards
    shards = XShards.partition({"x": input_data})
    result_shards = est.predict(shards)

    assert result.shape == (20, 4, 10)
    np.testing.assert_allclose(result[..., :3], input_data.mean(axis=(3, 4)), atol=1e-3)
    found = result_shards.collect()
    assert all(set(shard) == {"x", "prediction"} for shard in found)
    np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in found]), result, atol=1e-5)
