"""A model written with BigDL's layers: trained by BigDL's own Optimizer, then scored as an Estimator scores.

Labels count from 1, axes too; the arithmetic is BigDL's, the work is done by torch on Spark's tasks.
"""

import sys
import tempfile

import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from firesteel import Estimator, init_context, stop_context
from firesteel.bigdl.nn.criterion import ClassNLLCriterion
from firesteel.bigdl.nn.layer import (
    Dropout,
    Linear,
    LogSoftMax,
    Model,
    ReLU,
    Reshape,
    Sequential,
    SpatialConvolution,
    SpatialMaxPooling,
)
from firesteel.bigdl.optim.optimizer import (
    SGD,
    EveryEpoch,
    L2Regularizer,
    MaxEpoch,
    Optimizer,
    Poly,
    Top1Accuracy,
    TrainSummary,
)
from firesteel.bigdl.util.common import Sample


def lenet() -> Sequential:
    """Images of 8 × 8 in, ten log-probabilities out."""
    return (
        Sequential()
        .add(Reshape([1, 8, 8]))
        .add(SpatialConvolution(1, 16, 3, 3, pad_w=-1, pad_h=-1))
        .add(ReLU())
        .add(SpatialMaxPooling(2, 2, 2, 2))
        .add(Reshape([16 * 4 * 4]))
        .add(Dropout(0.2))
        .add(Linear(16 * 4 * 4, 10, wRegularizer=L2Regularizer(1e-4)))
        .add(LogSoftMax())
    )


def main() -> None:
    epochs = 3 if "--quick" in sys.argv else 15
    sc = init_context("local", cores=2)
    spark = SparkSession.builder.getOrCreate()
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32), digits.target + 1  # labels from 1
    train, test = slice(0, 1500), slice(1500, None)
    rows = [Sample.from_ndarray(image, label) for image, label in zip(images[train], labels[train], strict=True)]

    with tempfile.TemporaryDirectory() as folder:
        steps = epochs * -(-1500 // 50)
        method = SGD(0.2, momentum=0.9, dampening=0.0, leaningrate_schedule=Poly(1.0, steps))
        summary = TrainSummary(folder, "lenet")
        optimizer = Optimizer(
            lenet(), sc.parallelize(rows, 4), ClassNLLCriterion(), MaxEpoch(epochs), 50, method, replicas=2
        )
        optimizer.set_validation(100, images[test], labels[test], EveryEpoch(), [Top1Accuracy()])
        optimizer.set_train_summary(summary)
        model = optimizer.optimize()
        losses = [value for _, value, _ in summary.read_scalar("Loss")]
        print(f"{len(losses)} updates, the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
        (accuracy,) = model.evaluate((images[test], labels[test]), 100, [Top1Accuracy()])
        print(f"{accuracy.method} {accuracy.result:.3f} on {accuracy.total_num} images")

        model.saveModel(f"{folder}/lenet.json")
        estimator = Estimator.from_bigdl(model=Model.loadModel(f"{folder}/lenet.json"))
        df = spark.createDataFrame([(image.tolist(),) for image in images[test][:5]], "features array<array<float>>")
        for row, label in zip(estimator.predict(df).collect(), labels[test], strict=False):
            print(f"class {np.argmax(row.prediction) + 1} where the label is {label}")
    stop_context()


if __name__ == "__main__":
    main()
