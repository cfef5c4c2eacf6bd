"""A bench: softmax regression in NumPy as a framework of Firesteel's. ``10_your_own_framework.py`` uses it."""

import numpy as np

from firesteel.extend import FlatReplica, Program


class Softmax(FlatReplica):
    """Weights of (inputs + 1) x classes, as one flat array; SGD with momentum."""

    def __init__(self, content):
        self.classes, self.learning_rate = content["classes"], content["rate"]
        super().__init__(np.zeros((content["inputs"] + 1) * self.classes))
        self.slots["momentum"] = np.zeros_like(self.values)

    def _scores(self, batch):
        rows = np.hstack([batch["x0"], np.ones((len(batch["x0"]), 1), np.float32)])
        scores = rows @ self.values.reshape(-1, self.classes)
        return rows, scores - scores.max(1, keepdims=True)

    def forward(self, batch):
        return {"prediction": self._scores(batch)[1]}

    def loss(self, batch):
        rows, scores = self._scores(batch)
        labels = batch["y0"].astype(int).reshape(-1)
        odds = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        value = -np.log(odds[np.arange(len(labels)), labels]).mean()
        odds[np.arange(len(labels)), labels] -= 1
        return float(value), (rows.T @ odds / len(labels)).reshape(-1)

    def apply(self, gradient, begin, end):
        speed = self.slots["momentum"]
        speed[begin:end] = 0.9 * speed[begin:end] + gradient[begin:end]
        self.values[begin:end] -= self.learning_rate * speed[begin:end]


class Bench:
    """How models of this framework are captured on the driver, and brought to life in a process."""

    name, packages = "softmax", ()

    def accepts(self, model):
        return isinstance(model, dict) and {"inputs", "classes"} <= set(model)

    def capture(self, model, rate=0.1):
        return Program(self.name, {**model, "rate": rate})

    def replica(self, program, device, threads):
        made = Softmax(program.content)
        if program.state is not None:
            made.load(program.state)
        return made


bench = Bench()
