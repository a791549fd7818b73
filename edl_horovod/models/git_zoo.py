"""Model zoos in Git: parse the URL, run Git, and fetch a zoo into a cache.

The URL has the syntax of pip for packages in Git: `git+https://host/repo.git@REF#subdirectory=path`;
`git+` may be left out, and `@REF` for the default branch. The command that starts a job fetches the
zoo once, and the job records its commit. The files of a commit never change, so a folder of the
cache is written once and then only read.

Git runs without a terminal, apart from a surrounding repository, and with a time limit. A password
is passed in the environment, as Git's configuration: all users of a machine can see command lines,
but only the owner of a process can see its environment.
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
from dataclasses import dataclass, field
from pathlib import Path

from edl_horovod.errors import ConfigError, MissingDependency, did_you_mean
from edl_horovod.files.cache import unwritable, user_cache
from edl_horovod.files.url_secrets import without_secrets

_LIST_SECONDS = 60.0
_PART_OF_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_ALL_REFS = ("+refs/heads/*:refs/fetched/heads/*", "+refs/tags/*:refs/fetched/tags/*")
"""Refspecs that keep the remote's branches and tags apart from the names Git uses itself."""

log = logging.getLogger(__name__)

AUTHENTICATED_SCHEMES = ("https", "ssh", "file")
"""Schemes over which an attacker on the network cannot forge a branch or a tag."""

DEFAULT_REF = "HEAD"
"""The default branch, where a URL names no ref."""

_SCHEMES = (*AUTHENTICATED_SCHEMES, "http", "git")
_WITH_LOGIN = ("https", "http")
_URL_FORM = "Write git+https://host/repo.git@REF, and #subdirectory=path for a part of it."
_URL = re.compile(r"(?P<git>git\+)?(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)://")
_SCP = re.compile(r"(?:git\+)?(?P<host>[\w.-]+@[\w.-]+):(?P<path>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.IGNORECASE)

FETCH_SECONDS = 300.0
"""Time limit of one Git command."""

_REPOSITORY_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)

_CREDENTIAL_HELPER = (
    "!f() { if test \"$1\" = get; then printf 'username=%s\\npassword=%s\\n'"
    ' "$EDL_GIT_USER" "$EDL_GIT_PASSWORD"; fi; }; f'
)
"""A credential helper for Git that stores nothing; the shell runs it."""


@dataclass(frozen=True)
class FetchedZoo:
    """A model zoo of a Git repository, on this machine."""

    path: Path
    """Folder or file of the zoo."""
    source: str
    """URL without a password; empty if the zoo was on this machine."""
    commit: str
    """Commit of the ref at the time of fetching."""


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


class GitError(ConfigError):
    """A Git command failed."""


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
            "A model zoo in Git needs the command git, which is not installed.",
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
        raise unwritable("The model zoo", e, {"model_zoo": str(zoo)}) from e


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
            hint=_URL_FORM,
        ) from e
    path, at, ref = url.path.rpartition("@")
    if not at:
        path, ref = url.path, DEFAULT_REF
    ref = ref.lower() if _COMMIT.fullmatch(ref) else ref
    bare = url._replace(path=path, fragment="")
    user, password = _url_login(url)
    if user or password:
        bare = bare._replace(netloc=url.netloc.rpartition("@")[2])
    zoo = GitZoo(bare.geturl(), ref, _subdirectory(url.fragment), user, password)
    _check_url(zoo, url.scheme, url.hostname or "", path)
    return zoo


