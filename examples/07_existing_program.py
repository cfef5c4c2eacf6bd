"""An existing Keras program as the nodes of a cluster, fed from a DataFrame; then other nodes score with its model.

``train_fun`` is the program. What is new in it is the feed, and ``distribute``, which lets ``fit`` average over nodes.

python examples/07_existing_program.py [--quick]
"""

import sys
import tempfile

import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from firesteel import TFCluster, init_context, stop_context


def train_fun(args, ctx):
    import keras

    from firesteel.tfcluster import distribute

    def rows():
        feed = ctx.get_data_feed(input_mapping={"image": "x", "label": "y"})
        while not feed.should_stop():
            batch = feed.next_batch(args["batch_size"])
            if batch["x"]:
                yield np.array(batch["x"], np.float32) / 16, np.array(batch["y"])

    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = distribute(model).fit(rows(), epochs=1, verbose=0)  # how often the data comes is the driver's to say
    if ctx.job_name == "chief":
        print(f"trained together: loss {history.history['loss'][0]:.3f}", flush=True)
        model.save(args["path"])


def score_fun(args, ctx):
    import keras

    model = keras.models.load_model(args["path"])
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        images = feed.next_batch(100)
        if images:
            feed.batch_results(model.predict(np.array(images, np.float32) / 16, verbose=0).argmax(1).tolist())


def main():
    epochs = 2 if "--quick" in sys.argv else 20
    images, labels = load_digits(return_X_y=True)
    sc = init_context("local", cores=2)
    spark = SparkSession.builder.getOrCreate()
    pairs = [(image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
    df = spark.createDataFrame(pairs, "image array<float>, label int").repartition(4).cache()

    with tempfile.TemporaryDirectory() as folder:
        args = {"batch_size": 32, "path": f"{folder}/digits.keras"}
        options = {"input_mode": TFCluster.InputMode.SPARK, "master_node": "chief"}
        with TFCluster.run(sc, train_fun, args, 2, 0, **options) as cluster:
            cluster.train(df.select("image", "label"), num_epochs=epochs)
        with TFCluster.run(sc, score_fun, args, 2, 0, **options) as cluster:
            found = cluster.inference(df.rdd.map(lambda row: row.image)).collect()
    right = np.mean(np.array(found) == np.array([row.label for row in df.collect()]))
    print(f"{len(found)} digits scored by the nodes, {right:.1%} right")
    stop_context()


if __name__ == "__main__":
    main()
