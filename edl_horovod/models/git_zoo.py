"""Model zoos in Git: the command fetches a zoo once, and the job records its commit.

The files of a commit never change, so a folder of the cache is written once and then only read.
"""

import contextlib
import hashlib
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.errors import ConfigError, MissingDependency, OutputError, did_you_mean, hint_of
from edl_horovod.files.user_cache import user_cache
from edl_horovod.models.git_command import GitError, git
from edl_horovod.models.git_url import GitZoo, parse

__all__ = ["FetchedZoo", "GitZoo", "ensure_local", "cache", "fetch", "parse"]

_LIST_SECONDS = 60.0
_PART_OF_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_ALL_REFS = ("+refs/heads/*:refs/fetched/heads/*", "+refs/tags/*:refs/fetched/tags/*")
"""Refspecs that keep the remote's branches and tags apart from the names Git uses itself."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FetchedZoo:
    """A model zoo of a Git repository, on this machine."""

    path: Path
    """Folder or file of the zoo."""
    source: str
    """URL without a password; empty if the zoo was on this machine."""
    commit: str
    """Commit of the ref at the time of fetching."""


def ensure_local(model_zoo: str) -> FetchedZoo:
    """Return the zoo that `model_zoo` names; `fetch` it if it is in Git."""
    zoo = parse(model_zoo)
    return FetchedZoo(Path(model_zoo), "", "") if zoo is None else fetch(zoo)


def cache() -> Path:
    """The user's cache of fetched zoos; only running jobs need its content."""
    return user_cache() / "zoos"


def fetch(zoo: GitZoo) -> FetchedZoo:
    """Fetch a zoo into the cache, unless its commit is there already.

    Raises:
        ConfigError: The repository does not answer, or has no such ref or subdirectory.
        MissingDependency: Git is not installed.
        OutputError: The cache cannot be written.
    """
    if shutil.which("git") is None:
        raise MissingDependency(
            "A model zoo in Git needs the command git, which is not here.",
            received={"model_zoo": str(zoo)},
            hint="Install git, or give a folder.",
        )
    name = re.sub(r"\W+", "-", zoo.url.rpartition("/")[2].removesuffix(".git"))
    digest = hashlib.sha256(zoo.url.encode()).hexdigest()[:12]
    repository = cache() / f"{name}-{digest}"
    if zoo.is_pinned and (repository / zoo.ref).is_dir():
        return _fetched(zoo, repository / zoo.ref)
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=repository) as partial:
            return _fetched(zoo, _fetch_into(repository, zoo, Path(partial)))
    except OSError as e:
        raise OutputError(
            f"The model zoo cannot be kept in the cache: {e}.",
            received={"model_zoo": str(zoo)},
            hint=f"{hint_of(e)} XDG_CACHE_HOME names the folder that the cache is in.",
        ) from e


def _fetch_into(repository: Path, zoo: GitZoo, partial: Path) -> Path:
    """Check out the zoo's commit, and move it into the cache."""
    bare, tree = partial / "git", partial / "tree"
    tree.mkdir()
    git(zoo, ["init", "-q", "--bare", str(bare)])
    if zoo.is_pinned:
        commit = _pinned_commit(zoo, bare)
    else:
        refs = _refs(zoo)
        full_name = _full_name(zoo.ref, refs)
        if full_name in refs and (repository / refs[full_name]).is_dir():
            return repository / refs[full_name]
        commit = _commit(zoo, full_name, bare, refs)
    log.info("fetched %s, commit %s", zoo, commit)
    _check_out(zoo, commit, bare=bare, tree=tree)
    if (tree / ".gitmodules").is_file():
        log.warning("%s has submodules; they are not fetched, their folders are empty", zoo)
    checkout = repository / commit
    with contextlib.suppress(OSError):
        tree.rename(checkout)  # Another job may have been faster; its files are the same.
    if not checkout.is_dir():
        raise OSError(f"{checkout} could not be made")
    return checkout


def _check_out(zoo: GitZoo, commit: str, *, bare: Path, tree: Path) -> None:
    # Check out HEAD and not the hash: `git checkout HASH` prefers a branch of that name.
    options = [f"--git-dir={bare}", f"--work-tree={tree}", "-c", "core.hooksPath=/dev/null"]
    git(zoo, [*options, "update-ref", "--no-deref", "HEAD", commit])
    git(zoo, [*options, "read-tree", "--reset", "-u", "HEAD"])
    head = git(zoo, [*options, "rev-parse", "--verify", "HEAD^{commit}"]).strip()
    if head != commit:
        raise ConfigError(
            f"Git checked out another commit than {commit}.",
            received={"model_zoo": str(zoo), "commit": head},
            hint="Give the full hash of a commit as the ref.",
        )


