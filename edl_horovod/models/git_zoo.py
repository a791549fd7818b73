"""Model zoos in Git: fetched once by the command, at a commit that is recorded.

A zoo is named as pip names a package in Git: `git+https://host/repo.git@REF#subdirectory=path`.
Files of a commit never change, so a folder of the cache is written once and only read afterwards.
"""

import contextlib
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.errors import ConfigError, MissingDependency, OutputError, did_you_mean

__all__ = ["FetchedZoo", "GitZoo", "bring", "cache", "fetch", "parse"]

FETCH_SECONDS = 300.0
"""How long one command of Git may take."""
_ASK_SECONDS = 60.0

_SCHEMES = ("https", "http", "ssh", "git", "file")
_FORM = "Write git+https://host/repo.git@REF, and #subdirectory=path for a part of it."
_URL = re.compile(r"(?P<git>git\+)?(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)://")
_SCP = re.compile(r"(?:git\+)?(?P<host>[\w.-]+@[\w.-]+):(?P<path>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_PART_OF_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_OF_ANOTHER_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE",
    "GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_WORK_TREE",
)  # fmt: skip

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GitZoo:
    """A model zoo in a Git repository."""

    url: str
    """What Git is given, with a password perhaps: never shown."""
    ref: str
    """A branch, a tag, a commit, or HEAD for the default branch."""
    subdirectory: str = ""

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        parts = urllib.parse.urlsplit(self.url)
        netloc = parts.netloc
        if "@" in netloc:
            user, _, host = netloc.rpartition("@")
            # A token may also stand where the user's name does, but for ssh, which needs the name.
            netloc = f"{user.partition(':')[0]}@{host}" if parts.scheme == "ssh" else host
        return urllib.parse.urlunsplit(parts._replace(netloc=netloc))

    def __str__(self) -> str:
        part = f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        return f"git+{self.shown_url}@{self.ref}{part}"


@dataclass(frozen=True)
class FetchedZoo:
    """A model zoo of a Git repository, on this machine."""

    path: Path
    """The folder or file that is the zoo."""
    source: str
    """Where it comes from, without a password; empty where it was on this machine."""
    commit: str
    """Of the ref when it was fetched."""


def bring(model_zoo: str) -> FetchedZoo:
    """The zoo that a setting names, fetched if it is in Git.

    Raises:
        EdlError: As `parse` and `fetch` do.
    """
    zoo = parse(model_zoo)
    return FetchedZoo(Path(model_zoo), "", "") if zoo is None else fetch(zoo)


def parse(model_zoo: str) -> GitZoo | None:
    """What a `model_zoo` means that is a Git URL; None where it is a path.

    Raises:
        ConfigError: It is a URL, but none of a Git repository at a ref.
    """
    if not (found := _URL.match(model_zoo)):
        if scp := _SCP.fullmatch(model_zoo):
            hint = f"Write git+ssh://{scp['host']}/{scp['path']}"
            raise ConfigError(
                f"model_zoo is no URL that is known. Received: model_zoo={model_zoo!r}. {hint}."
            )
        return None
    try:
        url = urllib.parse.urlsplit(model_zoo[len(found["git"] or "") :])
    except ValueError as e:
        raise ConfigError(f"model_zoo is no URL: {e}. Received: {model_zoo!r}. {_FORM}") from e
    path, at, ref = url.path.rpartition("@")
    if not at:
        path, ref = url.path, ""
    zoo = GitZoo(url._replace(path=path, fragment="").geturl(), ref, _subdirectory(url.fragment))
    _check(zoo, url.scheme, url.hostname or "", path)
    return zoo


