"""Make the paths in settings absolute, and refuse passwords in URLs of data."""

import os
import re
from typing import Any

from edl_horovod.config.fields import FILE_LISTS
from edl_horovod.errors import ConfigError
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.records.sources.table import kind_of

__all__ = ["check_no_secrets", "make_absolute"]

_PATHS = ("output", "job_dir", "model_zoo", "trained_model", "init_from")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URL_OR_REMOTE = re.compile(rf"{_URL.pattern}|[\w.-]+@[\w.-]+:")
_VARIABLE = re.compile(r"^\$(?:(\w+)|\{(\w+)\})(?=/|$)")


def check_no_secrets(values: dict[str, Any]) -> None:
    """Refuse passwords in URLs of data, which are written to the job's directory."""
    for key in FILE_LISTS:
        text = values.get(key) or ""
        if (shown := without_secrets(text)) != text:
            raise ConfigError(
                f"{key} holds a password or a token, which would be written to the job's directory"
                " and into the trained model.",
                received={key: shown},
                hint="Leave it out, and give it where the ranks find it: AWS_ACCESS_KEY_ID and its"
                " like for s3://, GOOGLE_APPLICATION_CREDENTIALS for gs://, FSSPEC_HTTP or a"
                " .netrc file for https:// (docs/how-to/data.md).",
            )


def make_absolute(values: dict[str, Any]) -> None:
    """Make paths absolute: a relative path means the directory where the command runs."""
    for key in FILE_LISTS:
        if values.get(key):
            values[key] = kind_of(values[key]).absolute(values[key], _absolute)
    for key in _PATHS:
        if values.get(key):
            values[key] = _absolute(values[key])
            if key != "model_zoo" and _URL.match(values[key]):
                raise ConfigError(
                    f"{key} must be a path in a file system that the ranks can access; only data is"
                    " read from URLs.",
                    received={key: values[key]},
                    hint="Mount the bucket, or copy its content and give a local path.",
                )


def _absolute(path: str) -> str:
    path = _VARIABLE.sub(_variable, path)
    if _URL_OR_REMOTE.match(path):
        return path
    if path.startswith("@"):  # A list of input files, for prepare.
        return f"@{_absolute(path[1:])}"
    return os.path.abspath(os.path.expanduser(path))


def _variable(match: re.Match[str]) -> str:
    """The value of a variable at the start of a path: a Python call has no shell to expand it."""
    return os.environ.get(match[1] or match[2], match[0])
