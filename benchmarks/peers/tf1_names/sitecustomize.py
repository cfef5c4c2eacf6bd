"""TensorFlow 1's names for a library of its day: whoever imports sparkflow finds them under ``tensorflow``.

Python runs this file in every process that has its folder on the path: the driver, Spark's workers, the server.
"""

import importlib.abc
import sys


class _Names(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "sparkflow":
            sys.meta_path.remove(self)
            import tensorflow.compat.v1 as names

            names.disable_eager_execution()
            sys.modules["tensorflow"] = names


sys.meta_path.insert(0, _Names())
