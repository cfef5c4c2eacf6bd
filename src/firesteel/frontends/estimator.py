"""The Estimator's door: one object to train, evaluate and score a model on Spark.

Words in, plans out: what follows checks what the user said, makes a plan of it, and hands it to the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firesteel.frontends.bigdl_estimator import BigDLEstimator
    from firesteel.frontends.framework_estimator import FrameworkEstimator
    from firesteel.frontends.graph_estimator import GraphEstimator
    from firesteel.frontends.keras_estimator import KerasEstimator
    from firesteel.frontends.mxnet_estimator import MXNetEstimator
    from firesteel.frontends.openvino_estimator import OpenVINOEstimator
    from firesteel.frontends.torch_estimator import TorchEstimator

__all__ = ["Estimator"]


class Estimator:
    """Made by one of its ``from_…`` functions; then ``fit``, ``evaluate`` and ``predict``.

    Example:
        >>> est = Estimator.from_torch(model=Net, optimizer=make_optimizer, loss=nn.MSELoss())  # doctest: +SKIP
        >>> est.fit(df, epochs=2, batch_size=64, feature_cols="features", label_cols="label")  # doctest: +SKIP
        >>> est.predict(df, feature_cols="features").show()  # doctest: +SKIP
    """

    @staticmethod
    def from_graph(
        *,
        inputs: Any,
        outputs: Any = None,
        labels: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        clip_norm: float | None = None,
        clip_value: float | tuple[float, float] | None = None,
        updates: Any = None,
        sess: Any = None,
        model_dir: str | None = None,
        backend: str | None = "bigdl",
        workers_per_node: int = 1,
        seed: int | None = None,
    ) -> GraphEstimator:
        """An estimator of a TensorFlow graph, as it was written for TensorFlow 1.

        Nothing is added to the graph: what training needs is built in a copy.

        Args:
            inputs: the placeholders that features are fed to: one, or lists of them.
            outputs: the tensors that ``predict`` gives.
            labels: the placeholders that labels are fed to.
            loss: a scalar tensor, the mean over the rows fed.
            optimizer: a ``tf.compat.v1.train`` optimizer, or one of ``firesteel.learn.optimizers`` or
                ``firesteel.bigdl``.
            metrics: name → tensor (one value a row, or a mean over the batch), or ``firesteel.learn.metrics``, which
                are applied to outputs and labels.
            clip_norm: a step's gradient over all variables is scaled to this length where it is longer.
            clip_value: its elements into ``(-c, c)``, or into a pair ``(min, max)``.
            updates: ops or tensors that run once for each step, after the update; besides the graph's ``UPDATE_OPS``.
            sess: holds the variables' values; without it one is made and variables are initialized.
            model_dir: where checkpoints go, and TensorBoard files unless ``set_tensorboard`` says otherwise.
            backend: a name of the one engine: ``"bigdl"``, ``"spark"``, ``"tf2"``, ``"ray"``.
            workers_per_node: replicas on each node; a ``local[k]`` is one node.
            seed: of initial values made here, shuffling and dropout.

        Raises:
            PlanError: tensors of two graphs, a loss that cannot be trained, a placeholder that nothing feeds.
        """
        from firesteel.frontends.graph_estimator import GraphEstimator

        return GraphEstimator(
            inputs=inputs,
            outputs=outputs,
            labels=labels,
            loss=loss,
            optimizer=optimizer,
            metrics=metrics,
            clip_norm=clip_norm,
            clip_value=clip_value,
            updates=updates,
            sess=sess,
            model_dir=model_dir,
            backend=backend,
            workers_per_node=workers_per_node,
            seed=seed,
        )

    @staticmethod
    def from_keras(
        keras_model: Any = None,
        metrics: Any = None,
        model_dir: str | None = None,
        optimizer: Any = None,
        backend: str | None = None,
        *,
        model_creator: Callable[..., Any] | None = None,
        config: dict[str, Any] | None = None,
        workers_per_node: int = 1,
        seed: int | None = None,
    ) -> KerasEstimator:
        """An estimator of a Keras 3 model.

        Args:
            keras_model: a compiled model; after ``fit`` that same object holds the trained weights.
            metrics: in the place of those compiled.
            model_dir: where checkpoints go, and TensorBoard files unless ``set_tensorboard`` says otherwise.
            optimizer: a Keras optimizer or its name, in the place of the one compiled.
            backend: a name of the one engine: ``"bigdl"``, ``"spark"``, ``"tf2"``, ``"ray"``.
            model_creator: ``(config)`` → a compiled model, instead of ``keras_model``.
            config: a dict that creators get a copy of.
            workers_per_node: replicas on each node; a ``local[k]`` is one node.
            seed: of initial weights made by a creator, shuffling and dropout.

        Raises:
            PlanError: parts that do not fit together, at once.
        """
        from firesteel.frontends.keras_estimator import KerasEstimator

        return KerasEstimator(
            keras_model=keras_model,
            model_creator=model_creator,
            metrics=metrics,
            optimizer=optimizer,
            config=config,
            backend=backend,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
        )

    @staticmethod
    def load_keras_model(path: str) -> KerasEstimator:
        """An estimator of a model that Keras saved."""
        made = Estimator.from_keras()
        made.load(path)
        return made

    @staticmethod
    def from_torch(
        *,
        model: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        scheduler_creator: Callable[..., Any] | None = None,
        scheduler_step_freq: str | None = "batch",
        config: dict[str, Any] | None = None,
        backend: str = "bigdl",
        workers_per_node: int = 1,
        model_dir: str | None = None,
        sync_batchnorm: bool = False,
        seed: int | None = None,
        precision: str | None = None,
        sync: str | None = None,
        averaging_steps: int = 1,
    ) -> TorchEstimator:
        """An estimator of a PyTorch model.

        Args:
            model: a module, a class of one, or ``model_creator(config)``.
            optimizer: a torch optimizer made on that model, ``optimizer_creator(model, config)``, or one of
                ``firesteel.learn.optimizers``. Not needed to predict.
            loss: a module, a loss class, a function ``(output, target)``, or a creator ``(config)``.
            metrics: one, a list, or a dict of ``firesteel.learn.metrics`` or functions ``(preds, targets)``.
            scheduler_creator: ``(optimizer, config)`` → any torch schedule.
            scheduler_step_freq: when it is stepped: ``"batch"`` or ``"epoch"``.
            config: a dict that creators get a copy of.
            backend: ``"bigdl"`` (each replica updates its slice of the weights), ``"torch_distributed"`` (DDP; also
                ``"spark"``, ``"ray"``) or ``"horovod"`` (its all-reduce; where it is built). The numbers learnt are the
                same.
            workers_per_node: replicas on each node; a ``local[k]`` is one node.
            model_dir: where checkpoints go, and TensorBoard files unless ``set_tensorboard`` says otherwise.
            sync_batchnorm: batch-norm sees the whole step's rows, not its replica's.
            seed: fixes weights made by creators, shuffling and dropout.
            precision: ``"bf16"`` computes forward and backward under autocast; weights stay as they are.
            sync: overrides the backend's way to agree: ``"all-reduce"``, ``"sharded"``, ``"native"``, ``"averaging"``.
            averaging_steps: with ``sync="averaging"``, after how many steps weights are averaged.

        Raises:
            PlanError: the parts do not fit together.
        """
        from firesteel.frontends.torch_estimator import TorchEstimator

        return TorchEstimator(
            model=model,
            optimizer=optimizer,
            loss=loss,
            metrics=metrics,
            scheduler_creator=scheduler_creator,
            scheduler_step_freq=scheduler_step_freq,
            config=config,
            backend=backend,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            sync_batchnorm=sync_batchnorm,
            seed=seed,
            precision=precision,
            sync=sync,
            averaging_steps=averaging_steps,
        )

    @staticmethod
    def from_bigdl(
        *,
        model: Any,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        feature_preprocessing: Any = None,
        label_preprocessing: Any = None,
        model_dir: str | None = None,
        workers_per_node: int = 1,
        seed: int | None = None,
    ) -> BigDLEstimator:
        """An estimator of a model of BigDL's layers.

        On a DataFrame, ``feature_cols`` and ``label_cols`` are ``"features"`` and ``"label"`` unless said otherwise,
        and a list of columns is joined.

        Args:
            model: of ``firesteel.bigdl.nn.layer``, or a torch module. After ``fit`` that same object holds the trained
                weights.
            loss: a criterion of ``firesteel.bigdl.nn.criterion``, or a torch loss. Not needed to predict.
            optimizer: of ``firesteel.bigdl.optim.optimizer``, or a dict layer name → optimizer; default ``SGD()``.
            metrics: one, a list or a dict of ``firesteel.learn.metrics``, validation methods or functions; results
                have BigDL's names.
            feature_preprocessing: of ``firesteel.bigdl.feature.common``, or a list of sizes, one per input: the columns
                are joined and dealt out. Default: as the columns are.
            label_preprocessing: the same for labels.
            model_dir: where checkpoints go, and TensorBoard files unless ``set_tensorboard`` says otherwise.
            workers_per_node: replicas on each node; a ``local[k]`` is one node.
            seed: fixes weights that are made by now, shuffling and dropout.

        Raises:
            PlanError: the parts do not fit together.
        """
        from firesteel.frontends.bigdl_estimator import BigDLEstimator

        return BigDLEstimator(
            model=model,
            loss=loss,
            optimizer=optimizer,
            metrics=metrics,
            feature_preprocessing=feature_preprocessing,
            label_preprocessing=label_preprocessing,
            model_dir=model_dir,
            workers_per_node=workers_per_node,
            seed=seed,
        )

    @staticmethod
    def from_mxnet(
        *,
        config: dict[str, Any],
        model_creator: Callable[..., Any],
        loss_creator: Callable[..., Any] | None = None,
        eval_metrics_creator: Callable[..., Any] | None = None,
        validation_metrics_creator: Callable[..., Any] | None = None,
        num_workers: int | None = None,
        num_servers: int | None = None,
        runner_cores: int | None = None,
    ) -> MXNetEstimator:
        """An estimator of an MXNet model. Import ``firesteel.learn.mxnet`` before ``mxnet`` itself.

        Args:
            config: what ``firesteel.learn.mxnet.create_config`` makes: ``optimizer``, ``optimizer_params``,
                ``log_interval``, and where wanted ``seed``, ``init``, ``kvstore``, ``model``, ``batch_size``. Creators
                get a copy.
            model_creator: ``(config)`` → a Gluon block, or a symbolic ``mx.mod.Module`` with the loss in its symbol.
            loss_creator: ``(config)`` → a Gluon loss, or a function ``(*outputs, *labels)``. Not for a Module.
            eval_metrics_creator: ``(config)`` → a metric, its name, or a list of them, on the rows that are trained on.
            validation_metrics_creator: the same, on validation rows.
            num_workers: replicas; default one on each node.
            num_servers: parameter servers; default as many as workers.
            runner_cores: threads of each worker's process; default the task's cores.

        Raises:
            PlanError: parts that do not fit together, or MXNet is not installed.
        """
        from firesteel.frontends.mxnet_estimator import MXNetEstimator

        return MXNetEstimator(
            config=config,
            model_creator=model_creator,
            loss_creator=loss_creator,
            eval_metrics_creator=eval_metrics_creator,
            validation_metrics_creator=validation_metrics_creator,
            num_workers=num_workers,
            num_servers=num_servers,
            runner_cores=runner_cores,
        )

    @staticmethod
    def from_framework(
        framework: str,
        model: Any,
        *,
        metrics: Any = None,
        workers_per_node: int = 1,
        model_dir: str | None = None,
        seed: int | None = None,
        sync: str = "all-reduce",
        **parts: Any,
    ) -> FrameworkEstimator:
        """An estimator of a model of any registered framework: how a framework that Firesteel does not know is used.

        Args:
            framework: its name, under which its package registered it (entry point ``firesteel.frameworks``).
            model: what that framework takes as a model.
            metrics: ``firesteel.learn.metrics``, for ``evaluate`` and validation.
            workers_per_node: replicas on each node; a ``local[k]`` is one node.
            model_dir: where checkpoints go.
            seed: of shuffling.
            sync: how replicas agree: ``"all-reduce"``, ``"sharded"``, ``"averaging"``.
            **parts: loss, optimizer, whatever else the framework's ``capture`` takes.

        Raises:
            UnknownName: no such framework is registered here; lists those that are.
            PlanError: it does not take this model.
        """
        from firesteel.frontends.framework_estimator import FrameworkEstimator

        return FrameworkEstimator(
            framework=framework,
            model=model,
            parts=parts,
            metrics=metrics,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
            sync=sync,
        )

    @staticmethod
    def from_openvino(*, model_path: str) -> OpenVINOEstimator:
        """An estimator of an OpenVINO model. It only predicts.

        Args:
            model_path: an IR's ``.xml``, with its ``.bin`` beside it, or an ``.onnx``; local, ``hdfs://``, ``s3://``,
                ``dbfs:/``.

        Raises:
            FileNotFoundError: one of the files is missing.
            PlanError: they are no model; or OpenVINO is not installed.
        """
        from firesteel.frontends.openvino_estimator import OpenVINOEstimator

        return OpenVINOEstimator(model_path)

    @staticmethod
    def latest_checkpoint(checkpoint_dir: str) -> str:
        """Path of the newest checkpoint's model file; ``CheckpointError`` if there is none."""
        from firesteel.engine.checkpoint import latest

        return latest(checkpoint_dir)
