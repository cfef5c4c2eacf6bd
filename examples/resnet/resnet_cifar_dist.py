"""ResNet-56 on CIFAR-10 with TensorFlow's own strategies: alone, in several shells, or as nodes of a cluster.

One program, whole in this file. ``run(flags)`` trains and evaluates; ``main_fun(argv, ctx)`` is the same for a cluster:
it parses ``argv`` and calls ``run``. Nothing here knows of Spark.

Keras 3 builds the model and updates it, but its ``fit`` does not run under ``MultiWorkerMirroredStrategy``. So the loop
is written out: it is the same for every strategy, and a last batch that is not full is filled up with images of weight
zero, so that every image counts once in an epoch and no worker waits for one that has run out.
"""

import glob
import hashlib
import json
import math
import os
import time

import numpy as np
from absl import flags

HEIGHT, WIDTH, CHANNELS, CLASSES = 32, 32, 3, 10
RECORD_BYTES = 1 + HEIGHT * WIDTH * CHANNELS
WEIGHT_DECAY = 2e-4
BASE_RATE, BASE_BATCH = 0.1, 128
RATE_SCHEDULE = ((1.0, 0), (0.1, 91), (0.01, 136), (0.001, 182))  # factor, from this epoch on
STRATEGIES = ("off", "one_device", "mirrored", "multi_worker_mirrored")
SYNTHETIC_IMAGES = 1280

flags.DEFINE_string("data_dir", None, "folder of CIFAR-10: data_batch_*.bin and test_batch.bin, or train/test .parquet")
flags.DEFINE_integer("num_gpus", 0, "GPUs of this machine to train on; 0 is the CPU")
flags.DEFINE_enum("distribution_strategy", "off", STRATEGIES, "how several devices or machines work together")
flags.DEFINE_alias("ds", "distribution_strategy")
flags.DEFINE_integer("train_epochs", 182, "passes over the training images")
flags.DEFINE_alias("epochs", "train_epochs")
flags.DEFINE_integer("resnet_size", 56, "layers, 6 n + 2: 56, or fewer to try things out", lower_bound=8)
flags.DEFINE_integer("batch_size", 128, "images of a step, over all workers", lower_bound=1)
flags.DEFINE_integer("train_steps", None, "steps of an epoch, where it is not to be a whole pass")
flags.DEFINE_boolean("use_synthetic_data", False, "random images: needs no data_dir")
flags.DEFINE_boolean("skip_eval", False, "do not evaluate on the test images")
flags.DEFINE_string("model_dir", None, "where the first worker saves the trained model")
flags.DEFINE_integer("seed", 0, "of first weights, order and augmentation")


# --- data -------------------------------------------------------------------------------------------------------------


def load_images(data_dir, split, worker, workers):
    """This worker's share of a split: (images, 32, 32, 3) bytes, (images,) labels, and how many there are in all."""
    binary = "data_batch_*.bin" if split == "train" else "test_batch.bin"
    files = sorted(glob.glob(os.path.join(data_dir, binary))) or sorted(glob.glob(os.path.join(data_dir, "*", binary)))
    if files:
        records = [np.memmap(file, np.uint8, "r").reshape(-1, RECORD_BYTES) for file in files]
        total = sum(map(len, records))
        mine = np.concatenate(records)[worker::workers]
        pixels = mine[:, 1:].reshape(-1, CHANNELS, HEIGHT, WIDTH)  # channel by channel
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), mine[:, 0].astype(np.int64), total
    files = sorted(glob.glob(os.path.join(data_dir, f"{split}*.parquet")))
    if not files:
        raise FileNotFoundError(f"no {binary} and no {split}*.parquet in {data_dir!r}")
    import pyarrow.parquet as pq
    import tensorflow as tf

    table = pq.ParquetDataset(files).read(columns=["image", "label"])
    mine = table.take(np.arange(worker, table.num_rows, workers))
    images = [tf.io.decode_jpeg(image.as_py(), CHANNELS).numpy() for image in mine["image"]]
    return np.stack(images), mine["label"].to_numpy().astype(np.int64), table.num_rows


