"""Creators, a schedule, validation data and early stopping, with replicas that agree by all-reduce (DDP).

A creator is a function that makes a part where it is needed: in each replica, from the same ``config``. Use creators
when a model is large, or when making it on the driver is not wanted.

python examples/02_torch_ddp.py [--quick]
"""

import sys

import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from firesteel import Estimator, init_context, stop_context
from firesteel.learn.metrics import AUC, BinaryAccuracy
from firesteel.learn.pytorch.callbacks import EarlyStopping


def make_model(config):
    from torch import nn

    width = config["width"]
    return nn.Sequential(
        nn.Linear(config["features"], width),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(width, 1),
        nn.Sigmoid(),
    )


def make_optimizer(model, config):
    import torch

    return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


def make_scheduler(optimizer, config):
    import torch

    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=config["decay"])


def make_loss(config):
    from torch import nn

    return nn.BCELoss()


def frame(spark, x, y):
    rows = [(row.tolist(), float(label)) for row, label in zip(x, y, strict=True)]
    return spark.createDataFrame(rows, "features array<float>, label float").repartition(3)


def main():
    epochs = 2 if "--quick" in sys.argv else 40
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x).astype(np.float32)
    x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)

    init_context("local", cores=2)
    spark = SparkSession.builder.getOrCreate()
    train, validation = frame(spark, x_train, y_train), frame(spark, x_val, y_val)
    columns = {"feature_cols": ["features"], "label_cols": ["label"]}

    estimator = Estimator.from_torch(
        model=make_model,
        optimizer=make_optimizer,
        loss=make_loss,
        metrics=[BinaryAccuracy(), AUC()],
        scheduler_creator=make_scheduler,
        scheduler_step_freq="epoch",
        config={"features": x.shape[1], "width": 32, "lr": 0.02, "decay": 0.95},
        backend="torch_distributed",
        workers_per_node=2,
        seed=7,
    )
    history = estimator.fit(
        train,
        epochs=epochs,
        batch_size=32,  # of both replicas together
        validation_data=validation,
        early_stopping=EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True),
        **columns,
    )
    for record in history.epochs:
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in record.items()})
    print(estimator.evaluate(validation, **columns))
    stop_context()


if __name__ == "__main__":
    main()
