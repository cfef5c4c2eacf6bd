"""Names put back into NumPy: what is missing, nothing else, and only in a process that asks for it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import numpy as np
before = dict(vars(np))
kept = {name: getattr(np, name) for name in ("all", "float64", "sort") }
import firesteel
assert not [name for name in vars(np) if name not in before and not name.startswith("_")], "import firesteel adds names"
from firesteel.core.numpy_names import put_back
added = put_back()
assert all(name not in before for name in added)
assert put_back() == []
assert {name: getattr(np, name) for name in kept} == kept
assert np.PINF == float("inf") and np.NINF == -float("inf") and np.NAN != np.NAN and 1 / np.float64(np.PINF) == np.PZERO
assert np.alltrue([1, 1]) and not np.sometrue([0]) and np.product([2, 3]) == 6 and np.round_(1.26, 1) == 1.3
assert np.in1d([1, 5], [5]).tolist() == [False, True] and np.trapz([1, 1]) == 1
assert np.msort(np.array([[3, 1], [2, 4]])).tolist() == [[2, 1], [3, 4]]
assert np.bool(1) and np.int(3) == 3
for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate"):
    try:
        getattr(np, name)(0.1)
    except NotImplementedError as error:
        assert name in str(error)
    else:
        raise AssertionError(name)
"""


def test_names_are_put_back_where_they_are_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
