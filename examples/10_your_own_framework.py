"""A framework that Firesteel does not know: softmax regression in NumPy, checked, then trained on two replicas.

The framework is ``own_framework/softmax_bench.py``. A package registers its own in pyproject.toml, under
[project.entry-points."firesteel.frameworks"]; here a folder stands in for one that was installed.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from firesteel import Estimator, init_context, stop_context
from firesteel.extend import batch_of, check_framework
from firesteel.learn.metrics import Accuracy

installed = Path(tempfile.mkdtemp(), "softmax_bench-1.0.dist-info")
installed.mkdir()
(installed / "METADATA").write_text("Metadata-Version: 2.1\nName: softmax-bench\nVersion: 1.0\n")
(installed / "entry_points.txt").write_text("[firesteel.frameworks]\nsoftmax = softmax_bench:bench\n")
sys.path[:0] = [str(installed.parent), str(Path(__file__).parent / "own_framework")]

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
model = {"inputs": 64, "classes": 10}

from softmax_bench import bench  # noqa: E402

check_framework(bench, bench.capture(model), batch_of(images[:32], labels[:32]))
print("the bench keeps the contract")

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()
rows = [(image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
digits = spark.createDataFrame(rows, "pixels array<float>, label long")
train, test = digits.randomSplit([0.8, 0.2], seed=1)
estimator = Estimator.from_framework("softmax", model, rate=0.2, metrics=[Accuracy()], workers_per_node=2)
estimator.fit(train, epochs=10, batch_size=32, feature_cols="pixels", label_cols="label")
found = estimator.evaluate(test, feature_cols="pixels", label_cols="label")
print(f"accuracy {found['Accuracy']:.3f}")
estimator.predict(test, feature_cols="pixels").select("label", "prediction").show(5)
assert found["Accuracy"] > 0.9
stop_context()
