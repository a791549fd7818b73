"""The model zoo of a job, which may have to be fetched from Git or written of a model in files.

The command that starts a job brings the zoo to its machine with `localized`, once. After that it is
a folder or a file, and nothing tells where it came from but the URL and the commit of Git.
"""

from collections.abc import Iterator
from dataclasses import replace

from edl_horovod.config import model_spec
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import ConfigError
from edl_horovod.models import git_zoo, lookup, spec_zoo


def localized(config: JobConfig) -> JobConfig:
    """The settings with a model zoo that is on this machine; it is fetched or written if necessary.

    Raises:
        EdlError: There is no such zoo, the zoo does not define the model, or it cannot be fetched
            or written.
    """
    if not TASKS[config.task].takes_zoo:
        return config
    config = spec_zoo.with_zoo(config)
    if git_zoo.parse(config.model_zoo) is not None:
        zoo = git_zoo.ensure_local(config.model_zoo)
        config = replace(config, model_zoo=str(zoo.path))
        config = replace(config, model_zoo_source=zoo.source, model_zoo_commit=zoo.commit)
    lookup.file_groups(lookup.require_zoo(config.model_zoo), config.model_def)
    return config


def as_if_localized(config: JobConfig) -> JobConfig:
    """The settings as `localized` would return them, for a dry run; a URL of Git stays."""
    if not spec_zoo.is_needed(config):
        return config
    return replace(config, model_zoo=str(spec_zoo.cache()), model_def=spec_zoo.MODEL_DEF)


def pending(config: JobConfig) -> str:
    """What `localized` would do, as the end of a sentence; empty if the zoo is on this machine."""
    if not TASKS[config.task].takes_zoo:
        return ""
    if spec_zoo.is_needed(config):
        return f"would be written into {spec_zoo.cache()}"
    zoo = git_zoo.parse(config.model_zoo)
    return f"would fetch {zoo} into {git_zoo.cache()}" if zoo is not None else ""


def require_localized(config: JobConfig) -> None:
    """Refuse a zoo that is not on this machine yet.

    Raises:
        ConfigError: `localized` would have to fetch or write the zoo.
    """
    if pending(config):
        raise ConfigError(
            "The model zoo of this job has not been brought to this machine yet.",
            received=origin(config),
            hint="Start the job by edl train, which does that; config.yaml in its job's directory"
            " has its model_zoo and model_def.",
        )


def origin(config: JobConfig) -> dict[str, str]:
    """The setting that a pending zoo comes from."""
    if config.model:
        return {"model.name": config.model["name"]}
    return {"model_zoo": str(git_zoo.parse(config.model_zoo))}


def sources(config: JobConfig) -> Iterator[tuple[str, str]]:
    """The local files and folders that the model is read from, by the setting that names them."""
    if config.model:
        for path in model_spec.paths_in(config.model):
            yield "model.spec", path
    elif TASKS[config.task].takes_zoo and git_zoo.parse(config.model_zoo) is None:
        yield "model_zoo", config.model_zoo


def as_named(config: JobConfig) -> dict[str, str]:
    """The zoo and the model as the user named them; `localized` does not change that."""
    if config.model:
        return {"model_zoo": "", "model_def": ""}
    zoo = config.model_zoo_source or str(git_zoo.parse(config.model_zoo) or config.model_zoo)
    return {"model_zoo": zoo, "model_def": config.model_def}


def model_name(config: JobConfig) -> str:
    """A short name of the job's model; empty where only its zoo or a function knows one."""
    spec = config.model.get("spec")
    return spec["model_name"] if isinstance(spec, dict) else config.model_def.partition(".")[0]
