"""What a user does with a layer in their hands: NumPy in, NumPy out, weights in BigDL's order and shape."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.frameworks.bigdl.module import Container, Layer, leaves

__all__ = [
    "append",
    "backward",
    "forward",
    "freeze",
    "frozen",
    "get_weights",
    "hidden_state",
    "loss_backward",
    "loss_forward",
    "loss_parts",
    "notes",
    "parameters",
    "regularize",
    "regularized",
    "reset",
    "seed",
    "seeded",
    "set_init",
    "set_label",
    "set_regularizer",
    "set_running",
    "set_weights",
    "stop_gradient",
    "take_notes",
    "to_arrays",
    "to_tensors",
    "update",
    "zero_grad",
]

_TRACES: weakref.WeakKeyDictionary[nn.Module, tuple[Any, ...]] = weakref.WeakKeyDictionary()
"""Each module's last forward: what came in, as given and as tensors, what came out, and the module's stamp."""


# --- arrays and tensors -----------------------------------------------------------------------------------------------


def to_tensors(value: Any, dtype: torch.dtype) -> Any:
    """Arrays as tensors, tables as lists. Real numbers become ``dtype``, whole ones stay whole."""
    if hasattr(value, "to_ndarray"):
        value = value.to_ndarray()
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)) and any(
        isinstance(each, _PARTS) or hasattr(each, "to_ndarray") for each in value
    ):
        return [to_tensors(each, dtype) for each in value]
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise PlanError(f"a layer takes arrays of numbers and lists of them, not {type(value).__qualname__}")
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    tensor = torch.from_numpy(np.array(array))  # copied: torch has no read-only tensors
    return tensor.to(dtype) if array.dtype.kind == "f" else tensor


_PARTS = (np.ndarray, torch.Tensor, list, tuple)


def to_arrays(value: Any) -> Any:
    """The reverse: arrays, and lists of them."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    return [to_arrays(each) for each in value]


def _leaf_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for each in value:
            yield from _leaf_tensors(each)


def _gradients(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point():
            return np.zeros(tuple(value.shape), np.float32)
        return (
            np.zeros(tuple(value.shape), value.numpy(force=True).dtype) if value.grad is None else to_arrays(value.grad)
        )
    return [_gradients(each) for each in value]


# --- computing --------------------------------------------------------------------------------------------------------


def forward(module: nn.Module, given: Any, dtype: str) -> Any:
    """Outputs, with what ``backward`` will need."""
    tensors = to_tensors(given, getattr(torch, dtype))
    for tensor in _leaf_tensors(tensors):
        tensor.requires_grad_(tensor.is_floating_point())
    outputs = _called(module, tensors)
    _TRACES[module] = (given, tensors, outputs, _stamp(module))
    return to_arrays(outputs)


def backward(module: nn.Module, given: Any, gradient: Any, dtype: str) -> Any:
    """The input's gradient; adds to the parameters'. Goes back along the last forward, if that was of this input."""
    trace = _TRACES.get(module)
    if trace is None or trace[3] != _stamp(module) or not _is_same(trace[0], given):
        forward(module, given, dtype)
        trace = _TRACES[module]
    _, tensors, outputs, _ = trace
    for tensor in _leaf_tensors(tensors):
        tensor.grad = None
    pairs = [*zip(_leaf_tensors(outputs), _leaf_tensors(to_tensors(gradient, getattr(torch, dtype))), strict=True)]
    for made, wanted in pairs:
        if made.shape != wanted.shape and made.numel() != wanted.numel():
            raise PlanError(f"grad_output has shape {tuple(wanted.shape)}, the output {tuple(made.shape)}")
    pairs = [(made, wanted.reshape(made.shape).to(made.dtype)) for made, wanted in pairs if made.requires_grad]
    if pairs:
        torch.autograd.backward([made for made, _ in pairs], [wanted for _, wanted in pairs], retain_graph=True)
        for parameter, strengths in regularized(module):
            if parameter.grad is not None:
                regularize(parameter, parameter.grad, strengths)
    return _gradients(tensors)


def loss_forward(criterion: nn.Module, output: Any, target: Any, dtype: str) -> float:
    """A criterion's value."""
    number = getattr(torch, dtype)
    with torch.no_grad():
        return float(
            criterion(
                _floating(to_tensors(output, number), number), None if target is None else to_tensors(target, number)
            )
        )


def loss_parts(criterion: nn.Module, output: Any, target: Any, dtype: str) -> tuple[list[float], list[float]]:
    """Of each part of a criterion: the sum, and what it is divided by."""
    number = getattr(torch, dtype)
    given = None if target is None else to_tensors(target, number)
    with torch.no_grad():
        parts = criterion.parts(_floating(to_tensors(output, number), number), given)
    masses = [part.mass for part in parts]
    return [float(part.value) * (1.0 if part.kind == "sum" else part.mass) for part in parts], masses


def loss_backward(criterion: nn.Module, output: Any, target: Any, dtype: str) -> Any:
    """The gradient of a criterion with respect to the output."""
    number = getattr(torch, dtype)
    tensors = _floating(to_tensors(output, number), number)
    for tensor in _leaf_tensors(tensors):
        tensor.requires_grad_(True)
    loss = criterion(tensors, None if target is None else to_tensors(target, number))
    if loss.requires_grad:
        loss.backward()
    return _gradients(tensors)


def _floating(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) else [_floating(each, dtype) for each in value]


def _called(module: nn.Module, tensors: Any) -> Any:
    if not isinstance(module, Layer) and isinstance(tensors, list):
        return module(*tensors)
    return module(tensors)


def _stamp(module: nn.Module) -> Any:
    """Changes with whatever would make another forward give something else."""
    tensors = [*module.parameters(), *module.buffers()]
    return module.training, [(id(each), each._version, each.requires_grad) for each in tensors]


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.array_equal(one, other)


def regularized(module: nn.Module) -> Iterator[tuple[nn.Parameter, tuple[float, float]]]:
    """Parameters that have a regularizer, and its two strengths."""
    for each in module.modules():
        if isinstance(each, Layer):
            for name, strengths in each.regularizers.items():
                parameter = getattr(each, name, None)
                if parameter is not None:
                    yield parameter, strengths


def regularize(weight: torch.Tensor, gradient: torch.Tensor, strengths: tuple[float, float]) -> None:
    """Add ``l1·sign(w) + l2·w`` to a gradient, in place."""
    first, second = strengths
    with torch.no_grad():
        if first:
            gradient.add_(weight.sign(), alpha=first)
        if second:
            gradient.add_(weight, alpha=second)


def zero_grad(module: nn.Module) -> None:
    """Gradients to 0."""
    module.zero_grad(set_to_none=True)


def update(module: nn.Module, rate: float) -> None:
    """``w -= rate · gradient``."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None and parameter.requires_grad:
                parameter.add_(parameter.grad, alpha=-rate)


def seed(number: int) -> None:
    """Seed what is random."""
    torch.manual_seed(int(number))


def seeded(number: int, make: Callable[[], Any]) -> Any:
    """What ``make`` makes with this seed; what is random elsewhere stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(number))
        return make()


