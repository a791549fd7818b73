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


OPTIMIZERS = [
    {"class_name": name, "config": {"learning_rate": 0.05, **settings}}
    for name, settings in [
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"use_ema": True, "ema_momentum": 0.9}),
        ("SGD", {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 7}),
        ("AdamW", {"weight_decay": 0.1, "clipnorm": 0.5}),
        ("AdamW", {"weight_decay": 0.5, "exclude": ["bias"]}),
        ("SGD", {"gradient_accumulation_steps": 5}),
        ("SGD", {"loss_scale_factor": 128.0}),
    ]
]
"""Optimizers as Keras writes one down, for the model `fitted` of the zoo of tests."""
