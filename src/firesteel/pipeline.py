"""The pipeline door: deep learning as stages of Spark ML.

``SparkAsyncDL`` trains a TensorFlow graph asynchronously against a parameter server; ``DLEstimator`` any torch or Keras
model, synchronously by default. Their models transform DataFrames, and all of them are saved like any stage.
"""

from firesteel.frontends.pipeline.asynchronous import SparkAsyncDL, SparkAsyncDLModel
from firesteel.frontends.pipeline.dl import DLEstimator, DLModel, TrainingSummary
from firesteel.frontends.pipeline.elsewhere import (
    PysparkPipelineWrapper,
    attach_tensorflow_model_to_pipeline,
    load_tensorflow_model,
)
from firesteel.frontends.pipeline.graphs import build_graph
from firesteel.frontends.pipeline.hogwild import HogwildSparkModel
from firesteel.frontends.pipeline.optimizers import (
    build_adadelta_config,
    build_adagrad_config,
    build_adam_config,
    build_gradient_descent,
    build_momentum_config,
    build_rmsprop_config,
    generate_config,
)
from firesteel.frontends.pipeline.pretrained import load_model
from firesteel.frontends.pipeline.search import Search, search

__all__ = [
    "DLEstimator",
    "DLModel",
    "HogwildSparkModel",
    "PysparkPipelineWrapper",
    "Search",
    "SparkAsyncDL",
    "SparkAsyncDLModel",
    "TrainingSummary",
    "attach_tensorflow_model_to_pipeline",
    "build_adadelta_config",
    "build_adagrad_config",
    "build_adam_config",
    "build_gradient_descent",
    "build_graph",
    "build_momentum_config",
    "build_rmsprop_config",
    "generate_config",
    "load_model",
    "load_tensorflow_model",
    "search",
]
