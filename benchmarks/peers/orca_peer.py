"""Orca's torch estimator with ``backend="spark"``: what BigDL left behind, on Spark 3.5."""

from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.pytorch import Estimator
from turn import WORKERS, Turn, torch_model


def make_model(config):
    return torch_model()


def make_optimizer(model, config):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.01)


def main():
    turn = Turn()
    init_orca_context(cluster_mode="local", cores=WORKERS, memory="2g")
    from pyspark.sql import SparkSession
    from torch import nn

    data = SparkSession.builder.getOrCreate().read.parquet(turn.parquet)

    def fit(epochs):
        estimator = Estimator.from_torch(
            model=make_model,
            optimizer=make_optimizer,
            loss=nn.CrossEntropyLoss(),
            backend="spark",
            workers_per_node=WORKERS,
        )
        columns = {"feature_cols": ["features"], "label_cols": ["label"]}
        estimator.fit(data, epochs=epochs, batch_size=turn.batch, **columns)

    turn.measure(fit, data.count())
    stop_orca_context()


if __name__ == "__main__":
    main()
