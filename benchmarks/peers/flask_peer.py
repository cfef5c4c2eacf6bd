"""The peer: a parameter server as SparkFlow's is built, Flask and pickle, from scratch and in its own environment.

    python flask_peer.py PORT FLOATS

``GET /parameters`` gives the pickled weights, ``POST /update`` applies a pickled gradient by plain SGD.
"""

import logging
import pickle
import sys

import numpy as np
from flask import Flask, request

weights = [np.zeros(int(sys.argv[2]), np.float32)]
app = Flask(__name__)
logging.getLogger("werkzeug").setLevel(logging.ERROR)


@app.route("/parameters")
def parameters() -> bytes:
    return pickle.dumps(weights, -1)


@app.route("/update", methods=["POST"])
def update() -> str:
    for mine, gradient in zip(weights, pickle.loads(request.data), strict=True):  # noqa: S301 - what is measured
        mine -= np.float32(1e-6) * gradient
    return "done"


app.run(host="127.0.0.1", port=int(sys.argv[1]), threaded=True, use_reloader=False)