def cache() -> Path:
    """The user's folder of fetched zoos; none of them is needed but by jobs that run."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "edl_horovod" / "zoos"


def fetch(zoo: GitZoo) -> FetchedZoo:
    """Bring a zoo into the cache, unless its commit is there already.

    Raises:
        ConfigError: The repository does not answer, or has no such ref or subdirectory.
        MissingDependency: Git is not installed.
        OutputError: The cache cannot be written.
    """
    if shutil.which("git") is None:
        raise MissingDependency(
            f"A model zoo in Git needs the command git, which is not here. Received: model_zoo="
            f"{str(zoo)!r}. Install git, or give a folder."
        )
    name = re.sub(r"\W+", "-", zoo.shown_url.rpartition("/")[2].removesuffix(".git"))
    digest = hashlib.sha256(zoo.shown_url.encode()).hexdigest()[:12]
    repository = cache() / f"{name}-{digest}"
    if _COMMIT.fullmatch(zoo.ref) and (repository / zoo.ref).is_dir():
        return _fetched(zoo, repository / zoo.ref)
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=repository) as partial:
            return _fetched(zoo, _fetch_into(repository, zoo, Path(partial)))
    except OSError as e:
        raise OutputError(
            f"The model zoo cannot be kept in the cache: {e}. Received: model_zoo={str(zoo)!r}."
            " Make room there, or set XDG_CACHE_HOME to another folder."
        ) from e


def _subdirectory(fragment: str) -> str:
    """The part of the repository that a URL's fragment names; `egg` is pip's and means nothing."""
    pairs = dict(urllib.parse.parse_qsl(fragment, keep_blank_values=True))
    if fragment and (not pairs or pairs.keys() - {"subdirectory", "egg"}):
        raise ConfigError(
            f"What follows # in a model zoo's URL is not known. Received: #{fragment}. {_FORM}"
        )
    return pairs.get("subdirectory", "").strip("/")


def _check(zoo: GitZoo, scheme: str, host: str, path: str) -> None:
    received = f"Received: model_zoo={str(zoo)!r}."
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"A model zoo is a folder, a file or a Git URL of the kinds {', '.join(_SCHEMES)}."
            f" {received} {_FORM}"
        )
    if (not host and scheme != "file") or not path.strip("/"):
        raise ConfigError(f"The Git URL names no repository. {received} {_FORM}")
    if not zoo.ref:
        raise ConfigError(
            f"The Git URL names no ref. Received: model_zoo='git+{zoo.shown_url}'. Add @ and a tag,"
            " a branch or a commit, or @HEAD for the default branch as it is now."
        )
    # Git would read these as options, or as ranges and other expressions.
    is_odd = zoo.ref.startswith("-") or host.startswith("-") or re.search(r"[\s~^:?*\[\\]", zoo.ref)
    if is_odd or ".." in zoo.ref or any(part == ".." for part in Path(zoo.subdirectory).parts):
        raise ConfigError(f"The Git URL holds what no ref or folder is named like. {received}")


def _fetch_into(repository: Path, zoo: GitZoo, partial: Path) -> Path:
    """Check the zoo's commit out and give it its place in the cache."""
    refs = _refs(zoo)
    wanted = _full_name(zoo.ref, refs)
    if wanted in refs and (repository / refs[wanted]).is_dir():
        return repository / refs[wanted]
    bare, tree = partial / "git", partial / "tree"
    tree.mkdir()
    _git(zoo, ["init", "-q", "--bare", str(bare)])
    commit = _commit(zoo, wanted, bare, refs)
    log.info("fetched %s, commit %s", zoo, commit)
    git = [f"--git-dir={bare}", f"--work-tree={tree}", "-c", "core.hooksPath=/dev/null"]
    _git(zoo, [*git, "checkout", "-q", "-f", commit, "--", "."])
    if (tree / ".gitmodules").is_file():
        log.warning("%s has submodules; they are not fetched, their folders are empty", zoo)
    place = repository / commit
    with contextlib.suppress(OSError):
        tree.rename(place)  # Another job may have been first: the same files, then.
    if not place.is_dir():
        raise OSError(f"{place} could not be made")
    return place


def _refs(zoo: GitZoo) -> dict[str, str]:
    """The commits of a repository's branches and tags, by full name, and of HEAD."""
    patterns = ["HEAD", "refs/heads/*", "refs/tags/*"]
    listed = _git(zoo, ["ls-remote", "-q", "--", zoo.url, *patterns], seconds=_ASK_SECONDS)
    pairs = (line.split("\t") for line in listed.splitlines())
    refs = {name: commit for commit, name in pairs}
    # An annotated tag is an object of its own; what it points at stands in a second line.
    return {name: refs.get(f"{name}^{{}}", commit) for name, commit in refs.items()}


