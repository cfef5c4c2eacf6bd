"""Two torch replicas that agree through Horovod. Spark starts them: no horovodrun, no ssh."""

# Needs horovod. (scripts/build-horovod makes a wheel of it)
import torch
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from torch import nn

from firesteel import Estimator, init_context, stop_context
from firesteel.learn.metrics import Accuracy

init_context("local", cores=2)
spark = SparkSession.builder.getOrCreate()
images, labels = load_digits(return_X_y=True)
rows = [((image / 16).tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
digits = spark.createDataFrame(rows, "pixels array<float>, label long")
train, test = digits.randomSplit([0.8, 0.2], seed=1)


def make_model(config):
    import horovod.torch as hvd  # initialized already

    print(f"rank {hvd.rank()} of {hvd.size()}")
    return nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10))


def make_optimizer(model, config):
    return torch.optim.Adam(model.parameters(), lr=config["lr"])  # plain: gradients are agreed on before it sees them


estimator = Estimator.from_torch(
    model=make_model,
    optimizer=make_optimizer,
    loss=nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    config={"width": 128, "lr": 2e-3},
    backend="horovod",
    workers_per_node=2,
)
estimator.fit(train, epochs=5, batch_size=64, feature_cols="pixels", label_cols="label")
print(estimator.evaluate(test, feature_cols="pixels", label_cols="label"))
stop_context()
