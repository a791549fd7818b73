"""A module's passes in training as compiled programs, by `torch.compile`."""

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edl_horovod.errors import MissingDependency, UserCodeError
from edl_horovod.frameworks.torch.structures import leaves
from edl_horovod.models.calling import first_paragraph

__all__ = ["compiled", "require_compiler"]


def require_compiler() -> None:
    """Look before a training for what PyTorch compiles its programs with.

    Raises:
        MissingDependency: There is no C++ compiler, or there are no headers of Python.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler  # Seconds, which only this takes.
    from torch._inductor.exc import InvalidCxxCompiler

    missing = []
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        missing.append("a C++ compiler")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        missing.append(f"the headers of Python ({header})")
    if missing:
        raise MissingDependency(
            f"Compiling the model needs {' and '.join(missing)} where the job runs.",
            received={"train.compile": True},
            cure="Install the packages g++ and python3-dev of your system, also in images (CXX"
            " names another compiler); or leave train.compile out.",
        )


def compiled(module: nn.Module, label: str) -> Callable[..., Any]:
    """What runs a module in training; the first call compiles it.

    Args:
        module: Built; its parameters and buffers stay where they are.
        label: Of its spec, for messages.
    """
    from torch._inductor import config

    # Its pool of processes would outlive what the worker ends by.
    config.compile_threads = 1
    # Dropout draws what it draws in a module that is not compiled.
    run = torch.compile(module, options={"fallback_random": True})

    def call(*arguments: Any, **keywords: Any) -> Any:
        for leaf in leaves((arguments, keywords)):
            if isinstance(leaf, torch.Tensor) and leaf.ndim:
                # One program for any number of examples, where the module allows that.
                torch._dynamo.maybe_mark_dynamic(leaf, 0)
        try:
            return run(*arguments, **keywords)
        except torch._dynamo.exc.TorchDynamoException as e:
            raise UserCodeError(
                f"PyTorch cannot compile the model of {label}: {first_paragraph(e)}",
                received={"train.compile": True},
                cure="Leave train.compile out, or mark what cannot be compiled with"
                " torch.compiler.disable.",
            ) from e

    return call