def reset(module: nn.Module) -> None:
    """New initial weights."""
    for each in module.modules():
        if isinstance(each, Layer):
            each.reset()
        elif hasattr(each, "reset_parameters"):
            each.reset_parameters()


# --- weights ----------------------------------------------------------------------------------------------------------

_Weight = tuple[nn.Module, str, nn.Parameter]


def _weights(module: nn.Module) -> Iterator[_Weight]:
    for leaf in leaves(module):
        for name, parameter in leaf.named_weights() if isinstance(leaf, Layer) else leaf.named_parameters():
            yield leaf, name, parameter


def _shown(leaf: nn.Module, name: str, tensor: torch.Tensor) -> np.ndarray:
    return to_arrays(leaf.show(name, tensor) if isinstance(leaf, Layer) else tensor)


def get_weights(module: nn.Module) -> list[np.ndarray]:
    """All weights, copied."""
    return [_shown(leaf, name, parameter) for leaf, name, parameter in _weights(module)]


def set_weights(module: nn.Module, given: Any) -> None:
    """Take over what ``get_weights`` gave; all of it or nothing."""
    listed = [each.to_ndarray() if hasattr(each, "to_ndarray") else each for each in _listed(given)]
    weights = list(_weights(module))
    if len(listed) != len(weights):
        names = ", ".join(f"{_label(leaf)}.{name}" for leaf, name, _ in weights) or "none"
        raise PlanError(f"there are {len(weights)} weights ({names}), but {len(listed)} arrays were given")
    taken = []
    for (leaf, name, parameter), array in zip(weights, map(np.asarray, listed), strict=True):
        if isinstance(leaf, Layer):
            taken.append(leaf.take(name, array))
        elif tuple(parameter.shape) == array.shape:
            taken.append(torch.as_tensor(np.array(array), dtype=parameter.dtype))
        else:
            raise PlanError(f"{name} of {_label(leaf)} has shape {tuple(parameter.shape)}, not {array.shape}")
    with torch.no_grad():
        for (_, _, parameter), values in zip(weights, taken, strict=True):
            parameter.copy_(values)


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def parameters(module: nn.Module) -> dict[str, dict[str, np.ndarray]]:
    """By layer name: weights, their gradients, and running means."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for leaf, name, parameter in _weights(module):
        entry = found.setdefault(_label(leaf), {})
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        entry[name] = _shown(leaf, name, parameter)
        entry[f"grad{name[0].upper()}{name[1:]}"] = _shown(leaf, name, gradient)
    for each in module.modules():
        for theirs, ours in (("running_mean", "runningMean"), ("running_var", "runningVar")):
            buffer = getattr(each, theirs, None)
            if isinstance(each, Layer) and isinstance(buffer, torch.Tensor):
                found.setdefault(_label(each), {})[ours] = to_arrays(buffer)
    return found


def _label(module: nn.Module) -> str:
    return module.label if isinstance(module, Layer) else f"{type(module).__name__}{id(module):x}"


def set_label(module: nn.Module, label: str) -> None:
    """Give a layer another name."""
    if isinstance(module, Layer):
        module.label = label


def set_init(module: nn.Module, methods: dict[str, dict[str, Any]]) -> None:
    """How this layer's weights begin, from now on and at once."""
    if not isinstance(module, Layer) or not any(True for _ in module.named_weights()):
        raise UnsupportedError(f"{type(module).__name__} has no weights of its own to begin with")
    module.methods |= methods
    for name in methods:
        module.given.pop(name, None)
    module.reset()


