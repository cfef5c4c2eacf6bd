"""A torch model as a stage of Spark ML: tuned by a CrossValidator, read by Spark's evaluators, saved and loaded."""

import sys
import tempfile

from pyspark.ml import Pipeline
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import MinMaxScaler, VectorAssembler
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from torch import nn

from firesteel import init_context, stop_context
from firesteel.pipeline import DLEstimator

is_quick = "--quick" in sys.argv
init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()
pixels, labels = load_digits(return_X_y=True)
names = [f"p{place}" for place in range(64)]
rows = [(*map(float, image), float(label)) for image, label in zip(pixels, labels, strict=True)]
train, test = spark.createDataFrame(rows, [*names, "label"]).randomSplit([0.8, 0.2], seed=1)

digits = DLEstimator(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    loss=nn.CrossEntropyLoss(),
    optimizer="Adam",
    featuresCol="scaled",
    task="multiclass",
    fromLogits=True,  # the model ends before its softmax
    probabilityCol="probability",
    epochs=2 if is_quick else 10,
)
pipeline = Pipeline(
    stages=[
        VectorAssembler(inputCols=names, outputCol="features"),
        MinMaxScaler(inputCol="features", outputCol="scaled"),
        digits,
    ]
)
accuracy = MulticlassClassificationEvaluator(metricName="accuracy")
tuner = CrossValidator(
    estimator=pipeline,
    estimatorParamMaps=ParamGridBuilder().addGrid(digits.learningRate, [1e-4, 1e-2]).build(),
    evaluator=accuracy,
    numFolds=2,
    parallelism=2,  # two trials at a time
)
best = tuner.fit(train)
print("accuracy by learning rate:", [round(float(value), 3) for value in best.avgMetrics])

with tempfile.TemporaryDirectory() as folder:
    best.write().overwrite().save(folder)
    print(f"on held out rows: {accuracy.evaluate(CrossValidatorModel.load(folder).transform(test)):.3f}")
stop_context()
