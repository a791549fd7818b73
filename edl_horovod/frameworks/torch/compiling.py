"""Compilation of a module's training passes by `torch.compile`."""

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
    """Check before a training that PyTorch can compile programs.

    Raises:
        MissingDependency: A C++ compiler or the headers of Python are missing.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler  # This import takes seconds.
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
            hint="Install the system packages g++ and python3-dev, also in images (set CXX to use"
            " another compiler); or leave train.compile out.",
        )


def compiled(module: nn.Module, label: str) -> Callable[..., Any]:
    """Return a function that calls a module in training; its first call compiles the module.

    Args:
        module: A built module, whose parameters and buffers are used in place.
        label: Name of its spec, for messages.
    """
    from torch._inductor import config

    # PyTorch's pool of compiling processes would outlive the worker.
    config.compile_threads = 1
    # With fallback_random, dropout draws the same numbers as in a module that is not compiled.
    compiled_module = torch.compile(module, options={"fallback_random": True})

    def call(*arguments: Any, **keywords: Any) -> Any:
        for leaf in leaves((arguments, keywords)):
            if isinstance(leaf, torch.Tensor) and leaf.ndim:
                # Compile one program for any number of examples, if the module allows it.
                torch._dynamo.maybe_mark_dynamic(leaf, 0)
        try:
            return compiled_module(*arguments, **keywords)
        except torch._dynamo.exc.TorchDynamoException as e:
            raise UserCodeError(
                f"PyTorch cannot compile the model of {label}: {first_paragraph(e)}",
                received={"train.compile": True},
                hint="Leave train.compile out, or mark the code that cannot be compiled with"
                " torch.compiler.disable.",
            ) from e

    return call
