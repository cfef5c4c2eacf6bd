"""Train and score through Spark Connect: the program holds no Spark of its own, only a session on a server.

``local[2]`` starts a server here, for trying out; elsewhere it is the server's address, ``remote="sc://host:15002"``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from firesteel import Estimator, init_context, stop_context
from firesteel.learn.metrics import Accuracy

spark = init_context("connect", remote="local[2]")
images, labels = load_digits(return_X_y=True)
rows = [((image / 16).tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
digits = spark.createDataFrame(rows, "pixels array<float>, label long").repartition(
    2
)  # whole partitions go to replicas
train, test = digits.randomSplit([0.8, 0.2], seed=1)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
estimator = Estimator.from_torch(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
    loss=nn.CrossEntropyLoss(),
    metrics=[Accuracy()],
    workers_per_node=2,
)
columns = {"feature_cols": ["pixels"], "label_cols": ["label"]}
history = estimator.fit(train, epochs=5, batch_size=32, validation_data=test, **columns)
print(history.to_pandas()[["epoch", "train_loss", "val_loss", "val_Accuracy"]])
print(estimator.evaluate(test, **columns))

scored = estimator.predict(test, feature_cols=["pixels"])  # lazy: it runs on the server when somebody looks
scored.select("label", "prediction").show(5)
stop_context()
