"""Firesteel, as one of the peers: a cold process like theirs."""

import torch
from torch import nn
from turn import WORKERS, Turn, torch_model

from firesteel import Estimator, init_context, stop_context


def main():
    turn = Turn()
    init_context("local", cores=WORKERS, memory="2g")
    from pyspark.sql import SparkSession

    data = SparkSession.builder.getOrCreate().read.parquet(turn.parquet)

    def fit(epochs):
        model = torch_model()
        estimator = Estimator.from_torch(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loss=nn.CrossEntropyLoss(),
            backend="torch_distributed",
            workers_per_node=WORKERS,
        )
        columns = {"feature_cols": "features", "label_cols": "label"}
        estimator.fit(data, epochs=epochs, batch_size=turn.batch, verbose=0, **columns)

    turn.measure(fit, data.count())
    stop_context()


if __name__ == "__main__":
    main()
