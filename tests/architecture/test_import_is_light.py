"""``import firesteel`` is quick and brings in nothing heavy."""

import json
import subprocess
import sys

SECONDS = 0.3
HEAVY = ("torch", "tensorflow", "keras", "jax", "mxnet", "openvino", "pyspark", "py4j", "pandas", "pyarrow", "sklearn")

PROBE = """
import json, sys, time
start = time.perf_counter()
import firesteel
seconds = time.perf_counter() - start
firesteel.__all__, dir(firesteel)
print(json.dumps({"seconds": seconds, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def probe():
    # -P: the folder pytest runs in is not the one to import from.
    done = subprocess.run([sys.executable, "-P", "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_loads_nothing_heavy():
    assert sorted(set(HEAVY) & set(probe()["modules"])) == []


def test_is_quick():
    assert min(probe()["seconds"] for _ in range(3)) < SECONDS
