"""``firesteel.learn.mxnet``: the Estimator under the path that documents use.

Importing this puts names back into NumPy that MXNet's last release needs, so that a later ``import mxnet`` works.
"""

from firesteel.core.numpy_names import put_back
from firesteel.frontends.estimator import Estimator
from firesteel.frontends.mxnet_estimator import create_config

put_back()

__all__ = ["Estimator", "create_config"]
