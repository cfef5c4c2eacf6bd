"""Models that were trained elsewhere, as stages; and the name by which old snippets load pipelines."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Pipeline, PipelineModel

from firesteel.frontends.pipeline.asynchronous import SparkAsyncDLModel
from firesteel.frontends.pipeline.graphs import bench, scoring_program

__all__ = ["PysparkPipelineWrapper", "attach_tensorflow_model_to_pipeline", "load_tensorflow_model"]


def load_tensorflow_model(
    path: str,
    inputCol: str,
    tfInput: str,
    tfOutput: str,
    predictionCol: str = "predicted",
    tfDropout: str | None = None,
    toKeepDropout: bool = False,
) -> SparkAsyncDLModel:
    """A stage around a model of TensorFlow's.

    Args:
        path: a checkpoint's prefix (``…/model-100``, with its ``.meta`` file), a folder with a ``checkpoint`` file (the
            latest one in it), a SavedModel's folder, a frozen ``.pb``, or a ``.keras`` file.
        inputCol: feature column.
        tfInput: tensor fed with features, or a SavedModel's key for it.
        tfOutput: tensor to be evaluated, or a key.
        predictionCol: column that is added.
        tfDropout: dropout placeholder.
        toKeepDropout: whether it means what is kept.
    """
    opened = bench().open_elsewhere(path)
    ends = opened.inputs.get(tfInput, tfInput), opened.outputs.get(tfOutput, tfOutput)
    program = scoring_program(opened, inputs=ends[0], output=ends[1], dropout=tfDropout, keeps=toKeepDropout, values={})
    model = SparkAsyncDLModel(
        inputCol=inputCol,
        modelJson=bench().as_text(opened),
        tfInput=ends[0],
        tfOutput=ends[1],
        predictionCol=predictionCol,
        tfDropout=tfDropout,
        toKeepDropout=toKeepDropout,
    )
    model._values = {} if program.state is None else bench().unpack(program.state["model"])
    return model


def attach_tensorflow_model_to_pipeline(
    path: str,
    pipelineModel: PipelineModel,
    inputCol: str,
    tfInput: str,
    tfOutput: str,
    predictionCol: str = "predicted",
    tfDropout: str | None = None,
    toKeepDropout: bool = False,
) -> PipelineModel:
    """The pipeline, and after it a model that was trained elsewhere; arguments as ``load_tensorflow_model``."""
    model = load_tensorflow_model(path, inputCol, tfInput, tfOutput, predictionCol, tfDropout, toKeepDropout)
    return PipelineModel([pipelineModel, model])


class PysparkPipelineWrapper:
    """Kept for snippets that load pipelines through it."""

    @staticmethod
    def unwrap(pipeline: Any) -> Any:
        """The pipeline with all its Python stages: as it is, for they were saved as themselves."""
        if not isinstance(pipeline, (Pipeline, PipelineModel)):
            raise TypeError(f"unwrap takes a Pipeline or a PipelineModel, not {type(pipeline).__qualname__}")
        return pipeline