def _pinned_commit(zoo: GitZoo, bare: Path) -> str:
    """Fetch the commit with this full hash, without asking for any name."""
    options = [f"--git-dir={bare}"]
    try:
        git(zoo, [*options, "fetch", "-q", "--depth=1", "--no-tags", "--", zoo.url, zoo.ref])
    except GitError:
        # Some servers refuse to send single commits.
        git(zoo, [*options, "fetch", "-q", "--", zoo.url, *_ALL_REFS])
    try:
        commit = git(
            zoo, [*options, "rev-parse", "-q", "--verify", f"{zoo.ref}^{{commit}}"]
        ).strip()
    except GitError as e:
        raise ConfigError(
            f"The repository has no commit {zoo.ref!r} in its branches and tags.",
            received={"model_zoo": str(zoo)},
            hint="Check the hash.",
        ) from e
    if commit != zoo.ref:
        raise ConfigError(
            f"The ref is the hash of a tag, not of a commit; the tag points to {commit}.",
            received={"model_zoo": str(zoo)},
            hint="Give the commit's hash.",
        )
    return commit


def _refs(zoo: GitZoo) -> dict[str, str]:
    """The commits of a repository's branches and tags, by full name, and of HEAD."""
    patterns = ["HEAD", "refs/heads/*", "refs/tags/*"]
    listed = git(zoo, ["ls-remote", "-q", "--", zoo.url, *patterns], seconds=_LIST_SECONDS)
    pairs = (line.split("\t") for line in listed.splitlines())
    refs = {name: commit for commit, name in pairs}
    # An annotated tag is an object of its own; a second line names its target.
    return {name: refs.get(f"{name}^{{}}", commit) for name, commit in refs.items()}


def _full_name(ref: str, refs: Mapping[str, str]) -> str:
    for name in (f"refs/tags/{ref}", f"refs/heads/{ref}", ref):
        if name in refs:
            return name
    return ref


def _commit(zoo: GitZoo, full_name: str, bare: Path, refs: Mapping[str, str]) -> str:
    """Fetch a ref into a bare repository; return its commit."""
    options = [f"--git-dir={bare}"]
    if full_name in refs or full_name.startswith("refs/"):
        with contextlib.suppress(GitError):
            git(zoo, [*options, "fetch", "-q", "--depth=1", "--no-tags", "--", zoo.url, full_name])
            return git(zoo, [*options, "rev-parse", "--verify", "FETCH_HEAD^{commit}"]).strip()
    if full_name in refs or _PART_OF_COMMIT.fullmatch(full_name):
        # Some servers refuse to send single commits, and none accepts an abbreviated one.
        git(zoo, [*options, "fetch", "-q", "--", zoo.url, *_ALL_REFS])
        with contextlib.suppress(GitError):
            name = f"{refs.get(full_name, full_name)}^{{commit}}"
            return git(zoo, [*options, "rev-parse", "-q", "--verify", name]).strip()
    short = [name.removeprefix("refs/heads/").removeprefix("refs/tags/") for name in refs]
    branches_and_tags = sorted(name for name in short if not name.endswith("^{}"))
    more = ", ..." if len(branches_and_tags) > 20 else ""
    raise ConfigError(
        f"The repository has no branch, tag or commit {zoo.ref!r}.",
        received={"model_zoo": str(zoo)},
        hint=f"It has: {', '.join(branches_and_tags[:20])}{more}."
        f"{did_you_mean(zoo.ref, branches_and_tags)}",
    )


def _fetched(zoo: GitZoo, checkout: Path) -> FetchedZoo:
    path = (checkout / zoo.subdirectory).resolve()
    if not path.exists() or not path.is_relative_to(checkout.resolve()):
        inside = sorted(file.name for file in checkout.iterdir())
        raise ConfigError(
            f"The repository has no {zoo.subdirectory!r}.",
            received={"model_zoo": str(zoo), "commit": checkout.name},
            hint=f"At its root: {', '.join(inside[:20])}.{did_you_mean(zoo.subdirectory, inside)}",
        )
    return FetchedZoo(path, str(zoo), checkout.name)