def synthetic_images(total, seed, worker, workers):
    """Images of noise with a little of their label in it."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, total)
    images = random.integers(0, 200, (total, HEIGHT, WIDTH, CHANNELS)) + 5 * labels[:, None, None, None]
    return images[worker::workers].astype(np.uint8), labels[worker::workers].astype(np.int64), total


def share_of(total, worker, workers):
    """How many of so many images a worker has."""
    return len(range(worker, total, workers))


def augmented(images, random):
    """A random 32 x 32 part of each image with a border of 4, and every other one as in a mirror."""
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    tops, lefts = random.integers(0, 9, (2, len(images)))
    flips = random.random(len(images))
    rows = (tops[:, None] + np.arange(HEIGHT))[:, :, None]
    columns = (lefts[:, None] + np.arange(WIDTH))[:, None, :]
    found = padded[np.arange(len(images))[:, None, None], rows, columns]
    return np.where((flips < 0.5)[:, None, None, None], found[:, :, ::-1], found)


def standardized(images):
    """Mean 0 and variance 1 in each image."""
    values = images.astype(np.float32)
    mean = values.mean(axis=(1, 2, 3), keepdims=True)
    deviation = np.maximum(values.std(axis=(1, 2, 3), keepdims=True), 1.0 / np.sqrt(HEIGHT * WIDTH * CHANNELS))
    return (values - mean) / deviation


def batch_of(images, labels, places, rows):
    """The images at these places as a batch of exactly ``rows``: filled up with some again, of weight 0."""
    filled = np.resize(places if len(places) else np.arange(len(labels)), rows)
    return images[filled], labels[filled], (np.arange(rows) < len(places)).astype(np.float32)


# --- model ------------------------------------------------------------------------------------------------------------


def resnet(depth):
    """He et al.'s ResNet for CIFAR: three stages of (depth - 2) / 6 blocks, with 16, 32 and 64 channels."""
    from keras import Input, Model, initializers, layers

    def conv(values, filters, kernel, strides=1):
        return layers.Conv2D(
            filters, kernel, strides, padding="same", use_bias=False, kernel_initializer=initializers.HeNormal()
        )(values)

    def block(values, filters, strides):
        short = values
        if strides != 1 or values.shape[-1] != filters:
            short = layers.BatchNormalization()(conv(values, filters, 1, strides))
        values = layers.ReLU()(layers.BatchNormalization()(conv(values, filters, 3, strides)))
        values = layers.BatchNormalization()(conv(values, filters, 3))
        return layers.ReLU()(layers.Add()([values, short]))

    inputs = Input((HEIGHT, WIDTH, CHANNELS))
    values = layers.ReLU()(layers.BatchNormalization()(conv(inputs, 16, 3)))
    for stage, filters in enumerate((16, 32, 64)):
        for place in range((depth - 2) // 6):
            values = block(values, filters, 2 if stage and not place else 1)
    values = layers.GlobalAveragePooling2D()(values)
    return Model(inputs, layers.Dense(CLASSES)(values))


def learning_rate(epoch, batch_size):
    """0.1 for 128 images, in proportion; smaller from epochs 91, 136 and 182 on."""
    factor = next(factor for factor, begin in reversed(RATE_SCHEDULE) if epoch >= begin)
    return BASE_RATE * batch_size / BASE_BATCH * factor


# --- training ---------------------------------------------------------------------------------------------------------


def seat(strategy_name):
    """This process's number among the workers, and how many there are, by ``TF_CONFIG``."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    members = [(role, index) for role in ("chief", "worker") for index in range(len(cluster.get(role, ())))]
    if strategy_name != "multi_worker_mirrored" or not members:
        return 0, 1
    return members.index((task["type"], int(task["index"]))), len(members)


def make_strategy(name, num_gpus):
    """TensorFlow's strategy of this name; the first thing that TensorFlow is asked for."""
    import tensorflow as tf

    devices = [f"GPU:{number}" for number in range(num_gpus)] or ["CPU:0"]
    if name == "multi_worker_mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.OneDeviceStrategy(devices[0]) if name == "one_device" else tf.distribute.get_strategy()


class Trainer:
    """A model under a strategy: one step of training, one of evaluation, each compiled once."""

    def __init__(self, strategy, depth, seed):
        import keras
        import tensorflow as tf

        self.strategy = strategy
        self._tf = tf
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            self.model = resnet(depth)
            self.optimizer = keras.optimizers.SGD(BASE_RATE, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)
        self._train = tf.function(self._run_train)
        self._test = tf.function(self._run_test)

    def train(self, batch, total):
        """One update over all workers' images, ``total`` of them; the sum of losses and how many were right."""
        return self._numbers(self._train(*self._spread(batch), self._tf.constant(float(total))))

    def test(self, batch):
        """The sum of losses and how many were right, over all workers' images."""
        return self._numbers(self._test(*self._spread(batch)))

    def digest(self):
        """A few characters that tell these weights from others (moving averages are each worker's own)."""
        found = hashlib.sha256()
        for variable in self.model.trainable_variables:
            found.update(np.ascontiguousarray(variable.numpy()))
        return found.hexdigest()[:12]

    def _spread(self, batch):
        """The batch cut up for this process's devices."""
        local = self.strategy.num_replicas_in_sync // seat_count(self.strategy)
        parts = [np.array_split(values, local) for values in batch]

        def part(place):
            def give(context):
                number = self._tf.get_static_value(context.replica_id_in_sync_group) or 0
                return self._tf.constant(parts[place][number % local])

            return self.strategy.experimental_distribute_values_from_function(give)

        return [part(place) for place in range(len(batch))]

    def _run_train(self, images, labels, weights, total):
        tf, model = self._tf, self.model

        def step(images, labels, weights):
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * weights
                kernels = [v for v in model.trainable_variables if len(v.shape) > 1]
                decay = WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(v) for v in kernels])
                # Gradients are summed over all devices, so each has its part of the mean.
                loss = tf.reduce_sum(losses) / total + decay / self.strategy.num_replicas_in_sync
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            self.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return self._sums(losses, logits, labels, weights)

        return self._reduced(step, images, labels, weights)

    def _run_test(self, images, labels, weights):
        def step(images, labels, weights):
            logits = self.model(images, training=False)
            losses = self._tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * weights
            return self._sums(losses, logits, labels, weights)

        return self._reduced(step, images, labels, weights)

    def _sums(self, losses, logits, labels, weights):
        tf = self._tf
        right = tf.cast(tf.equal(tf.argmax(logits, -1), labels), tf.float32) * weights
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(right)])

    def _reduced(self, step, *values):
        return self.strategy.reduce("SUM", self.strategy.run(step, args=values), axis=None)

    def _numbers(self, sums):
        return [float(value) for value in sums.numpy()]


