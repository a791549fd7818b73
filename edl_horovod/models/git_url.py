"""Parse a `model_zoo` that is a Git URL into repository, ref and folder.

The syntax is that of pip for packages in Git: `git+https://host/repo.git@REF#subdirectory=path`;
`git+` may be left out, and `@REF` for the default branch.
"""

import re
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.errors import ConfigError
from edl_horovod.files.url_secrets import without_secrets

__all__ = ["AUTHENTICATED_SCHEMES", "DEFAULT_REF", "GitZoo", "parse"]

AUTHENTICATED_SCHEMES = ("https", "ssh", "file")
"""Schemes over which an attacker on the network cannot forge a branch or a tag."""

DEFAULT_REF = "HEAD"
"""The default branch, where a URL names no ref."""

_SCHEMES = (*AUTHENTICATED_SCHEMES, "http", "git")
_WITH_LOGIN = ("https", "http")
_FORM = "Write git+https://host/repo.git@REF, and #subdirectory=path for a part of it."
_URL = re.compile(r"(?P<git>git\+)?(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)://")
_SCP = re.compile(r"(?:git\+)?(?P<host>[\w.-]+@[\w.-]+):(?P<path>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.IGNORECASE)


@dataclass(frozen=True)
class GitZoo:
    """A model zoo in a Git repository."""

    url: str
    """URL without a password and, except for ssh, without a user."""
    ref: str
    """A branch, a tag, a commit, or HEAD for the default branch."""
    subdirectory: str = ""
    user: str = field(default="", repr=False)
    """User or token of the URL; the user of an ssh URL stays in the URL."""
    password: str = field(default="", repr=False)

    @property
    def is_pinned(self) -> bool:
        """Whether the ref is the full hash of a commit."""
        return _COMMIT.fullmatch(self.ref) is not None

    def __str__(self) -> str:
        part = f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        return f"git+{self.url}@{self.ref}{part}"


def parse(model_zoo: str) -> GitZoo | None:
    """Parse a Git URL; return None if `model_zoo` is a path.

    Raises:
        ConfigError: It is a URL, but not one of a Git repository.
    """
    if not (match := _URL.match(model_zoo)):
        if scp := _SCP.fullmatch(model_zoo):
            raise ConfigError(
                "model_zoo is not a URL of a known form.",
                received={"model_zoo": model_zoo},
                hint=f"Write git+ssh://{scp['host']}/{scp['path']}.",
            )
        return None
    try:
        url = urllib.parse.urlsplit(model_zoo[len(match["git"] or "") :])
    except ValueError as e:
        raise ConfigError(
            f"model_zoo is not a valid URL: {e}.",
            received={"model_zoo": without_secrets(model_zoo)},
            hint=_FORM,
        ) from e
    path, at, ref = url.path.rpartition("@")
    if not at:
        path, ref = url.path, DEFAULT_REF
    ref = ref.lower() if _COMMIT.fullmatch(ref) else ref
    bare = url._replace(path=path, fragment="")
    user, password = _login(url)
    if user or password:
        bare = bare._replace(netloc=url.netloc.rpartition("@")[2])
    zoo = GitZoo(bare.geturl(), ref, _subdirectory(url.fragment), user, password)
    _check(zoo, url.scheme, url.hostname or "", path)
    return zoo


def _login(url: urllib.parse.SplitResult) -> tuple[str, str]:
    """The user and the password in an https URL."""
    if url.scheme in _WITH_LOGIN:
        user, password = url.username or "", url.password or ""
        return urllib.parse.unquote(user), urllib.parse.unquote(password)
    if url.password is not None or (url.username and url.scheme != "ssh"):
        raise ConfigError(
            "Only https takes a user and a password in the URL of a model zoo, and ssh a user.",
            received={"model_zoo": without_secrets(url.geturl())},
            hint="Leave them out.",
        )
    return "", ""


def _subdirectory(fragment: str) -> str:
    """The subdirectory in a URL's fragment; pip's `egg` is ignored."""
    pairs = dict(urllib.parse.parse_qsl(fragment, keep_blank_values=True))
    if fragment and (not pairs or pairs.keys() - {"subdirectory", "egg"}):
        raise ConfigError(
            "The part after # in a model zoo's URL is not known.",
            received=f"#{fragment}",
            hint=_FORM,
        )
    return pairs.get("subdirectory", "").strip("/")


def _check(zoo: GitZoo, scheme: str, host: str, path: str) -> None:
    received = {"model_zoo": str(zoo)}
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"A model zoo is a folder, a file or a Git URL of the kinds {', '.join(_SCHEMES)}.",
            received=received,
            hint=_FORM,
        )
    if (not host and scheme != "file") or not path.strip("/"):
        raise ConfigError("The Git URL names no repository.", received=received, hint=_FORM)
    if not zoo.ref:
        raise ConfigError(
            "The Git URL names no ref after its @.",
            received={"model_zoo": f"git+{zoo.url}@"},
            hint="Add a tag, a branch or a commit, or leave out the @ for the default branch.",
        )
    if scheme not in AUTHENTICATED_SCHEMES and not zoo.is_pinned:
        raise ConfigError(
            f"Over {scheme}:// an attacker on the network can forge a branch or a tag, and the"
            " zoo's code runs here.",
            received=received,
            hint="Give the full hash of a commit as the ref, or use https or ssh.",
        )
    # Git would interpret these as options, ranges or other expressions.
    has_operator = (
        zoo.ref.startswith("-") or host.startswith("-") or re.search(r"[\s~^:?*\[\\]", zoo.ref)
    )
    if (
        has_operator
        or ".." in zoo.ref
        or any(part == ".." for part in Path(zoo.subdirectory).parts)
    ):
        raise ConfigError(
            "The Git URL holds a name that no ref or folder can have.", received=received
        )
