"""Optimizers as files and specs describe them, with the arguments of Keras 2 or of Keras 3."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from edl_horovod.errors import UserCodeError, did_you_mean

__all__ = ["known_optimizers", "optimizer_of"]

_OF_KERAS_2_ALONE = frozenset({"is_legacy_optimizer", "jit_compile", "schedule_decay"})
"""Arguments that say how the optimizer ran; Nadam's schedule is the same number in Keras 3."""
_EPSILON = 1e-7
"""Keras' own, for which Keras 2 wrote None."""


def known_optimizers() -> dict[str, type[keras.optimizers.Optimizer]]:
    """Keras' optimizers by name."""
    return {
        name: kind
        for name, kind in vars(keras.optimizers).items()
        if inspect.isclass(kind)
        and issubclass(kind, keras.optimizers.Optimizer)
        and kind is not keras.optimizers.Optimizer
    }


def optimizer_of(
    name: str, settings: Mapping[str, Any], *, place: str, is_keras_2: bool
) -> keras.optimizers.Optimizer:
    """An optimizer of Keras by its name, as it was written at some time.

    Args:
        name: Its class in any case, perhaps with `Custom>` before it.
        settings: Its arguments, also Keras 2's `lr` and `decay`.
        place: Says in messages where it stands.
        is_keras_2: Whether Keras 2 wrote them; then its defaults count.

    Raises:
        UserCodeError: Keras has no such optimizer, or it does not take an argument.
    """
    known = known_optimizers()
    by_lower_case = {key.lower(): kind for key, kind in known.items()}
    kind = by_lower_case.get(name.rpartition(">")[2].rpartition(".")[2].lower())
    if kind is None:
        raise UserCodeError(
            f"Keras has no optimizer {name!r}, which {place} names.",
            received={"optimizer": name},
            cure=f"{did_you_mean(name, known)} It has: {', '.join(sorted(known))}.",
        )
    arguments = _todays(kind, settings, place, is_keras_2=is_keras_2)
    try:
        return kind.from_config(arguments)
    except (TypeError, ValueError) as e:
        raise UserCodeError(f"The optimizer {name!r} of {place} cannot be made: {e}") from e


def _todays(
    kind: type[keras.optimizers.Optimizer],
    settings: Mapping[str, Any],
    place: str,
    *,
    is_keras_2: bool,
) -> dict[str, Any]:
    arguments = {key: value for key, value in settings.items() if key not in _OF_KERAS_2_ALONE}
    if "lr" in arguments:
        if "learning_rate" in arguments:
            raise UserCodeError(
                f"lr and learning_rate of {place} are both the learning rate.",
                received={key: arguments[key] for key in ("lr", "learning_rate")},
                cure="Give one.",
            )
        arguments["learning_rate"] = arguments.pop("lr")
    decay = arguments.pop("decay", None)
    taken = set(inspect.signature(kind).parameters) - {"kwargs"}
    if "learning_rate" in taken:
        rate = arguments.get("learning_rate", _default_rate(kind))
        arguments["learning_rate"] = _rate(rate, decay or 0.0, place)
    if arguments.get("epsilon", 1) is None:
        arguments["epsilon"] = _EPSILON
    if is_keras_2 and kind is keras.optimizers.Adagrad:
        # Keras 2 without TensorFlow knew no other, and wrote none.
        arguments.setdefault("initial_accumulator_value", 0.0)
    for key in list(arguments):
        if key not in taken:
            raise UserCodeError(
                f"Keras' {kind.__name__} takes no {key!r}, which {place} gives it.",
                received={key: arguments[key]},
                cure=f"{did_you_mean(key, taken)} It takes: {', '.join(sorted(taken))}.",
            )
    return arguments


def _default_rate(kind: type[keras.optimizers.Optimizer]) -> Any:
    return inspect.signature(kind).parameters["learning_rate"].default


def _rate(rate: Any, decay: float, place: str) -> Any:
    """A learning rate: a number, or a schedule; Keras 2's decay is one."""
    if isinstance(rate, Mapping):
        name = str(rate.get("class_name"))
        known = _schedules()
        if name not in known:
            raise UserCodeError(
                f"Keras has no schedule {name!r}, which {place} names.",
                received={"learning_rate": name},
                cure=f"{did_you_mean(name, known)} It has: {', '.join(sorted(known))}.",
            )
        schedule = {"module": "keras.optimizers.schedules", "registered_name": None, **rate}
        if not decay:
            return schedule
    if not decay:
        return float(rate)
    if isinstance(rate, Mapping):
        raise UserCodeError(
            f"The optimizer of {place} has a schedule and a decay.",
            received={"decay": decay},
            cure="Leave out the decay.",
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
        name for name, kind in vars(keras.optimizers.schedules).items() if inspect.isclass(kind)
    ]
