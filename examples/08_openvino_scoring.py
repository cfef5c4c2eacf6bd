"""Train in torch, export to OpenVINO, and score a DataFrame with it: no torch in the tasks."""

import tempfile

import torch
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from torch import nn

from firesteel import Estimator, init_context, stop_context

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
rows = [(image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
digits = spark.createDataFrame(rows, "pixels array<float>, label long")
train, test = digits.randomSplit([0.8, 0.2], seed=1)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10), nn.Softmax(dim=1))
trainer = Estimator.from_torch(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
    loss=lambda output, target: nn.functional.nll_loss(output.log(), target),
)
trainer.fit(train, epochs=8, batch_size=64, feature_cols="pixels", label_cols="label")

with tempfile.TemporaryDirectory() as folder:
    # Exact, and with int8 weights and activations, calibrated on 200 rows.
    for path, options in ((f"{folder}/digits.xml", {}), (f"{folder}/int8.xml", {"int8": images[:200]})):
        scorer = Estimator.from_openvino(model_path=trainer.to_openvino(path, **options))
        scored = scorer.predict(test, feature_cols="pixels", batch_size=64)  # lazy; the schema comes from the model
        found = [(row["label"], row["prediction"].argmax()) for row in scored.collect()]
        accuracy = sum(label == guess for label, guess in found) / len(found)
        print(f"{'int8' if options else 'float'}: {accuracy:.3f} of {len(found)} digits are right")
stop_context()
