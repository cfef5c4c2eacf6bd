"""A client of Spark Connect that uses stages of the pipeline door; run by ``test_pipeline_connect``."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from firesteel import init_context
from firesteel.core.errors import UnsupportedError
from firesteel.pipeline import DLEstimator, DLModel, SparkAsyncDL, SparkAsyncDLModel, build_graph
from frontends import graphs


def main(folder: str) -> None:
    spark = init_context("connect", remote="local[2]")  # ours, for it finds Java where the machine has none
    df = spark.createDataFrame([(float(i), 2.0 * i) for i in range(8)], "features double, label double")
    graph = build_graph(graphs.line)
    scoring = SparkAsyncDLModel(inputCol="features", modelJson=graph, modelWeights="[3.0]", tfOutput="out:0")
    assert [row.predicted for row in scoring.transform(df).collect()] == [3.0 * i for i in range(8)]
    scoring.write().overwrite().save(f"{folder}/graph")
    again = SparkAsyncDLModel.load(f"{folder}/graph")
    assert [row.predicted for row in again.transform(df).collect()] == [3.0 * i for i in range(8)]

    for stage in (
        SparkAsyncDL(inputCol="features", tensorflowGraph=graph, tfOutput="out:0"),
        DLEstimator(nn.Linear(1, 1), loss=nn.MSELoss(), sync="hogwild"),
    ):
        with pytest.raises(UnsupportedError, match=r"Spark Connect.*, or DLEstimator\(sync='allreduce'\)"):
            stage.fit(df)

    line = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(line.weight)
    model = DLEstimator(
        line, loss=nn.MSELoss(), optimizer="SGD", learningRate=0.01, batchSize=8, epochs=3, validationFraction=0.25
    ).fit(df)
    assert len(model.history["val_loss"]) == 3
    assert float(model.model.weight.detach()) > 0
    model.write().overwrite().save(f"{folder}/line")
    found = [row.prediction for row in DLModel.load(f"{folder}/line").transform(df).collect()]
    with torch.inference_mode():
        wanted = model.model(torch.arange(8.0)[:, None]).numpy()[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    spark.stop()
    print("all of it")


if __name__ == "__main__":
    main(sys.argv[1])
