"""What one would write by hand for TensorFlow: a compiled step over arrays in memory, TensorFlow's own collectives.

Run once for each rank, with ``TF_CONFIG``. Rank 0 prints one line of JSON: the wall time at which each epoch ended.
"""

import argparse
import json
import os
import sys
import time

import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder with features.npy and labels.npy")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of a step, over all ranks")
    options = parser.parse_args()

    import tensorflow as tf
    from benchmarks.graphs import RATE, initial, loss_of

    tf.config.threading.set_intra_op_parallelism_threads(1)
    config = json.loads(os.environ["TF_CONFIG"])
    rank, world = config["task"]["index"], len(config["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    features = np.load(f"{options.data}/features.npy")[rank::world].copy()
    labels = np.load(f"{options.data}/labels.npy")[rank::world].copy()
    weights = [tf.Variable(value) for value in initial()]
    sizes = [int(np.prod(weight.shape)) for weight in weights]

    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, weights)
        found = tape.gradient(loss, weights)
        flat = tf.concat([tf.reshape(each, [-1]) for each in found], 0)
        agreed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, flat)
        for weight, part in zip(weights, tf.split(agreed, sizes), strict=True):
            weight.assign_sub(RATE * tf.reshape(part, weight.shape))
        return loss

    @tf.function(reduce_retracing=True)
    def step(x, y):
        return strategy.run(replica, args=(x, y))

    ends, last = [], None
    for _ in range(options.epochs):
        order = np.random.permutation(len(features))
        for rows in np.array_split(order, -(-len(order) // (options.batch // world))):
            last = float(step(tf.constant(features[rows]), tf.constant(labels[rows])))
        ends.append(time.perf_counter())
    if rank == 0:
        print(json.dumps({"ends": ends, "last_loss": last}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the other rank may be gone already, and TensorFlow would wait for it


if __name__ == "__main__":
    main()
