"""The Orca document's section 4, as it stands there; only imports and the data are ours."""

from __future__ import annotations

import pytest

from needs import need_mxnet

mx = need_mxnet()

from mxnet import gluon  # noqa: E402

from firesteel.learn.mxnet import Estimator, create_config  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("spark")]


class LeNet(gluon.Block):
    def __init__(self) -> None:
        super().__init__()
        self.conv = gluon.nn.Conv2D(4, kernel_size=5, strides=3)
        self.out = gluon.nn.Dense(10)

    def forward(self, x):
        return self.out(mx.nd.relu(self.conv(x)))


def test_mxnet_estimator() -> None:
    def get_model(config):
        net = LeNet()  # a mxnet.gluon.Block
        return net  # noqa: RET504 - as the document has it

    def get_loss(config):
        return gluon.loss.SoftmaxCrossEntropyLoss()

    config = create_config(log_interval=2, optimizer="adam", optimizer_params={"learning_rate": 0.02})
    est = Estimator.from_mxnet(config=config, model_creator=get_model, loss_creator=get_loss, num_workers=2)

    import numpy as np

    data_ndarray = np.random.default_rng(0).random((50, 1, 28, 28))
    label_ndarray = np.arange(50) % 10

    def get_train_data_iter(config, kv):
        train = mx.io.NDArrayIter(data_ndarray, label_ndarray, batch_size=config["batch_size"], shuffle=True)
        return train  # noqa: RET504

    history = est.fit(get_train_data_iter, epochs=2)

    assert [(record["epoch"], record["batch_count"], record["num_samples"]) for record in history] == [
        (1, 2, 50),
        (2, 2, 50),
    ]
    assert est.get_model().conv.weight.shape == (4, 1, 5, 5)
    assert est.predict(data_ndarray[:3]).shape == (3, 10)
