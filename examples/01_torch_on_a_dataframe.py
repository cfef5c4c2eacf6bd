"""Train a torch model on a Spark DataFrame with two replicas, then score the DataFrame."""

import torch
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from torch import nn

from firesteel import Estimator, init_context, stop_context
from firesteel.learn.metrics import Accuracy

init_context("local", cores=2)  # joins a Spark that is running, else starts one here
spark = SparkSession.builder.getOrCreate()
images, labels = load_digits(return_X_y=True)
rows = [((image / 16).tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
digits = spark.createDataFrame(rows, "pixels array<float>, label long")
train, test = digits.randomSplit([0.8, 0.2], seed=1)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
estimator = Estimator.from_torch(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
    loss=nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    workers_per_node=2,  # two replicas
)
estimator.fit(train, epochs=10, batch_size=32, feature_cols=["pixels"], label_cols=["label"])
print(estimator.evaluate(test, feature_cols=["pixels"], label_cols=["label"]))

scored = estimator.predict(test, feature_cols=["pixels"])  # the same rows and columns, and "prediction"
scored.select("label", "prediction").show(5)
stop_context()
