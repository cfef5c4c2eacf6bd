"""Encoded images in a DataFrame: decoded where the rows are, ahead of the training, with named transforms.

Draws its own pictures. ``--data-dir DIR`` takes CIFAR-10 instead: ``train.parquet`` and ``test.parquet``, each with the
columns ``image`` (JPEG or PNG bytes) and ``label``.
"""

import argparse
import io
from itertools import pairwise

import numpy as np
import torch
from PIL import Image, ImageDraw
from pyspark.sql import SparkSession
from torch import nn

from firesteel import Estimator, init_context, stop_context
from firesteel.data.image import Normalize, RandomCrop, RandomFlip, Resize, image_column
from firesteel.learn.metrics import Accuracy


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.around = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        return torch.relu(self.path(x) + self.around(x))


def small_resnet(config: dict) -> nn.Module:
    """Three blocks between a first convolution and a linear layer."""
    torch.manual_seed(1)
    widths = config["widths"]
    blocks = [Block(a, b, 1 if a == widths[0] else 2) for a, b in pairwise(widths)]
    first = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
    return nn.Sequential(first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def drawn(seed: int) -> tuple[bytearray, int]:
    """A JPEG of one of four shapes, in some colour and place."""
    random = np.random.default_rng(seed)
    label, size = seed % 4, int(random.integers(30, 40))
    dark, light = (tuple(random.integers(low, low + 90, 3).tolist()) for low in (0, 150))
    image = Image.new("RGB", (size, size), dark)
    x, y, half = random.integers((12, 12, 6), (18, 18, 9)).tolist()
    box, draw = (x - half, y - half, x + half, y + half), ImageDraw.Draw(image)
    (draw.rectangle, draw.ellipse, draw.line, draw.text)[label](*((box,) if label < 3 else ((x, y), "?")), fill=light)
    image.save(sink := io.BytesIO(), "JPEG")
    return bytearray(sink.getvalue()), label


def main() -> None:
    """Train, evaluate, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    init_context("local", cores=2)
    spark = SparkSession.builder.getOrCreate()
    if args.data_dir:
        train, test = (spark.read.parquet(f"{args.data_dir}/{name}.parquet") for name in ("train", "test"))
    else:
        pictures = map(drawn, range(500 if args.quick else 2000))
        train, test = spark.createDataFrame(pictures, "image binary, label int").randomSplit([0.8, 0.2], seed=1)
    looks = [Resize(32, 32), RandomCrop(32, 32, padding=4), RandomFlip(), Normalize((0.5,) * 3, (0.25,) * 3)]
    train, test = (image_column(df, "image", looks) for df in (train, test))
    estimator = Estimator.from_torch(
        model=small_resnet,
        optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=2e-3),
        loss=nn.CrossEntropyLoss(),
        metrics=[Accuracy()],
        workers_per_node=2,
        config={"widths": (8, 16, 32) if args.quick else (16, 32, 64)},
        seed=1,
    )
    columns = {"feature_cols": "image", "label_cols": "label"}
    history = estimator.fit(train, epochs=2 if args.quick else args.epochs, batch_size=128, **columns)
    print(history.epochs[-1])
    print(f"accuracy {estimator.evaluate(test, **columns)['Accuracy']:.4f}")
    estimator.predict(test, feature_cols="image").select("label", "prediction").show(3)
    stop_context()


if __name__ == "__main__":
    main()