def set_regularizer(module: nn.Module, part: str, strengths: tuple[float, float] | None) -> None:
    """Regularize the weight or the bias from now on; ``None`` stops it."""
    names = module.regularized(part) if isinstance(module, Layer) else ()
    if not names:
        raise UnsupportedError(f"{type(module).__name__} has no {part} to regularize")
    for name in names:
        module.regularizers.pop(name, None)
        if strengths is not None:
            module.regularizers[name] = strengths


def set_running(module: nn.Module, name: str, values: Any) -> None:
    """A batch normalization's running mean or variance."""
    buffer = getattr(module, name, None)
    if not isinstance(buffer, torch.Tensor):
        raise UnsupportedError(f"{type(module).__name__} is no batch normalization: it has no running mean")
    array = np.asarray(values.to_ndarray() if hasattr(values, "to_ndarray") else values)
    if array.size != buffer.numel():
        raise PlanError(f"{name} has {buffer.numel()} numbers, not {array.size}")
    buffer.copy_(torch.as_tensor(np.array(array), dtype=buffer.dtype).reshape(buffer.shape))


def freeze(module: nn.Module, names: Sequence[str] | None, is_frozen: bool) -> None:
    """Keep the weights of these layers, or of all, from being trained; or let them be again."""
    labelled: dict[str, list[nn.Module]] = {}
    for each in module.modules():
        if isinstance(each, Layer):
            labelled.setdefault(each.label, []).append(each)
    chosen = [module] if names is None else []
    for name in names or ():
        if name not in labelled:
            raise UnknownName("layer", name, labelled)
        chosen += labelled[name]
    for each in chosen:
        each.requires_grad_(not is_frozen)


def frozen(module: nn.Module) -> bool:
    """Whether all of this module's weights, and there are some, are kept as they are."""
    mine = list(module.parameters())
    return bool(mine) and not any(parameter.requires_grad for parameter in mine)


def notes(module: nn.Module) -> dict[str, Any]:
    """What a layer was told since it was made, as JSON can hold it: regularizers and ways to begin."""
    if not isinstance(module, Layer):
        return {}
    return {"regularizers": {name: list(each) for name, each in module.regularizers.items()}, "methods": module.methods}


def take_notes(module: nn.Module, found: dict[str, Any]) -> None:
    """The reverse of ``notes``."""
    if isinstance(module, Layer):
        regularizers = found.get("regularizers", {})
        module.regularizers = {name: (float(each[0]), float(each[1])) for name, each in regularizers.items()}
        module.methods = dict(found.get("methods", {}))


def append(module: nn.Module, child: nn.Module) -> None:
    """Put a layer at the end of a container that is made already."""
    assert isinstance(module, Container)
    module.append(child)


def stop_gradient(module: nn.Module, places: Sequence[int]) -> None:
    """Let no gradient pass through the outputs of these nodes of a graph."""
    module.stopped = set(places)


def hidden_state(module: nn.Module) -> Any:
    """A recurrent layer's state after its last forward."""
    if module.hidden is None:
        raise PlanError("there is no hidden state before the first forward")
    parts = _nested(module.hidden)
    return parts[0] if len(parts) == 1 else parts


def _nested(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return to_arrays(state)
    return [_nested(each) for each in state]
