"""Create optimizers from their description in files and specs of Keras 2 or Keras 3."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from edl_horovod.errors import UserCodeError, did_you_mean

__all__ = ["known_optimizers", "make_optimizer"]

_KERAS_2_ONLY = frozenset({"is_legacy_optimizer", "jit_compile", "schedule_decay"})
"""Arguments to drop: runtime options, and Nadam's schedule, which is constant in Keras 3."""
_EPSILON = 1e-7
"""Keras' default, for which Keras 2 saved None."""


def known_optimizers() -> dict[str, type[keras.optimizers.Optimizer]]:
    """Map the names of Keras' optimizers to their classes."""
    return {
        name: value
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value)
        and issubclass(value, keras.optimizers.Optimizer)
        and value is not keras.optimizers.Optimizer
    }


def make_optimizer(
    name: str, settings: Mapping[str, Any], *, source: str, is_keras_2: bool
) -> keras.optimizers.Optimizer:
    """Create a Keras optimizer from its name and arguments.

    Args:
        name: The name of the class in any case, optionally with the prefix `Custom>`.
        settings: The arguments; `lr` and `decay` of Keras 2 are accepted.
        source: Name of the file or spec in messages.
        is_keras_2: Whether Keras 2 wrote the arguments, so that its defaults apply.

    Raises:
        UserCodeError: Keras has no such optimizer, or it does not accept an argument.
    """
    known = known_optimizers()
    by_lower_case = {key.lower(): value for key, value in known.items()}
    optimizer_class = by_lower_case.get(name.rpartition(">")[2].rpartition(".")[2].lower())
    if optimizer_class is None:
        raise UserCodeError(
            f"Keras has no optimizer {name!r}, which {source} refers to.",
            received={"optimizer": name},
            hint=f"{did_you_mean(name, known)} Available: {', '.join(sorted(known))}.",
        )
    arguments = _current_arguments(optimizer_class, settings, source, is_keras_2=is_keras_2)
    try:
        return optimizer_class.from_config(arguments)
    except (TypeError, ValueError) as e:
        raise UserCodeError(f"The optimizer {name!r} of {source} cannot be created: {e}") from e


def _current_arguments(
    optimizer_class: type[keras.optimizers.Optimizer],
    settings: Mapping[str, Any],
    source: str,
    *,
    is_keras_2: bool,
) -> dict[str, Any]:
    arguments = {key: value for key, value in settings.items() if key not in _KERAS_2_ONLY}
    if "lr" in arguments:
        if "learning_rate" in arguments:
            raise UserCodeError(
                f"The optimizer of {source} has both lr and learning_rate.",
                received={key: arguments[key] for key in ("lr", "learning_rate")},
                hint="Remove lr.",
            )
        arguments["learning_rate"] = arguments.pop("lr")
    decay = arguments.pop("decay", None)
    accepted = set(inspect.signature(optimizer_class).parameters) - {"kwargs"}
    if "learning_rate" in accepted:
        rate = arguments.get("learning_rate", _default_rate(optimizer_class))
        arguments["learning_rate"] = _rate(rate, decay or 0.0, source)
    if arguments.get("epsilon", 1) is None:
        arguments["epsilon"] = _EPSILON
    if is_keras_2 and optimizer_class is keras.optimizers.Adagrad:
        # Keras 2 without TensorFlow always started at 0 and did not save the setting.
        arguments.setdefault("initial_accumulator_value", 0.0)
    for key in list(arguments):
        if key not in accepted:
            raise UserCodeError(
                f"Keras' {optimizer_class.__name__} does not accept {key!r}, which {source} sets.",
                received={key: arguments[key]},
                hint=f"{did_you_mean(key, accepted)} Accepted: {', '.join(sorted(accepted))}.",
            )
    return arguments


def _default_rate(optimizer_class: type[keras.optimizers.Optimizer]) -> Any:
    return inspect.signature(optimizer_class).parameters["learning_rate"].default


def _rate(rate: Any, decay: float, source: str) -> Any:
    """Build a learning rate: a number, or a schedule, which replaces the decay of Keras 2."""
    if isinstance(rate, Mapping):
        name = str(rate.get("class_name"))
        known = _schedules()
        if name not in known:
            raise UserCodeError(
                f"Keras has no schedule {name!r}, which {source} refers to.",
                received={"learning_rate": name},
                hint=f"{did_you_mean(name, known)} Available: {', '.join(sorted(known))}.",
            )
        schedule = {"module": "keras.optimizers.schedules", "registered_name": None, **rate}
        if not decay:
            return schedule
    if not decay:
        return float(rate)
    if isinstance(rate, Mapping):
        raise UserCodeError(
            f"The optimizer of {source} has both a schedule and a decay.",
            received={"decay": decay},
            hint="Remove the decay.",
        )
    settings = {"initial_learning_rate": float(rate), "decay_steps": 1, "decay_rate": decay}
    return {
        "module": "keras.optimizers.schedules",
        "class_name": "InverseTimeDecay",
        "config": settings,
        "registered_name": None,
    }


def _schedules() -> list[str]:
    return [
        name for name, value in vars(keras.optimizers.schedules).items() if inspect.isclass(value)
    ]
