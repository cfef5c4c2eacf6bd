"""sparktorch's Spark ML stage, synchronous: one step of every iteration on rows drawn from each partition."""

import sys

import torch
import torch.optim.adam
import torch.optim.sgd
from turn import WORKERS, Turn, torch_model

# It (and dill, which it pickles with) looks for these modules as attributes, which torch no longer sets.
torch.optim.adam = sys.modules["torch.optim.adam"]
torch.optim.sgd = sys.modules["torch.optim.sgd"]

from pyspark.ml.functions import array_to_vector  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql.functions import col  # noqa: E402
from sparktorch import SparkTorch, serialize_torch_obj  # noqa: E402


def main():
    turn = Turn()
    spark = SparkSession.builder.master(f"local[{WORKERS}]").config("spark.driver.memory", "2g").getOrCreate()
    read = spark.read.parquet(turn.parquet)
    data = read.select(array_to_vector(col("features")).alias("features"), col("label").cast("double").alias("label"))
    rows = data.count()

    def fit(epochs):
        model = torch_model()
        program = serialize_torch_obj(
            model=model, criterion=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, lr=0.01
        )
        stage = SparkTorch(
            inputCol="features",
            labelCol="label",
            predictionCol="prediction",
            torchObj=program,
            iters=epochs * rows // turn.batch,
            miniBatch=turn.batch // WORKERS,
            partitions=WORKERS,
            mode="synchronous",
            verbose=0,
        )
        stage.fit(data)

    turn.measure(fit, rows)
    spark.stop()


if __name__ == "__main__":
    main()
