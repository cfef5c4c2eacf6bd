"""``TFDataset``: rows that live in Spark, and the placeholders that they will be fed to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from firesteel.core import registry
from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.plan import positive
from firesteel.data.shards import XShards
from firesteel.data.sources import is_frame, is_rdd
from firesteel.frontends.tfpark.layout import Field, Layout, checked_shape, leaves, rebuilt, stated
from firesteel.frontends.tfpark.origins import (
    Arrays,
    Columns,
    Elements,
    Origin,
    Shards,
    Streams,
    column_fields,
    stated_columns,
)
from firesteel.frontends.training import session_of

__all__ = ["TFDataset", "dataset_of"]

_MEMORY = re.compile(r"DRAM|PMEM|DIRECT|DISK_\d+")
_SHUFFLED_BYTES = 64 << 20
_SHUFFLED_ELEMENTS = 10_000
_KNOWN = ("firesteel", "datasets")
"""A collection of the graph's, by a key that is no string: those are not saved with it."""


class TFDataset:
    """A lazy, distributed collection of elements, each a structure of arrays. Made by one of its ``from_…`` functions.

    Attributes:
        batch_size: rows of a training step over all replicas; -1 where none was given.
        batch_per_thread: rows of a call in one task, for prediction and evaluation; -1 where none was given.
        has_batch: whether tensors have a leading number of rows.
        hard_code_batch_size: whether that number is fixed.
    """

    def __init__(
        self,
        layout: Layout,
        origin: Origin,
        validation: Origin | None = None,
        *,
        batch_size: Any = -1,
        batch_per_thread: Any = -1,
        hard_code_batch_size: bool = False,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> None:
        self.batch_size = _size(batch_size, "batch_size")
        self.batch_per_thread = _size(batch_per_thread, "batch_per_thread")
        if self.batch_size > 0 and self.batch_per_thread > 0:
            raise PlanError(
                "batch_size is for training and batch_per_thread for prediction and evaluation: set one, not both"
            )
        if not _MEMORY.fullmatch(str(memory_type)):
            raise PlanError(f"memory_type must be DRAM, PMEM, DIRECT or DISK_n with a number n, not {memory_type!r}")
        self.has_batch = layout.is_flat or self.batch_size > 0 or self.batch_per_thread > 0
        self.hard_code_batch_size = bool(hard_code_batch_size)
        self.memory_type = memory_type
        self.is_shuffled = bool(shuffle) and not sequential_order
        self.layout, self.origin, self.validation = layout, origin, validation
        self._tensors: Any = None
        self.graph: Any = None
        """The graph of ``tensors``; ``None`` before they were asked for."""
        if self.hard_code_batch_size and not self.has_batch:
            raise PlanError("hard_code_batch_size needs batch_size or batch_per_thread")

    # --- tensors ---

    @property
    def tensors(self) -> Any:
        """The placeholders, made in the default graph on first access: a list in the flat form, else a tuple."""
        if self._tensors is None:
            rows = self.static_rows()
            self.graph, made = _placeholders(list(self.layout.fields.values()), self.has_batch, rows)
            self._tensors = rebuilt(self.layout.structure, iter(made))
            self.graph.get_collection_ref(_KNOWN).extend((tensor.name, self) for tensor in made)
        return self._tensors

    @property
    def feature_tensors(self) -> Any:
        """The features' part of ``tensors``."""
        if self.layout.is_flat or self.layout.labels is None:
            raise PlanError("feature_tensors are those of a dataset with features= and labels=; take .tensors here")
        return self.tensors[0]

    @property
    def label_tensors(self) -> Any:
        """The labels' part of ``tensors``."""
        if self.layout.is_flat or self.layout.labels is None:
            raise PlanError("label_tensors are those of a dataset with features= and labels=; this one has no labels=")
        return self.tensors[1]

    @property
    def output_shapes(self) -> Any:
        """The tensors' shapes, in the structure of ``tensors``."""
        rows = [self.static_rows()] if self.has_batch else []
        return rebuilt(self.layout.structure, iter([[*rows, *f.shape] for f in self.layout.fields.values()]))

    @property
    def input_names(self) -> list[str]:
        """The names that were given to the tensors."""
        return [field.name for field in self.layout.fields.values()]

    def static_rows(self) -> int | None:
        """The number of rows that every call has, where it is fixed."""
        if not self.hard_code_batch_size:
            return None
        if self.batch_per_thread > 0:
            return self.batch_per_thread
        from firesteel.cluster.preflight import nodes

        ranks = nodes(self.origin.session())
        if self.batch_size % ranks:
            raise PlanError(
                f"with hard_code_batch_size, batch_size must be a multiple of {ranks} replicas, not {self.batch_size}"
            )
        return self.batch_size // ranks

    def feeds(self) -> dict[str, Any]:
        """The placeholders by their names in a batch."""
        return dict(zip(self.layout.fields, leaves(self.tensors), strict=True))

    def get_num_partitions(self) -> int:
        """How many partitions the rows are in."""
        return self.origin.partitions()

    # --- from here and there ---

    @staticmethod
    def from_rdd(
        rdd: Any,
        names: Sequence[str] | None = None,
        shapes: Sequence[Any] | None = None,
        types: Sequence[Any] | None = None,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        val_rdd: Any = None,
        features: Any = None,
        labels: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """From an RDD with one element to a row.

        Args:
            rdd: of lists of arrays (flat form), or of structures as ``features`` and ``labels`` say.
            names: of the tensors, in the flat form; default ``["features", "labels"]``.
            shapes: of a row, one for each name.
            types: of the tensors; default float32.
            batch_size: rows of a training step over all replicas.
            batch_per_thread: rows of a call in one task, for prediction and evaluation.
            hard_code_batch_size: tensors have a fixed number of rows.
            val_rdd: rows to validate on.
            features: ``(dtype, shape)``, or a list or dict of such, instead of the flat form.
            labels: likewise; elements are then ``(features, labels)``.
            memory_type: ``DRAM``, ``PMEM``, ``DIRECT`` or ``DISK_n``.
            sequential_order: train in the order of the rows.
            shuffle: a new order in each epoch.
        """
        if not is_rdd(rdd):
            raise PlanError(f"from_rdd needs an RDD, not {type(rdd).__qualname__}")
        layout = _stated_layout(features, labels) if features is not None else _flat_layout(names, shapes, types)
        return TFDataset(
            layout,
            Elements(rdd, layout),
            None if val_rdd is None else Elements(val_rdd, layout),
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_ndarrays(
        tensors: Any,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        val_tensors: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """From arrays on the driver: ``(x, y)`` or ``(x,)``, with lists and dicts inside, cut along the first axis."""
        layout = _array_layout(tensors)
        origin = _arrays(tensors, layout)
        validation = None
        if val_tensors is not None:
            other = _array_layout(val_tensors)
            _check_same(layout, other, "val_tensors")
            validation = _arrays(val_tensors, layout)
        return TFDataset(
            layout,
            origin,
            validation,
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_dataframe(
        df: Any,
        feature_cols: Sequence[str],
        labels_cols: Sequence[str] | None = None,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_df: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """From columns of a DataFrame, classic or Connect; tensors are named as the columns."""
        if not is_frame(df):
            raise PlanError(f"from_dataframe needs a Spark DataFrame, not {type(df).__qualname__}")
        features = _listed(feature_cols, "feature_cols")
        labels = [] if labels_cols is None else _listed(labels_cols, "labels_cols")
        reading, fields = column_fields(df, features, labels)
        x, y = fields[: len(features)], fields[len(features) :]
        layout = Layout(x[0] if len(x) == 1 else x, None if not y else y[0] if len(y) == 1 else y)
        validation = None
        if validation_df is not None:
            if not is_frame(validation_df):
                raise PlanError(f"validation_df must be a Spark DataFrame, not {type(validation_df).__qualname__}")
            other, found = column_fields(validation_df, features, labels)
            for mine, theirs in zip(fields, found, strict=True):
                if mine != theirs:
                    raise SchemaError(
                        f"column {mine.name!r} is of another type in validation_df: {theirs.dtype} of rank "
                        f"{len(theirs.shape)}, and {mine.dtype} of rank {len(mine.shape)} in the training data",
                        column=mine.name,
                    )
            validation = Columns(validation_df, other, (tuple(features), tuple(labels)))
        return TFDataset(
            layout,
            Columns(df, reading, (tuple(features), tuple(labels))),
            validation,
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_tf_data_dataset(
        dataset: Any,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_dataset: Any = None,
        sequential_order: bool = False,
        shuffle: bool = True,
        remove_checking: bool = False,
        batch_outside: bool = False,
        inter_threads: int | None = None,
        intra_threads: int | None = None,
        auto_shard_files: bool = False,
    ) -> TFDataset:
        """From a ``tf.data.Dataset`` of single elements, or a function that returns one.

        The dataset's graph runs in each replica, which takes its part of every batch; lookup tables are initialized
        there. A function is called there, and may hold Python of its own.

        Args:
            dataset: made in a graph or eagerly.
            batch_size: rows of a training step over all replicas.
            batch_per_thread: rows of a call, for prediction and evaluation.
            hard_code_batch_size: tensors have a fixed number of rows.
            validation_dataset: to validate on; of the same structure.
            sequential_order: train in the dataset's own order.
            shuffle: mix elements anew in each epoch.
            remove_checking: take datasets with ``.batch`` or ``.repeat`` inside.
            batch_outside: the dataset's elements are batches already.
            inter_threads: accepted; replicas use the cores of their tasks.
            intra_threads: likewise.
            auto_shard_files: accepted; every replica reads all and takes its part.
        """
        # Rows to be scored come in the dataset's own order.
        is_shuffled = bool(shuffle) and not sequential_order and batch_size != -1
        layout, form = _streamed(dataset, batch_outside, is_shuffled, remove_checking)
        validation = None
        if validation_dataset is not None:
            other, held = _streamed(validation_dataset, batch_outside, False, remove_checking)
            _check_same(layout, other, "validation_dataset")
            validation = Streams(held, validation_dataset)
        return TFDataset(
            layout,
            Streams(form, dataset),
            validation,
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_tfrecord_file(
        sc: Any,
        file_path: str,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_file_path: str | None = None,
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """From TFRecord files (paths, folders or globs, separated by commas): each record's bytes as a string."""
        from firesteel.data.tfrecord import read_record_bytes

        def frame(paths: str) -> Any:
            return read_record_bytes(
                [path.strip() for path in paths.split(",") if path.strip()], spark=session_of(None)
            )

        validation = None if validation_file_path is None else frame(validation_file_path)
        return _bytes_dataset(
            frame(file_path),
            validation,
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_string_rdd(
        string_rdd: Any,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_string_rdd: Any = None,
    ) -> TFDataset:
        """From an RDD of strings: each, as UTF-8, is a ``tf.string`` scalar."""
        return TFDataset.from_bytes_rdd(
            string_rdd, batch_size, batch_per_thread, hard_code_batch_size, validation_string_rdd
        )

    @staticmethod
    def from_bytes_rdd(
        bytes_rdd: Any,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_bytes_rdd: Any = None,
    ) -> TFDataset:
        """From an RDD of bytes: each is a ``tf.string`` scalar."""
        for rdd in (bytes_rdd, *([] if validation_bytes_rdd is None else [validation_bytes_rdd])):
            if not is_rdd(rdd):
                raise PlanError(f"an RDD of strings or bytes is needed, not {type(rdd).__qualname__}")
        layout = Layout(Field("string", (), "input0"))
        return TFDataset(
            layout,
            Elements(bytes_rdd, layout),
            None if validation_bytes_rdd is None else Elements(validation_bytes_rdd, layout),
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
        )

    @staticmethod
    def from_image_set(
        image_set: Any,
        image: Any,
        label: Any = None,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_image_set: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """From images: an RDD of ``(ndarray[, label])``, an XShards, or a DataFrame with ``image`` and ``label``.

        Args:
            image_set: the images; in a DataFrame arrays, encoded bytes, or Spark's own image struct.
            image: ``(dtype, shape)`` of a row.
            label: likewise; ``None`` without labels.
            batch_size: see ``from_rdd``, as the other arguments.
            batch_per_thread: see there.
            hard_code_batch_size: see there.
            validation_image_set: of the same kind.
            memory_type: see there.
            sequential_order: see there.
            shuffle: see there.
        """
        return _set_dataset(
            image_set,
            validation_image_set,
            _stated_layout(image, label),
            {"x": ["image"], "y": ["label"]},
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_text_set(
        text_set: Any,
        text: Any,
        label: Any = None,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_image_set: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
        validation_text_set: Any = None,
    ) -> TFDataset:
        """From arrays of token ids, as ``from_image_set`` takes images; a DataFrame's columns are ``text``, ``label``.

        The validation set is called ``validation_image_set`` for old scripts' sake, and ``validation_text_set``.
        """
        if validation_image_set is not None and validation_text_set is not None:
            raise PlanError("validation_image_set and validation_text_set are the same argument: give one")
        return _set_dataset(
            text_set,
            validation_image_set if validation_text_set is None else validation_text_set,
            _stated_layout(text, label),
            {"x": ["text"], "y": ["label"]},
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_feature_set(
        dataset: Any,
        features: Any,
        labels: Any = None,
        batch_size: int = -1,
        batch_per_thread: int = -1,
        hard_code_batch_size: bool = False,
        validation_dataset: Any = None,
    ) -> TFDataset:
        """From an XShards, an RDD or a DataFrame whose structure is stated, as for ``from_rdd``.

        A DataFrame's columns are those that a dict of features names, else its first ones, in order.
        """
        layout = _stated_layout(features, labels)
        return _set_dataset(
            dataset,
            validation_dataset,
            layout,
            None,
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
        )


def dataset_of(tensors: Sequence[Any]) -> TFDataset | None:
    """The dataset whose placeholders these are among; ``PlanError`` where they are of two."""
    found: dict[int, TFDataset] = {}
    for tensor in tensors:
        known = dict(tensor.graph.get_collection_ref(_KNOWN))
        if tensor.name in known:
            found[id(known[tensor.name])] = known[tensor.name]
    if len(found) > 1:
        raise PlanError("the loss depends on the tensors of two datasets; put both kinds of rows into one")
    return next(iter(found.values()), None)


# --- what a layout is made of -----------------------------------------------------------------------------------------


def _placeholders(fields: Sequence[Field], has_batch: bool, rows: int | None) -> tuple[Any, list[Any]]:
    import tensorflow as tf

    if tf.executing_eagerly():
        raise PlanError(
            "tensors are placeholders of a graph, and eager execution is on: write from firesteel import tf1 as tf "
            "before anything else of TensorFlow, or put with tf.Graph().as_default(): around the graph"
        )
    made = []
    for field in fields:
        shape = [rows, *field.shape] if has_batch else list(field.shape)
        made.append(tf.compat.v1.placeholder(tf.as_dtype(field.dtype), shape, _plain(field.name)))
    return tf.compat.v1.get_default_graph(), made


def _plain(name: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
    return found if re.match(r"[A-Za-z0-9.]", found) else f"t{found}"


def _dtype(given: Any) -> str:
    import tensorflow as tf

    try:
        return str(tf.as_dtype(given).name)
    except TypeError:
        raise PlanError(
            f"{given!r} is not a dtype of tensors: give tf.float32, tf.int32, tf.string and the like"
        ) from None


def _stated_layout(features: Any, labels: Any) -> Layout:
    def called(place: int | str | None) -> str:
        return "input0" if place is None else f"list_input_{place}"

    x = stated(features, called, "features", _dtype)
    return Layout(x, None if labels is None else stated(labels, called, "labels", _dtype))


def _flat_layout(names: Any, shapes: Any, types: Any) -> Layout:
    if shapes is None:
        raise PlanError(
            "from_rdd needs names=, shapes= and types=, or features= (and labels=): there is no shape to go by"
        )
    called = list(names) if names is not None else ["features", "labels"][: len(shapes)]
    if len(called) != len(shapes) or (types is not None and len(types) != len(called)):
        count = "default" if types is None else len(types)
        raise PlanError(f"names, shapes and types must be as many: there are {len(called)}, {len(shapes)} and {count}")
    kinds = ["float32"] * len(called) if types is None else [_dtype(kind) for kind in types]
    fields = [
        Field(kind, checked_shape(shape, name), name) for kind, shape, name in zip(kinds, shapes, called, strict=True)
    ]
    return Layout(fields, is_flat=True)


def _array_layout(tensors: Any) -> Layout:
    count = iter(range(10**6))

    def field(array: Any) -> Field:
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            raise PlanError(f"from_ndarrays needs arrays with rows, not {type(array).__qualname__}")
        dtype = "string" if array.dtype.kind in "OUS" else "float32" if array.dtype == np.float64 else array.dtype.name
        return Field(dtype, tuple(array.shape[1:]), f"input_{next(count)}")

    made = rebuilt(tensors, map(field, leaves(tensors)))
    layout = _parted(made)
    lengths = [len(array) for array in leaves(tensors)]
    if len(set(lengths)) > 1:
        raise PlanError(f"arrays must have the same number of rows, and have {', '.join(map(str, lengths))}")
    return layout


def _arrays(tensors: Any, layout: Layout) -> Arrays:
    fields = layout.fields
    batch = {}
    for (name, field), array in zip(fields.items(), leaves(tensors), strict=True):
        batch[name] = array.astype(object) if field.dtype == "string" else array.astype(field.dtype, copy=False)
    given = rebuilt(tensors, iter(batch.values()))
    return Arrays(batch, layout, given)


def _check_same(layout: Layout, other: Layout, what: str) -> None:
    """A validation source has the training source's structure, dtypes and shapes."""
    mine, theirs = layout.fields, other.fields
    if list(mine) != list(theirs):
        raise PlanError(f"{what} has {len(theirs)} tensors, and the training data {len(mine)}")
    for name, field in mine.items():
        found = theirs[name]
        if (field.dtype, field.shape) != (found.dtype, found.shape):
            raise PlanError(
                f"{what} differs in tensor {field.name!r}: {found.dtype} of shape {found.shape}, and {field.dtype} of "
                f"shape {field.shape} in the training data"
            )


def _streamed(dataset: Any, is_batched: bool, is_shuffled: bool, is_unchecked: bool) -> tuple[Layout, Any]:
    datasets = registry.framework("tfgraph").datasets  # type: ignore[attr-defined]
    packed = None
    if datasets.is_dataset(dataset):
        # First of all what cannot travel is told: a Python function's result has no known shape either.
        refuse = () if is_unchecked else ("Repeat",) if is_batched else ("Batch", "Repeat")
        packed = datasets.pack_dataset(dataset, (), is_batched=is_batched, refuse=refuse)
        spec = dataset.element_spec
    elif callable(dataset):
        spec = datasets.spec_of(dataset)
    else:
        raise PlanError(f"a tf.data.Dataset or a function that makes one is needed, not {type(dataset).__qualname__}")
    layout = _spec_layout(spec, is_batched)
    mixed = _mixed(layout) if is_shuffled and not is_batched else 0
    names = tuple(layout.fields)
    if packed is None:
        return layout, datasets.made_by(dataset, names, is_batched=is_batched, shuffle=mixed)
    return layout, replace(packed, form=replace(packed.form, names=names, shuffle=mixed))


def _mixed(layout: Layout) -> int:
    """How many elements are shuffled together: not more than fit a replica's memory beside its model."""
    sizes = [8 * int(np.prod([length or 64 for length in field.shape])) for field in layout.fields.values()]
    return max(100, min(_SHUFFLED_ELEMENTS, _SHUFFLED_BYTES // max(1, sum(sizes))))


def _spec_layout(spec: Any, is_batched: bool) -> Layout:
    count = iter(range(10**6))

    def field(each: Any) -> Field:
        if each.shape.rank is None:
            raise PlanError("elements of the dataset need a known number of axes: set_shape or ensure_shape tells it")
        shape = tuple(each.shape.as_list())
        return Field(each.dtype.name, shape[1:] if is_batched else shape, f"input_{next(count)}")

    # Sorted as TensorFlow flattens dicts, for that is the order in which elements come.
    return _parted(_sorted(spec, field))


def _parted(made: Any) -> Layout:
    """Features and labels, where a structure is a pair; else all of it is features, as it is."""
    if isinstance(made, tuple) and len(made) in (1, 2):
        return Layout(made[0], made[1] if len(made) == 2 else None)
    return Layout(made, is_bare=True)


def _sorted(spec: Any, field: Callable[[Any], Field]) -> Any:
    if isinstance(spec, Mapping):
        return {key: replace(_sorted(spec[key], field), name=str(key)) for key in sorted(spec)}
    if isinstance(spec, (list, tuple)):
        parts = [_sorted(part, field) for part in spec]
        return tuple(parts) if isinstance(spec, tuple) else parts
    return field(spec)


def _bytes_dataset(df: Any, validation: Any, **options: Any) -> TFDataset:
    layout = Layout(Field("string", (), "input0"))

    def origin(frame: Any) -> Columns:
        reading, _ = column_fields(frame, ["value"], [])
        return Columns(frame, reading, (("value",), ()))

    return TFDataset(layout, origin(df), None if validation is None else origin(validation), **options)


def _set_dataset(data: Any, validation: Any, layout: Layout, columns: Any, **options: Any) -> TFDataset:
    """From a set of images, texts or features, of any kind that the data room reads."""

    def origin(given: Any) -> Origin:
        if is_rdd(given):
            return Elements(given, layout)
        if isinstance(given, XShards):
            return Shards(given, layout)
        if is_frame(given):
            return stated_columns(given, layout, _column_names(given, layout, columns))
        raise UnsupportedError(f"an RDD, an XShards or a DataFrame is needed, not {type(given).__qualname__}")

    return TFDataset(layout, origin(data), None if validation is None else origin(validation), **options)


def _column_names(df: Any, layout: Layout, columns: Mapping[str, Sequence[str]] | None) -> dict[str, str]:
    fields = layout.fields
    if columns is not None:
        return {name: columns[name[0]][int(name[1:])] for name in fields}
    named = [list(part) if isinstance(part, Mapping) else [None] * len(list(leaves(part))) for part in layout.structure]
    wanted = [name for part in named for name in part]
    free = iter([name for name in df.columns if name not in wanted])
    try:
        return {name: key if key is not None else next(free) for name, key in zip(fields, wanted, strict=True)}
    except StopIteration:
        raise SchemaError(f"the DataFrame has {len(df.columns)} columns, and {len(fields)} are stated") from None


def _listed(names: Any, what: str) -> list[str]:
    if isinstance(names, str) or not isinstance(names, (list, tuple)) or not names:
        raise PlanError(f"{what} must be a list of column names, not {names!r}")
    return [str(name) for name in names]


def _size(value: Any, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value == -1:
        return -1
    return positive(value, name) or -1
