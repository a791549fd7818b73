"""Adapt functions with arbitrary parameter names to the methods of a spec.

ElasticDL called its functions by position, so their authors chose any names for the parameters:
`loss(labels, predictions)`, `loss(output, labels)`, `feed(dataset, mode, _)`.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from edl_horovod.errors import UserCodeError

__all__ = ["DATASET_ROLES", "LOSS_ROLES", "declares_roles", "with_roles"]

Roles = Mapping[str, frozenset[str]]

DATASET_ROLES: Roles = {
    "dataset": frozenset({"dataset", "ds", "records"}),
    "mode": frozenset({"mode"}),
    "metadata": frozenset({"metadata"}),
}
"""Usual parameter names of `feed` by role, in ElasticDL's order."""
LOSS_ROLES: Roles = {
    "labels": frozenset({"labels", "label", "targets", "target", "y_true", "y"}),
    "outputs": frozenset(
        {"outputs", "output", "predictions", "prediction", "preds", "y_pred", "logits"}
    ),
}
"""Usual parameter names of `loss` and metrics by role."""


def with_roles(function: Callable[..., Any], roles: Roles, *, label: str) -> Callable[..., Any]:
    """Wrap a function so that it can be called with roles as parameters.

    A parameter with an unknown name takes the first free role if it has no default; with a default
    it is a parameter of the model, which the user may set in `params`.

    Args:
        function: The user's function.
        roles: Known parameter names by role, in the order of ElasticDL's calls.
        label: Names the function in messages.

    Returns:
        A function that declares the roles as parameters, followed by the model's parameters.

    Raises:
        UserCodeError: The function requires more parameters than there are roles.
    """
    roles_by_name = _roles_by_name(function, roles, label)
    model_parameters = [p for p in _parameters(function) if p.name not in roles_by_name]
    signature = inspect.Signature(
        [inspect.Parameter(role, inspect.Parameter.POSITIONAL_OR_KEYWORD) for role in roles]
        + [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in model_parameters]
    )
    user_signature = inspect.signature(function)

    def adapted(*args: Any, **kwargs: Any) -> Any:
        values = signature.bind_partial(*args, **kwargs).arguments
        call = user_signature.bind_partial()
        for parameter in _parameters(function):
            argument = roles_by_name.get(parameter.name, parameter.name)
            if argument in values:
                call.arguments[parameter.name] = values[argument]
        return function(*call.args, **call.kwargs)

    adapted.__signature__ = signature  # type: ignore[attr-defined]  # What inspect looks for.
    adapted.__qualname__ = adapted.__name__ = label
    return adapted


def declares_roles(function: Callable[..., Any]) -> bool:
    """Whether a function takes labels and outputs itself, instead of no arguments."""
    return any(p.default is inspect.Parameter.empty for p in _parameters(function))


def _roles_by_name(function: Callable[..., Any], roles: Roles, label: str) -> dict[str, str]:
    """The roles that the function's parameters have, by parameter name."""
    parameters = _parameters(function)
    assigned = {
        p.name: role for p in parameters for role, names in roles.items() if p.name in names
    }
    free_roles = [role for role in roles if role not in assigned.values()]
    for parameter in parameters:
        if parameter.name in assigned or parameter.default is not inspect.Parameter.empty:
            continue
        if not free_roles:
            raise UserCodeError(
                f"{label} requires the parameter {parameter.name!r}, which it is not given."
                f" It is given: {', '.join(roles)}.",
                hint="Give the parameter a default.",
            )
        assigned[parameter.name] = free_roles.pop(0)
    return assigned


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in inspect.signature(function).parameters.values() if p.kind not in variable]