def seat_count(strategy):
    """How many processes take part in a strategy."""
    resolver = getattr(strategy, "cluster_resolver", None)
    tasks = resolver.cluster_spec().as_dict() if resolver is not None else {}
    return sum(len(tasks.get(role, ())) for role in ("chief", "worker")) or 1


def run(options):
    """Train, evaluate, say how it went; the last figures as a dict."""
    strategy = make_strategy(options.distribution_strategy, options.num_gpus)
    worker, workers = seat(options.distribution_strategy)
    if options.batch_size % strategy.num_replicas_in_sync:
        count = strategy.num_replicas_in_sync
        raise ValueError(f"--batch_size={options.batch_size} cannot be divided evenly among {count} devices")
    rows = options.batch_size // workers

    def load(split):
        if options.use_synthetic_data:
            total = SYNTHETIC_IMAGES if split == "train" else SYNTHETIC_IMAGES // 10
            return synthetic_images(total, options.seed + (split == "test"), worker, workers)
        if not options.data_dir:
            raise ValueError("--data_dir is needed, or --use_synthetic_data")
        return load_images(options.data_dir, split, worker, workers)

    def say(text):
        if worker == 0:
            print(text, flush=True)

    images, labels, total = load("train")
    if total < workers:
        raise ValueError(f"{total} images are too few for {workers} workers")
    shares = [share_of(total, each, workers) for each in range(workers)]
    trainer = Trainer(strategy, options.resnet_size, options.seed)
    before, figures = trainer.digest(), {}
    steps = math.ceil(max(shares) / rows)
    steps = min(steps, options.train_steps) if options.train_steps else steps
    for epoch in range(options.train_epochs):
        trainer.optimizer.learning_rate.assign(learning_rate(epoch, options.batch_size))
        random = np.random.default_rng((options.seed, epoch, worker))
        order, began, seen = random.permutation(len(labels)), time.time(), 0
        sums = np.zeros(2)
        for step in range(steps):
            mine = order[step * rows : (step + 1) * rows]
            now = sum(min(rows, max(0, share - step * rows)) for share in shares)  # images of all workers in this step
            some, wanted, weights = batch_of(images, labels, mine, rows)
            found = trainer.train((standardized(augmented(some, random)), wanted, weights), now)
            sums, seen = sums + found, seen + now
            if step % 50 == 0 or step == steps - 1:
                say(f"epoch {epoch + 1} step {step + 1}/{steps}: loss {found[0] / now:.6f}")
        figures = {"loss": sums[0] / seen, "accuracy": sums[1] / seen}
        say(f"epoch {epoch + 1}/{options.train_epochs}: {shown(figures)}, {seen} images, {time.time() - began:.1f} s")
    if not options.skip_eval:
        found = evaluate(trainer, *load("test"), rows)
        say(f"test: {shown(found)}")
        figures |= {f"test_{name}": value for name, value in found.items()}
    if options.model_dir and worker == 0:
        os.makedirs(options.model_dir, exist_ok=True)
        trainer.model.save(os.path.join(options.model_dir, "resnet.keras"))
    print(f"worker {worker} of {workers}: weights {before} became {trainer.digest()}", flush=True)
    return figures


def evaluate(trainer, images, labels, total, rows):
    """Loss and accuracy on this worker's share of the test images and all others'."""
    sums = np.zeros(2)
    steps = math.ceil(math.ceil(total / seat_count(trainer.strategy)) / rows)  # as many as the largest share needs
    for step in range(steps):
        some, wanted, weights = batch_of(images, labels, np.arange(len(labels))[step * rows : (step + 1) * rows], rows)
        sums += trainer.test((standardized(some), wanted, weights))
    return {"loss": sums[0] / total, "accuracy": sums[1] / total, "images": total}


def shown(figures):
    """Figures, for a line of text."""
    return ", ".join(
        f"{name} {value:.6f}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )


def main_fun(argv, ctx):
    """The program of a cluster's node. ``argv`` has no program's name in front."""
    flags.FLAGS(["resnet_cifar_dist.py", *argv])
    run(flags.FLAGS)
