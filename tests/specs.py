"""Models of the zoo with some methods of a test."""

import copy
from dataclasses import replace


def with_methods(loaded, **methods):
    """The same model, whose spec has these methods in place of its own; they get no `self`."""
    kind = type(loaded.spec)
    spec = copy.copy(loaded.spec)
    for name in methods.keys() & vars(spec).keys():
        delattr(spec, name)  # One that has the parameters of the job.
    spec.__class__ = type(
        kind.__name__,
        (kind,),
        {"__module__": kind.__module__, **{n: staticmethod(m) for n, m in methods.items()}},
    )
    return replace(loaded, spec=spec)
