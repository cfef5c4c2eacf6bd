"""What one would write by hand for Keras: a compiled gradient step over arrays in memory, gloo between two processes.

Prints one line of JSON: the wall time at which each epoch ended, on rank 0.
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
    import torch
    import torch.distributed as dist
    from benchmarks.keras_models import mlp

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    features = np.load(f"{options.data}/features.npy")[rank::world].copy()
    labels = np.load(f"{options.data}/labels.npy")[rank::world].copy()
    model = mlp()
    optimizer, loss_of = model.optimizer, model.loss

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.get(loss_of)(y, model(x, training=True)))
        found = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return loss, tf.concat([tf.reshape(each, [-1]) for each in found], 0)

    sizes = [int(np.prod(variable.shape)) for variable in model.trainable_variables]

    @tf.function
    def update(flat):
        parts = tf.split(flat, sizes)
        shaped = [tf.reshape(p, v.shape) for p, v in zip(parts, model.trainable_variables, strict=True)]
        optimizer.apply_gradients(zip(shaped, model.trainable_variables, strict=True))

    ends, losses = [], []
    for _ in range(options.epochs):
        order = np.random.permutation(len(features))
        for rows in np.array_split(order, -(-len(order) // (options.batch // world))):
            value, flat = gradients(tf.constant(features[rows]), tf.constant(labels[rows]))
            whole = torch.from_numpy(flat.numpy() / world)
            dist.all_reduce(whole)
            update(tf.constant(whole.numpy()))
            losses.append(float(value))
        ends.append(time.perf_counter())
    if rank == 0:
        print(json.dumps({"ends": ends, "last_loss": losses[-1]}), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads abort in the interpreter's teardown in about one run of six


if __name__ == "__main__":
    main()
