"""A column of encoded images as a tensor: decoding, named transforms, and what is drawn at random."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyspark.sql import SparkSession
from torch import nn

from firesteel import Estimator
from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.image.column import (
    CenterCrop,
    Images,
    Normalize,
    RandomCrop,
    RandomFlip,
    Resize,
    Rows,
    image_column,
    images_of,
)


def picture(seed: int, height: int = 8, width: int = 8, channels: int = 3) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def png(pixels: Any) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def rows(numbers: Any, epoch: int = 0, partition: int = 0) -> Rows:
    numbers = np.asarray(numbers)
    return Rows(3, epoch, np.full(len(numbers), partition), numbers)


PICTURES = [picture(seed) for seed in range(6)]
CELLS = [png(pixels) for pixels in PICTURES]
STACK = np.stack(PICTURES)


def test_cells_are_decoded_as_asked() -> None:
    assert np.array_equal(Images(layout="HWC").decode(CELLS), STACK)
    assert np.array_equal(Images().decode(CELLS), STACK.transpose(0, 3, 1, 2))
    floats = Images(dtype="float32").decode(CELLS)
    assert floats.dtype == np.float32
    assert np.allclose(floats, STACK.transpose(0, 3, 1, 2) / 255)
    grey = Images(channels=1).decode([png(picture(1, channels=1))])
    assert grey.shape == (1, 1, 8, 8)
    assert np.array_equal(grey[0, 0], picture(1, channels=1))
    normal = Images((Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)),), "float32", layout="HWC").decode(CELLS)
    assert np.allclose(normal, (STACK / 255 - (0.5, 0.4, 0.3)) / (0.2, 0.2, 0.1), atol=1e-5)


def test_sizes() -> None:
    mixed = [png(picture(1, 9, 12)), png(picture(2, 20, 7))]
    assert Images((Resize(4, 6),)).decode(mixed).shape == (2, 3, 4, 6)
    assert Images((Resize(4, 6), CenterCrop(2, 2))).decode([]).shape == (0, 3, 2, 2)
    with pytest.raises(SchemaError, match=r"9 × 12, 20 × 7.*Resize"):
        Images().decode(mixed)
    with pytest.raises(SchemaError, match=r"larger images than 8 × 8"):
        Images((CenterCrop(9, 9),)).decode(CELLS)
    middle = Images((CenterCrop(4, 4),), layout="HWC").decode(CELLS)
    assert np.array_equal(middle, STACK[:, 2:6, 2:6])


def test_what_is_random_depends_on_row_and_epoch_alone() -> None:
    images = Images((RandomCrop(8, 8, padding=2), RandomFlip()), layout="HWC")
    whole = images.decode(CELLS, rows(range(6)))
    assert not np.array_equal(whole, STACK)
    parts = [images.decode([CELLS[i]], rows([i]))[0] for i in (4, 1, 5)]
    assert np.array_equal(parts, whole[[4, 1, 5]])
    assert not np.array_equal(whole, images.decode(CELLS, rows(range(6), epoch=1)))
    assert not np.array_equal(whole, images.decode(CELLS, rows(range(6), partition=1)))
    assert np.array_equal(images.decode(CELLS), STACK)  # outside of a fit
    flips = Images((RandomFlip(0.25),), layout="HWC")
    cells, stack = CELLS * 200, np.concatenate([STACK] * 200)
    flipped = flips.decode(cells, rows(range(1200)))
    share = np.mean([np.array_equal(image, before[:, ::-1]) for image, before in zip(flipped, stack, strict=True)])
    assert 0.2 < share < 0.3


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(SchemaError, match="no image that Pillow reads"):
        Images().decode([b"nonsense"])
    with pytest.raises(PlanError, match=r"rotate.*random_crop"):
        image_column(None, "image", ["rotate"])  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="'resize'"):
        image_column(None, "image", [("resize", {"size": 3})])  # type: ignore[arg-type]
    for wrong in ({"dtype": "int8"}, {"layout": "WHC"}, {"channels": 2}):
        with pytest.raises(PlanError, match=r"int8|WHC|channels"):
            Images(**wrong)
    with pytest.raises(PlanError, match="last transform"):
        Images((Normalize((0,) * 3, (1,) * 3), RandomFlip()), "float32")
    with pytest.raises(PlanError, match="3 means"):
        Images((Normalize((0,), (1,)),), "float32")


def test_a_mark_travels_with_the_column(spark: SparkSession) -> None:
    df = spark.createDataFrame([(bytearray(CELLS[0]), 1)], "image binary, label int")
    given = [("resize", {"height": 4, "width": 4}), RandomFlip(0.1), Normalize((0.5,) * 3, (0.2,) * 3)]
    marked = image_column(df, "image", given).where("label > 0").select("label", "image")
    found = images_of(marked.schema["image"].metadata)
    assert found == Images((Resize(4, 4), RandomFlip(0.1), Normalize((0.5,) * 3, (0.2,) * 3)), "float32")
    with pytest.raises(SchemaError, match=r"'no'.*image, label"):
        image_column(df, "no")
    with pytest.raises(SchemaError, match="int"):
        image_column(df, "label")
    with pytest.raises(PlanError, match="float32"):
        image_column(df, "image", [Normalize((0.5,) * 3, (0.2,) * 3)], dtype="uint8")


class Mean(nn.Module):
    """Says how light an image is, times a weight that starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.scale.weight)

    def forward(self, images: Any) -> Any:
        return self.scale(images.float().mean(dim=(1, 2, 3))[:, None])