def _full_name(ref: str, refs: Mapping[str, str]) -> str:
    for name in (f"refs/tags/{ref}", f"refs/heads/{ref}", ref):
        if name in refs:
            return name
    return ref


def _commit(zoo: GitZoo, wanted: str, bare: Path, refs: Mapping[str, str]) -> str:
    """Fetch what is wanted into a bare repository; return its commit."""
    git = [f"--git-dir={bare}"]
    if wanted in refs or _COMMIT.fullmatch(wanted) or wanted.startswith("refs/"):
        with contextlib.suppress(_GitError):
            _git(zoo, [*git, "fetch", "-q", "--depth=1", "--no-tags", "--", zoo.url, wanted])
            return _git(zoo, [*git, "rev-parse", "--verify", "FETCH_HEAD^{commit}"]).strip()
    if wanted in refs or _PART_OF_COMMIT.fullmatch(wanted):
        # Some servers do not give single commits, and none a part of a name.
        all_refs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
        _git(zoo, [*git, "fetch", "-q", "--", zoo.url, *all_refs])
        with contextlib.suppress(_GitError):
            name = f"{refs.get(wanted, wanted)}^{{commit}}"
            return _git(zoo, [*git, "rev-parse", "-q", "--verify", name]).strip()
    short = [name.removeprefix("refs/heads/").removeprefix("refs/tags/") for name in refs]
    known = sorted(name for name in short if not name.endswith("^{}"))
    more = ", ..." if len(known) > 20 else ""
    raise ConfigError(
        f"The repository has no branch, tag or commit {zoo.ref!r}. Received: model_zoo="
        f"{str(zoo)!r}. It has: {', '.join(known[:20])}{more}.{did_you_mean(zoo.ref, known)}"
    )


def _fetched(zoo: GitZoo, checkout: Path) -> FetchedZoo:
    path = (checkout / zoo.subdirectory).resolve()
    if not path.exists() or not path.is_relative_to(checkout.resolve()):
        inside = sorted(file.name for file in checkout.iterdir())
        raise ConfigError(
            f"The repository has no {zoo.subdirectory!r}. Received: model_zoo={str(zoo)!r}, commit"
            f" {checkout.name}. At its root: {', '.join(inside[:20])}."
            f"{did_you_mean(zoo.subdirectory, inside)}"
        )
    return FetchedZoo(path, str(zoo), checkout.name)


class _GitError(ConfigError):
    """A command of Git that failed."""


def _git(zoo: GitZoo, arguments: Sequence[str], *, seconds: float = FETCH_SECONDS) -> str:
    """What a command of Git printed.

    Raises:
        _GitError: It failed, or took too long.
    """
    # A session of its own: nothing can ask at the terminal, and all its helpers end with it.
    process = subprocess.Popen(
        ["git", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            printed, complaints = process.communicate(timeout=seconds)
        except BaseException as e:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(e, subprocess.TimeoutExpired):
                raise _GitError(_failure(zoo, f"no answer within {seconds:.0f} s")) from e
            raise
    if process.returncode != 0:
        raise _GitError(_failure(zoo, complaints))
    return printed


def _environment() -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in _OF_ANOTHER_REPOSITORY}
    return environment | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS_REQUIRE": "never",
        # Also for what a server redirects to: `ext::` and its like run commands.
        "GIT_ALLOW_PROTOCOL": ":".join(_SCHEMES),
    }


def _failure(zoo: GitZoo, complaints: str) -> str:
    lines = [line.strip() for line in complaints.replace(zoo.url, zoo.shown_url).splitlines()]
    lines = [line for line in lines if line] or ["it said nothing"]
    # What ssh says of a host comes before git's own account of it, which names no reason.
    told = (line for line in lines if line.startswith(("ssh:", "fatal:", "error:")))
    said = next(told, lines[-1])
    return (
        f"The Git repository of the model zoo cannot be read: {said.rstrip('.')}."
        f" Received: model_zoo={str(zoo)!r}. Check the URL, the network and your access to it."
    )
