"""From a DataFrame to a prediction column: train, evaluate, save, load again, score.

A small convolutional network learns handwritten digits on two replicas inside an embedded Spark. The data are the
digits that come with scikit-learn or, with --data-dir, the four MNIST idx.gz files of a folder. Ends with status 1
where the test accuracy stays below what this model reaches (--quick: one short pass, no such demand).

make demo        make demo DEMO_ARGS="--data-dir path/to/mnist"
"""

import argparse
import gzip
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from firesteel import Estimator, init_context, stop_context
from firesteel.learn.metrics import Accuracy

COLUMNS = {"feature_cols": ["pixels"], "label_cols": ["label"]}


def make_model(config):
    from torch import nn

    side, channels = config["side"], config["channels"]
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * (side // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def make_optimizer(model, config):
    import torch

    return torch.optim.Adam(model.parameters(), lr=config["lr"])


def make_loss(config):
    from torch import nn

    return nn.CrossEntropyLoss()


def make_estimator(config):
    return Estimator.from_torch(
        model=make_model,
        optimizer=make_optimizer,
        loss=make_loss,
        metrics=[Accuracy()],
        config=config,
        workers_per_node=2,
        seed=1,
    )


def read_idx(path):
    """The array in a gzipped idx file: two zero bytes, a type, the number of axes, their lengths, the values."""
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, ">i4", count=axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def load(data_dir):
    """``(train images, test images, train labels, test labels)``; images are rows of numbers from 0 to 1."""
    if data_dir is None:
        images, labels = load_digits(return_X_y=True)
        images = (images / 16).astype(np.float32)
        return train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    images = [read_idx(data_dir / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k")]
    labels = [read_idx(data_dir / f"{part}-labels-idx1-ubyte.gz") for part in ("train", "t10k")]
    return *(np.divide(i.reshape(len(i), -1), 255, dtype=np.float32) for i in images), *labels


def frame(spark, folder, images, labels, parts=4):
    """The rows as Parquet files, read by Spark: a column ``pixels`` of type array<float>, and ``label``."""
    folder.mkdir()
    for part, rows in enumerate(np.array_split(np.arange(len(images)), parts)):
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * images.shape[1]
        pixels = pa.ListArray.from_arrays(pa.array(offsets), pa.array(images[rows].ravel()))
        pq.write_table(pa.table({"pixels": pixels, "label": labels[rows].astype(np.int64)}), folder / f"{part}.parquet")
    return spark.read.parquet(str(folder))


def classes(scored):
    """The most likely digit of each row, from the prediction column."""
    vectors = scored.select("prediction").toPandas()["prediction"]
    return np.stack([vector.toArray() for vector in vectors]).argmax(axis=1)


def run(options, work):
    """Do it all; returns the accuracy on the test rows."""
    spark = SparkSession.builder.getOrCreate()
    train_images, test_images, train_labels, test_labels = load(options.data_dir)
    if options.quick:
        train_images, train_labels = train_images[:600], train_labels[:600]
    train = frame(spark, work / "train", train_images, train_labels)
    test = frame(spark, work / "test", test_images, test_labels)
    print(f"{len(train_images)} rows to learn from, {len(test_images)} to test with, two replicas")

    # Small images leave little to look at after two poolings: they need more channels, and cost little.
    side = int(np.sqrt(train_images.shape[1]))
    config = {"side": side, "channels": 32 if side < 16 else 8, "lr": 2e-3}
    batch_size = 32 if side < 16 else 64
    estimator = make_estimator(config)
    estimator.fit(train, epochs=options.epochs, batch_size=batch_size, validation_data=test, **COLUMNS)
    accuracy = estimator.evaluate(test, **COLUMNS)["Accuracy"]
    print(f"test accuracy: {accuracy:.2%}")

    path = (options.out or work) / "digits.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    estimator.save(str(path))
    reloaded = make_estimator(config)
    reloaded.load(str(path))
    print(f"saved to {path} ({path.stat().st_size:,} bytes) and loaded into a new estimator")

    before = classes(estimator.predict(test, feature_cols=["pixels"]))
    after = classes(reloaded.predict(test, feature_cols=["pixels"]))
    print(f"scored {len(after)} rows: {np.mean(before == after):.2%} equal before and after")
    return accuracy


def main():
    parser = argparse.ArgumentParser(description="Train, evaluate, save, load and score a digit classifier.")
    parser.add_argument("--data-dir", type=Path, help="folder with the MNIST idx.gz files (default: sklearn's digits)")
    parser.add_argument("--epochs", type=int, help="default: 15 on the digits, 4 on MNIST")
    parser.add_argument("--out", type=Path, help="folder to keep the model in (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="few rows, two epochs, any accuracy will do")
    options = parser.parse_args()
    if options.epochs is None:
        options.epochs = 2 if options.quick else 4 if options.data_dir else 15
    wanted = 0.0 if options.quick else 0.98 if options.data_dir else 0.95

    start = time.monotonic()
    init_context("local", cores=2)
    with tempfile.TemporaryDirectory(prefix="firesteel-demo-") as work:
        accuracy = run(options, Path(work))
    stop_context()
    print(f"{time.monotonic() - start:.0f} seconds in all")
    if accuracy < wanted:
        sys.exit(f"test accuracy {accuracy:.2%} is below {wanted:.0%}")


if __name__ == "__main__":
    main()
