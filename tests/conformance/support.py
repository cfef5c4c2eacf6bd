"""The support table: what the code offers, and for each cell the test that shows it.

``make support`` runs those tests and writes ``docs/support.md``, and README's part where it has the marks; a test that
fails leaves the table as it was. ``tests/architecture`` keeps page, code and tests together.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["COLUMNS", "PROOFS", "ROOT", "offered", "page", "tables"]

ROOT = Path(__file__).parents[2]
_MARKS = ("<!-- support table -->", "<!-- /support table -->")

FRAMEWORKS = {
    "torch": ("PyTorch", "from_torch", "torch_estimator", "TorchEstimator"),
    "keras": ("Keras 3", "from_keras", "keras_estimator", "KerasEstimator"),
    "tfgraph": ("TensorFlow graphs", "from_graph", "graph_estimator", "GraphEstimator"),
    "bigdl": ("BigDL layers", "from_bigdl", "bigdl_estimator", "BigDLEstimator"),
    "mxnet": ("MXNet", "from_mxnet", "mxnet_estimator", "MXNetEstimator"),
    "openvino": ("OpenVINO", "from_openvino", "openvino_estimator", "OpenVINOEstimator"),
}
COLUMNS = {
    "How replicas agree": (
        "sharded",
        "all-reduce",
        "native",
        "averaging",
        "parameter server",
        "Horovod",
        "KVStore",
    ),
    "Data": ("Spark DataFrame", "pandas", "XShards", "ndarrays", "RDD", "its own loader", "creator"),
    "Verbs": ("fit", "evaluate", "predict", "save, load", "resume", "to ONNX", "to OpenVINO"),
}
_WORDS = {
    "Spark DataFrame": "DataFrame",
    "pandas": "pandas|DataFrame with feature_cols",
    "XShards": "XShards",
    "ndarrays": "ndarray",
    "RDD": "RDD",
    "its own loader": "DataLoader|Dataset",
    "creator": "creator",
}
_METHODS = {
    "fit": "fit",
    "evaluate": "evaluate",
    "predict": "predict",
    "save, load": "save",
    "resume": "load_checkpoint",
}
_EXPORTS = {"to ONNX": "to_onnx", "to OpenVINO": "portable"}

_IN = "tests/frontends/test_"

PROOFS: dict[str, dict[str, str]] = {
    "torch": {
        "sharded": "tests/conformance/test_replicas_agree.py::test_replicas_learn_what_one_does",
        "native": "tests/conformance/test_replicas_agree.py::test_so_they_do_over_the_network",
        "all-reduce": "tests/sync/test_syncs.py::test_adam",
        "averaging": "tests/sync/test_syncs.py::test_averaging_is_exact_for_plain_descent_and_learns_with_adam",
        "parameter server": f"{_IN}pipeline_dl.py::test_other_syncs_learn_the_same_line",
        "Horovod": f"{_IN}horovod.py::test_the_same_as_other_backends_and_as_one",
        "Spark DataFrame": f"{_IN}inputs.py::test_a_step_on_all_rows_is_that_of_plain_torch",
        "pandas": f"{_IN}evaluate.py::test_every_kind_of_data",
        "XShards": f"{_IN}inputs.py::test_a_step_on_all_rows_is_that_of_plain_torch",
        "ndarrays": f"{_IN}inputs.py::test_a_step_on_all_rows_is_that_of_plain_torch",
        "RDD": f"{_IN}inputs.py::test_a_step_on_all_rows_is_that_of_plain_torch",
        "its own loader": f"{_IN}creators.py::test_loaders",
        "creator": f"{_IN}creators.py::test_creators_of_every_sort_give_the_rows_in_their_order",
        "fit": f"{_IN}fit.py::test_steps_are_the_rows_in_their_order",
        "evaluate": f"{_IN}evaluate.py::test_equals_a_single_process",
        "predict": f"{_IN}predict.py::test_equals_plain_torch_and_says_the_same_twice",
        "save, load": f"{_IN}save.py::test_load_in_a_new_process_without_spark",
        "resume": f"{_IN}checkpoints.py::test_going_on_from_a_checkpoint_equals_not_stopping",
        "to ONNX": f"{_IN}export.py::test_a_fitted_torch_model_needs_to_be_told_nothing",
        "to OpenVINO": f"{_IN}export.py::test_a_fitted_torch_model_needs_to_be_told_nothing",
    },
    "keras": {
        "all-reduce": f"{_IN}keras.py::test_two_replicas_learn_what_one_does",
        "Spark DataFrame": f"{_IN}keras.py::test_two_replicas_learn_what_one_does",
        "XShards": f"{_IN}keras.py::test_evaluate_and_predict_are_keras_own",
        "ndarrays": f"{_IN}keras_data.py::test_each_kind_trains_as_keras_does_on_the_same_batches",
        "its own loader": f"{_IN}keras_data.py::test_each_kind_trains_as_keras_does_on_the_same_batches",
        "creator": f"{_IN}keras_data.py::test_each_kind_trains_as_keras_does_on_the_same_batches",
        "fit": f"{_IN}keras.py::test_one_step_on_all_rows_is_that_of_keras",
        "evaluate": f"{_IN}keras.py::test_evaluate_and_predict_are_keras_own",
        "predict": f"{_IN}keras.py::test_evaluate_and_predict_are_keras_own",
        "save, load": f"{_IN}keras.py::test_saving_and_going_on",
        "resume": f"{_IN}keras_training.py::test_resumed_from_disk_equals_undisturbed",
        "to ONNX": f"{_IN}export.py::test_keras_models",
        "to OpenVINO": f"{_IN}export.py::test_keras_models",
    },
    "tfgraph": {
        "sharded": f"{_IN}tfpark.py::test_replicas_descend_together",
        "parameter server": f"{_IN}pipeline_async.py::test_each_slice_is_a_push_in_both_modes",
        "RDD": f"{_IN}tfpark.py::test_rows_count_and_not_replicas",
        "all-reduce": f"{_IN}graph_estimator.py::test_two_replicas_learn_what_a_session_does",
        "Spark DataFrame": f"{_IN}graph_estimator.py::test_fit_evaluate_predict",
        "pandas": f"{_IN}graph_estimator.py::test_fit_evaluate_predict",
        "XShards": f"{_IN}graph_estimator.py::test_fit_evaluate_predict",
        "ndarrays": f"{_IN}graph_estimator.py::test_fit_evaluate_predict",
        "its own loader": f"{_IN}graph_estimator.py::test_datasets_of_rows_and_of_batches",
        "fit": f"{_IN}graph_estimator.py::test_fit_evaluate_predict",
        "evaluate": f"{_IN}graph_estimator.py::test_fit_evaluate_predict",
        "predict": f"{_IN}graph_estimator.py::test_fit_evaluate_predict",
        "save, load": f"{_IN}graph_estimator.py::test_saving_and_going_on",
        "resume": f"{_IN}graph_estimator.py::test_saving_and_going_on",
    },
    "bigdl": {
        "sharded": f"{_IN}bigdl.py::test_replicas_learn_what_one_does",
        "Spark DataFrame": f"{_IN}bigdl.py::test_the_documents_snippet",
        "XShards": f"{_IN}bigdl.py::test_shards_and_labels_from_zero_or_one",
        "ndarrays": f"{_IN}bigdl.py::test_shards_and_labels_from_zero_or_one",
        "RDD": f"{_IN}bigdl.py::test_optimizer_finds_the_plane",
        "fit": f"{_IN}bigdl.py::test_the_documents_snippet",
        "evaluate": f"{_IN}bigdl.py::test_shards_and_labels_from_zero_or_one",
        "predict": f"{_IN}bigdl.py::test_the_documents_snippet",
        "save, load": f"{_IN}bigdl.py::test_validation_save_and_load",
        "resume": f"{_IN}bigdl.py::test_validation_checkpoints_and_summaries",
    },
    "mxnet": {
        "KVStore": f"{_IN}mxnet.py::test_every_gang_learns_what_one_does",
        "Spark DataFrame": f"{_IN}mxnet.py::test_every_gang_learns_what_one_does",
        "XShards": f"{_IN}mxnet.py::test_every_gang_learns_what_one_does",
        "ndarrays": f"{_IN}mxnet.py::test_every_gang_learns_what_one_does",
        "creator": f"{_IN}mxnet.py::test_every_gang_learns_what_one_does",
        "fit": f"{_IN}mxnet.py::test_every_gang_learns_what_one_does",
        "evaluate": f"{_IN}mxnet.py::test_metrics_over_all_rows",
        "predict": f"{_IN}mxnet.py::test_saved_loaded_and_gone_on_with",
        "save, load": f"{_IN}mxnet.py::test_saved_loaded_and_gone_on_with",
        "resume": f"{_IN}mxnet.py::test_saved_loaded_and_gone_on_with",
    },
    "openvino": {
        "Spark DataFrame": f"{_IN}openvino.py::test_shards_frames_and_pandas_agree",
        "XShards": f"{_IN}openvino.py::test_shards_frames_and_pandas_agree",
        "ndarrays": f"{_IN}openvino.py::test_arrays_whatever_the_batch",
        "predict": f"{_IN}openvino.py::test_arrays_whatever_the_batch",
    },
}


def offered(name: str) -> set[str]:
    """The cells that the code of this framework's door and bench has."""
    _, _, module_name, class_name = FRAMEWORKS[name]
    module = import_module(f"firesteel.frontends.{module_name}")
    door = getattr(module, class_name)
    bench = (ROOT / "src/firesteel/frameworks" / name / "__init__.py").read_text()
    found = {column for column, words in _WORDS.items() if re.search(words, module._KINDS)}
    found |= {column for column, method in _METHODS.items() if not getattr(getattr(door, method), "is_refused", False)}
    found |= {column for column, word in _EXPORTS.items() if f"def {word}(" in bench or f" {word} = " in bench}
    return found | _syncs(name, door, module)