def estimator() -> Any:
    import torch

    model = Mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Estimator.from_torch(
        model=model, optimizer=optimizer, loss=nn.MSELoss(), workers_per_node=2, backend="bigdl", seed=5
    )


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Any:
    rows = [(bytearray(png(picture(i, 8 + i % 3, 8))), float(picture(i, 8 + i % 3, 8).mean() / 128)) for i in range(30)]
    return spark.createDataFrame(rows, "image binary, y float").repartition(3)


def test_an_estimator_trains_and_scores_on_images(frame: Any) -> None:
    df = image_column(frame, "image", [Resize(8, 8), RandomFlip()], dtype="float32")
    est = estimator()
    columns = {"feature_cols": "image", "label_cols": "y"}
    history = est.fit(df, epochs=4, batch_size=10, verbose=0, validation_data=df, **columns)
    losses = [record["train_loss"] for record in history.epochs]
    assert losses[-1] < losses[0]
    found = est.evaluate(df, verbose=0, **columns)
    assert found["num_samples"] == 30
    assert found["val_loss"] == pytest.approx(history.epochs[-1]["val_loss"], rel=1e-4)
    scored = est.predict(df, feature_cols="image").collect()
    weight = next(est.get_model().parameters()).item()
    for row in scored:
        pixels = Image.open(io.BytesIO(row["image"])).resize((8, 8), Image.Resampling.BILINEAR)
        assert row["prediction"][0] == pytest.approx(weight * np.asarray(pixels).mean() / 255, rel=1e-4)


def test_two_replicas_see_what_one_does(frame: Any) -> None:
    import torch

    df = image_column(frame, "image", [Resize(8, 8), RandomCrop(6, 6)], dtype="float32")
    found = []
    for workers in (1, 2):
        model = Mean()
        est = Estimator.from_torch(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=nn.MSELoss(),
            workers_per_node=workers,
            seed=5,
        )
        est.fit(df, epochs=2, batch_size=10, feature_cols="image", label_cols="y", verbose=0)
        found.append(next(est.get_model().parameters()).item())
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0] != 1


def test_sparks_own_images_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    for place, cell in enumerate(CELLS):
        (tmp_path / f"{place}.png").write_bytes(cell)
    df = image_column(spark.read.format("image").load(str(tmp_path)).orderBy("image.origin"), "image")
    est = estimator()
    scored = [row[0] for row in est.predict(df, feature_cols="image").select("prediction").collect()]
    assert [value[0] for value in scored] == pytest.approx(STACK.mean(axis=(1, 2, 3)), rel=1e-5)


def test_a_cell_that_is_no_image_ends_the_fit_with_a_sentence(frame: Any, spark: SparkSession) -> None:
    bad = frame.union(spark.createDataFrame([(bytearray(b"nonsense"), 1.0)], "image binary, y float"))
    df = image_column(bad, "image", [Resize(8, 8)], dtype="float32")
    with pytest.raises(SchemaError, match="nonsense"):
        estimator().fit(df, epochs=1, batch_size=10, feature_cols="image", label_cols="y", verbose=0)
    empty = frame.union(spark.createDataFrame([(None, 1.0)], "image binary, y float"))
    with pytest.raises(SchemaError, match="'image' has 1 null"):
        estimator().fit(
            image_column(empty, "image", [Resize(8, 8)]), epochs=1, batch_size=10, feature_cols="image", label_cols="y"
        )
