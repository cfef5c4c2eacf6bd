"""The pipeline door: deep learning as stages of Spark ML.

``SparkAsyncDL`` trains a TensorFlow graph asynchronously against a parameter server; ``DLEstimator`` any torch or Keras
model, synchronously by default. Their models transform DataFrames, and all of them are saved like any stage.
"""

from firesteel.frontends.pipeline.dl import DLEstimator, DLModel

__all__ = ["DLEstimator", "DLModel"]