def _syncs(name: str, door: Any, module: Any) -> set[str]:
    from firesteel.frontends.pipeline import dl
    from firesteel.frontends.training import TrainingEstimator

    if not issubclass(door, TrainingEstimator):
        return set()
    if name == "mxnet":
        return {"KVStore"}
    parameters = inspect.signature(door.__init__).parameters
    found = {"all-reduce", "averaging"} if "sync" in parameters else set()
    if name in ("bigdl", "tfgraph"):  # the latter by TFOptimizer
        found |= {"sharded"}
    if name == "tfgraph":  # by SparkAsyncDL
        found |= {"parameter server"}
    backends = getattr(module, "_SYNC_OF_BACKEND", {} if name == "bigdl" else {"": "all-reduce"})
    found |= {"Horovod" if backend == "horovod" else sync for backend, sync in backends.items()}
    sides = {side.__module__.rpartition(".")[2].removesuffix("_side") for side in dl._SIDES}
    return found | (
        {"parameter server", *(dl._SYNCS[each] for each in ("allreduce", "sharded"))} if name in sides else set()
    )


def tables() -> str:
    """All three, in Markdown."""
    lines: list[str] = []
    for title, columns in COLUMNS.items():
        lines += [f"| {title} | {' | '.join(columns)} |", f"|---|{':-:|' * len(columns)}"]
        for name, (label, *_) in FRAMEWORKS.items():
            has = offered(name)
            cells = ["✓" if each in PROOFS[name] else "o" if each in has else "" for each in columns]
            if any(cells):
                lines.append(f"| {label} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def page() -> str:
    """``docs/support.md``, whole."""
    proofs = [
        f"| {FRAMEWORKS[name][0]} | {column} | `{test.removeprefix('tests/')}` |"
        for name, cells in PROOFS.items()
        for columns in COLUMNS.values()
        for column in columns
        if (test := cells.get(column))
    ]
    return "\n".join(
        [
            "# What works with what",
            "",
            "Written by `make support` from the code and from the tests that show it; nobody edits it. ✓: a test of",
            "this very combination passes. o: offered, goes another one's way, has no test of its own. Empty: not",
            "offered.",
            "",
            tables(),
            "MXNet's and Horovod's tests run in environments of their own (`make test-mxnet`, `make test-horovod`).",
            "",
            "## Which test shows it",
            "",
            "| framework | what | test |",
            "|---|---|---|",
            *proofs,
            "",
        ]
    )


def main() -> int:
    """Run the tests behind the table; where they pass, write it."""
    wanted = sorted({test for cells in PROOFS.values() for test in cells.values()})
    side = {"mxnet": ".venv-mxnet", "horovod": ".venv-horovod"}
    for folder in (None, *side.values()):
        python = Path(sys.executable) if folder is None else ROOT / folder / "bin/python"
        mine = [test for test in wanted if next((env for word, env in side.items() if word in test), None) == folder]
        if not python.exists():
            sys.stderr.write(f"not run, for there is no {folder}: {', '.join(mine)}\n")
            continue
        done = subprocess.run([str(python), "-m", "pytest", "-q", *mine], cwd=ROOT, check=False)
        if done.returncode:
            return done.returncode
    (ROOT / "docs/support.md").write_text(page())
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(_MARKS[0])
    if _MARKS[1] in rest:
        readme.write_text(f"{before}{_MARKS[0]}\n\n{tables()}\n{_MARKS[1]}{rest.partition(_MARKS[1])[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
