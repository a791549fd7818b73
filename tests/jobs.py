"""The settings of a job, for tests of what is made from them."""

import os
import re

import yaml

from edl_horovod.config import resolved
from edl_horovod.config.conf_files import conf_dir
from edl_horovod.config.schema import JobConfig, TrainConfig
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.records.sources.table import kind_of

NO_OPTIONS = StepOptions()
EXPONENT = re.compile(r"-?\d+e-?\d+")
FILES, PATHS = ("data", "validation_data"), ("output", "job_dir", "model_zoo", "trained_model")


def training(batch_size, train=None, **settings):
    """A job of this batch size; `train` are more of its settings `train.*`."""
    needed = {"task": "train", "data": "data", "output": "output", "model_def": "model"}
    train_config = TrainConfig(batch_size=batch_size, **(train or {}))
    return JobConfig(**needed, train=train_config, **settings)


def config_of(task, overrides=()):
    """The settings of a job as a command would compose them: `key=value`, and choices of conf/.

    Hydra takes 0.2 s for it, and is needed by tests of composing alone.
    """
    values = {"task": task}
    for text in overrides:
        key, _, value = text.partition("=")
        section = values
        *sections, name = key.split(".")
        for part in sections:
            section = section.setdefault(part, {})
        choice = conf_dir() / name / f"{value}.yaml"
        if not sections and value.isidentifier() and choice.is_file():
            values[name] = {**yaml.safe_load(choice.read_text()), **values.get(name, {})}
            continue
        # YAML 1.1 takes 1e-3 for a text, and Hydra does not.
        parsed = float(value) if EXPONENT.fullmatch(value) else yaml.safe_load(value)
        section[name] = value if isinstance(parsed, str) or parsed is None else parsed
    JobConfig.EXPAND(values)
    for key in PATHS:
        if values.get(key):
            values[key] = os.path.abspath(values[key])
    for key in FILES:
        if values.get(key):
            values[key] = kind_of(values[key]).absolute(values[key], os.path.abspath)
    return resolved.build(JobConfig, values)
