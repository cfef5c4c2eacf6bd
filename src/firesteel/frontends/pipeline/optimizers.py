"""Options of TensorFlow's optimizers as JSON text: what ``optimizerOptions`` takes."""

from __future__ import annotations

import json
from typing import Any

from firesteel.core.errors import PlanError, UnknownName

__all__ = [
    "OPTIMIZERS",
    "build_adadelta_config",
    "build_adagrad_config",
    "build_adam_config",
    "build_gradient_descent",
    "build_momentum_config",
    "build_rmsprop_config",
    "check_optimizer",
    "generate_config",
    "options_of",
]

OPTIMIZERS = (
    "adam",
    "rmsprop",
    "momentum",
    "adadelta",
    "adagrad",
    "gradient_descent",
    "adagrad_da",
    "ftrl",
    "proximal_adagrad",
    "proximal_gradient_descent",
)


def check_optimizer(name: Any) -> str:
    """One of the names above; ``UnknownName`` lists them."""
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    return str(name)


def options_of(text: str | None, rate: float) -> dict[str, Any]:
    """The keyword arguments for an optimizer: those of the text, and the rate where that has none."""
    if not text:
        return {"learning_rate": rate}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PlanError(f"optimizerOptions is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PlanError(f"optimizerOptions must be a JSON object, not {text!r}")
    return {"learning_rate": rate, **found}


def generate_config(**options: Any) -> str:
    """Any options."""
    return json.dumps(options)


def build_adam_config(
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: bool = False,
) -> str:
    """Options of ``adam``."""
    return generate_config(
        learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, use_locking=use_locking
    )


def build_rmsprop_config(
    learning_rate: float = 0.001,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    use_locking: bool = False,
    centered: bool = False,
) -> str:
    """Options of ``rmsprop``."""
    return generate_config(
        learning_rate=learning_rate,
        decay=decay,
        momentum=momentum,
        epsilon=epsilon,
        use_locking=use_locking,
        centered=centered,
    )


def build_momentum_config(
    learning_rate: float = 0.001, momentum: float = 0.9, use_locking: bool = False, use_nesterov: bool = False
) -> str:
    """Options of ``momentum``."""
    return generate_config(
        learning_rate=learning_rate, momentum=momentum, use_locking=use_locking, use_nesterov=use_nesterov
    )


def build_adadelta_config(
    learning_rate: float = 0.001, rho: float = 0.95, epsilon: float = 1e-8, use_locking: bool = False
) -> str:
    """Options of ``adadelta``."""
    return generate_config(learning_rate=learning_rate, rho=rho, epsilon=epsilon, use_locking=use_locking)


def build_adagrad_config(
    learning_rate: float = 0.001, initial_accumulator: float = 0.1, use_locking: bool = False
) -> str:
    """Options of ``adagrad``."""
    return generate_config(
        learning_rate=learning_rate, initial_accumulator=initial_accumulator, use_locking=use_locking
    )


def build_gradient_descent(learning_rate: float = 0.001, use_locking: bool = False) -> str:
    """Options of ``gradient_descent``."""
    return generate_config(learning_rate=learning_rate, use_locking=use_locking)