def git(zoo: GitZoo, arguments: Sequence[str], *, seconds: float = FETCH_SECONDS) -> str:
    """Run a Git command and return its output.

    Raises:
        GitError: The command failed or took too long.
    """
    # A session of its own, so nothing can prompt at the terminal and all its helpers end with it.
    process = subprocess.Popen(
        ["git", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(zoo),
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
                raise _git_error(zoo, f"no answer within {seconds:.0f} s") from e
            raise
    if process.returncode != 0:
        raise _git_error(zoo, complaints)
    return printed


def environment(zoo: GitZoo) -> dict[str, str]:
    """The environment of a Git command for a zoo."""
    inherited = {k: v for k, v in os.environ.items() if k not in _REPOSITORY_VARIABLES}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS_REQUIRE": "never"}
    # This covers redirects, too: `ext::` and others run commands, and over http an attacker on the
    # network can forge a branch.
    schemes = ":".join(_SCHEMES if zoo.is_pinned else AUTHENTICATED_SCHEMES)
    fixed = {"LC_ALL": "C", "GIT_ALLOW_PROTOCOL": schemes, **quiet}
    return inherited | _login_variables(zoo) | fixed


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


def _fetched_commit(zoo: GitZoo, bare: Path, name: str, revision: str) -> str:
    """Fetch a ref or a commit into a bare repository; return its commit, or "" if there is none.

    Args:
        zoo: The zoo.
        bare: The repository.
        name: The full name of the ref, or the commit; empty for an abbreviated commit, which no
            server accepts.
        revision: What names the commit once all branches and tags are fetched; empty for a ref that
            is none of these.
    """
    fetch = [f"--git-dir={bare}", "fetch", "-q"]
    rev_parse = [f"--git-dir={bare}", "rev-parse", "-q", "--verify"]
    if name:
        with contextlib.suppress(GitError):
            git(zoo, [*fetch, "--depth=1", "--no-tags", "--", zoo.url, name])
            return git(zoo, [*rev_parse, "FETCH_HEAD^{commit}"]).strip()
    if not revision:
        return ""
    # Some servers refuse to send single commits.
    git(zoo, [*fetch, "--", zoo.url, *_ALL_REFS])
    with contextlib.suppress(GitError):
        return git(zoo, [*rev_parse, f"{revision}^{{commit}}"]).strip()
    return ""


def _pinned_commit(zoo: GitZoo, bare: Path) -> str:
    """Fetch the commit with this full hash, without asking for any name."""
    commit = _fetched_commit(zoo, bare, zoo.ref, zoo.ref)
    if not commit:
        raise ConfigError(
            f"The repository has no commit {zoo.ref!r} in its branches and tags.",
            received={"model_zoo": str(zoo)},
            hint="Check the hash.",
        )
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
    is_ref = full_name in refs or full_name.startswith("refs/")
    if is_ref or _PART_OF_COMMIT.fullmatch(full_name):
        revision = refs.get(full_name, "" if is_ref else full_name)
        commit = _fetched_commit(zoo, bare, full_name if is_ref else "", revision)
        if commit:
            return commit
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


def _url_login(url: urllib.parse.SplitResult) -> tuple[str, str]:
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
            "The part after # in the URL of a model zoo is not recognized.",
            received=f"#{fragment}",
            hint=_URL_FORM,
        )
    return pairs.get("subdirectory", "").strip("/")


def _check_url(zoo: GitZoo, scheme: str, host: str, path: str) -> None:
    received = {"model_zoo": str(zoo)}
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"A model zoo is a folder, a file or a Git URL of the kinds {', '.join(_SCHEMES)}.",
            received=received,
            hint=_URL_FORM,
        )
    if (not host and scheme != "file") or not path.strip("/"):
        raise ConfigError("The Git URL names no repository.", received=received, hint=_URL_FORM)
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


def _login_variables(zoo: GitZoo) -> dict[str, str]:
    """Configuration that gives a zoo's user and password to its server only."""
    server = "://".join(urllib.parse.urlsplit(zoo.url)[:2])
    settings: list[tuple[str, str]] = []
    if zoo.password:
        # The empty helper disables the user's own helpers, which would store the password.
        settings = [(f"credential.{server}.helper", helper) for helper in ("", _CREDENTIAL_HELPER)]
    elif zoo.user:
        settings = [(f"credential.{server}.username", zoo.user)]
    if not settings:
        return {}
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    login = {"EDL_GIT_USER": zoo.user, "EDL_GIT_PASSWORD": zoo.password}
    for number, (key, value) in enumerate(settings, first):
        login |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return login | {"GIT_CONFIG_COUNT": str(first + len(settings))}


def _git_error(zoo: GitZoo, complaints: str) -> GitError:
    lines = [line.strip() for line in without_secrets(complaints).splitlines()]
    lines = [line for line in lines if line] or ["git printed no reason"]
    # The message of ssh comes before that of git, which gives no reason.
    reasons = (line for line in lines if line.startswith(("ssh:", "fatal:", "error:")))
    reason = next(reasons, lines[-1])
    return GitError(
        f"The Git repository of the model zoo cannot be read: {reason.rstrip('.')}.",
        received={"model_zoo": str(zoo)},
        hint="Check the URL, the network and your access to it.",
    )
