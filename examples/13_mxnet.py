"""Train a Gluon model on two workers and two parameter servers, then score with it."""

# Needs mxnet. (pip install 'firesteel[mxnet]' && pip install --no-deps mxnet==1.9.1)
from firesteel.learn.mxnet import Estimator, create_config  # before mxnet itself, which NumPy 2 would not import

# isort: split
import mxnet as mx
import numpy as np
from mxnet import gluon
from sklearn.datasets import load_digits

from firesteel import init_context, stop_context

init_context("local", cores=2)
images, labels = load_digits(return_X_y=True)
images = images / 16
train, test = slice(0, 1500), slice(1500, None)


def make_model(config):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(10))
    net.hybridize()
    return net  # not initialized: that is done where it trains


def make_data(config, kv):
    # All rows on every worker: each takes its share of a batch. A creator that asks for kv.rank yields its own rows.
    return mx.io.NDArrayIter(images[train], labels[train], batch_size=config["batch_size"], shuffle=True)


estimator = Estimator.from_mxnet(
    config=create_config("adam", {"learning_rate": 5e-3}, log_interval=10, seed=1),
    model_creator=make_model,
    loss_creator=lambda config: gluon.loss.SoftmaxCrossEntropyLoss(),
    eval_metrics_creator=lambda config: mx.metric.Accuracy(),
    validation_metrics_creator=lambda config: ["acc", mx.metric.TopKAccuracy(3)],
    num_workers=2,
    num_servers=2,
)
for record in estimator.fit(make_data, epochs=6, batch_size=64):
    print(f"epoch {record['epoch']}: loss {record['train_loss']:.3f}, accuracy {record['accuracy']:.3f}")
print(estimator.evaluate((images[test], labels[test])))
print(np.argmax(estimator.predict(images[test][:10]), axis=1), labels[test][:10])
stop_context()
