"""The TensorFrames document's own code: its import lines, two misspelt names and the rows aside, as printed.

In a process of its own: a top-level placeholder needs eager execution off, which is off for good.
"""

from __future__ import annotations

import os
import subprocess
import sys

SNIPPET = """
from firesteel import init_context, stop_context
from firesteel import tf1 as tf
import firesteel.frames as tfs

init_context("local", cores=1)
from pyspark.sql import SparkSession
sqlContext = SparkSession.builder.getOrCreate()


x=tf.placeholder(tf.int32, name='x')
y=tf.placeholder(tf.int32, name='y')

output=tf.add(x, y*3, name='z')

session= tf.Session()
output_value=session.run(output, {x:3, y:4})
print("SEEN", output_value)


# an spark dataframe
df=sqlContext.createDataFrame([(3, 4), (1, 2)], ["x", "y"])


# using tensorframe library to run the computational graph
# on each row of the dataframe.

output_df=tfs.map_rows(output, df)


# The computation is done only when the data needs to be used
print("SEEN", output_df.collect())


# and without a session, with a function beside the graph
@tf.function
def w(x, y):
    return x + y * 3

print("SEEN", [row.w for row in tfs.map_rows(w, df).collect()])
print("SEEN", tfs.reduce_blocks(tfs.program(lambda x_input: {"x": tf.reduce_sum(x_input)}, kind="tensorflow"), df))
stop_context()
"""


def test_the_documents_code() -> None:
    options = {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET],
        env=os.environ | options,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    seen = [line[5:] for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert seen == ["15", "[Row(z=15, x=3, y=4), Row(z=7, x=1, y=2)]", "[15, 7]", "4"], (
        done.stdout + done.stderr[-4000:]
    )
