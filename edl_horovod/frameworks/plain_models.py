"""Parts of models without a spec that do not depend on a framework."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from edl_horovod.models.parts import DATASET_ROLES, with_roles
from edl_horovod.spec import Mode

Part = Callable[..., Any]


def model_part(
    create: Callable[..., Any], parameters: Iterable[inspect.Parameter], *, label: str
) -> Part:
    """Create a `create_model` whose parameters are all passed by keyword.

    Args:
        create: Takes the parameters by keyword and returns the model.
        parameters: The parameters of the user's class or function.
        label: Its name in messages.
    """

    def create_model(**params: Any) -> Any:
        return create(**params)

    kind = inspect.Parameter.KEYWORD_ONLY
    by_keyword = [parameter.replace(kind=kind) for parameter in parameters]
    create_model.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    create_model.__qualname__ = label
    return create_model


def dataset_part(
    function: Part, *, label: str, check: Callable[[Any], None] = lambda _: None
) -> Part:
    """Create a `create_dataset` from a function of the records and, if declared, the mode.

    Args:
        function: The user's function; further parameters are parameters of the model.
        label: Its name in messages.
        check: Raises an error for an unusable result.
    """
    make = with_roles(function, DATASET_ROLES, label=label)
    user_parameters = list(inspect.signature(make).parameters.values())[len(DATASET_ROLES) :]

    def create_dataset(dataset: Any, mode: Mode, **params: Any) -> Any:
        examples = make(dataset, mode, None, **params)
        check(examples)
        return examples

    role_parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in ("dataset", "mode")
    ]
    signature = inspect.Signature([*role_parameters, *user_parameters])
    create_dataset.__signature__ = signature  # type: ignore[attr-defined]
    create_dataset.__qualname__ = label
    return create_dataset


def named_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """List a function's parameters without `*args` and `**kwargs`."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.kind not in variable]
