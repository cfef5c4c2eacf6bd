"""Programs as users write them, importable, so that a stage can be saved with their names."""

from __future__ import annotations

from typing import Any


def regress(args: Any, ctx: Any) -> None:
    """A line by Keras's own ``fit``, fed row by row; the chief exports it."""
    import keras
    import numpy as np
    import tensorflow as tf

    from firesteel.tfcluster import compat, distribute

    feed = ctx.get_data_feed(input_mapping=args.input_mapping)

    def rows() -> Any:
        while not feed.should_stop():
            batch = feed.next_batch(1)
            if len(batch["y_"]):
                yield np.array(batch["x"][0], np.float32), np.array(batch["y_"], np.float32)

    data = tf.data.Dataset.from_generator(
        rows, output_signature=(tf.TensorSpec((2,), tf.float32), tf.TensorSpec((1,), tf.float32))
    ).batch(args.batch_size)
    keras.utils.set_random_seed(ctx.executor_id)
    model = keras.Sequential([keras.Input((2,), name="features"), keras.layers.Dense(1, name="dense")])
    model.compile(optimizer=keras.optimizers.Adam(0.2), loss="mse")
    history = distribute(model).fit(data, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")
