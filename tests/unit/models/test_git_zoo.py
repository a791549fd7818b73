import contextlib
import functools
import http.server
import logging
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import edl_horovod
from edl_horovod.errors import ConfigError, MissingDependency
from edl_horovod.models import git_zoo
from edl_horovod.models.git_zoo import GitZoo, ensure_local, fetch, parse
from tests.web_server import serving


@dataclass
class Repository:
    path: Path

    def git(self, *arguments: str) -> str:
        me = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(self.path), *me, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> str:
        (self.path / "zoo").mkdir(exist_ok=True)
        (self.path / "zoo" / "mnist.py").write_text(text)
        self.git("add", ".")
        self.git("commit", "-q", "-m", "a commit")
        return self.git("rev-parse", "HEAD")

    def url(self, ref: str) -> str:
        return f"git+file://{self.path}@{ref}"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def served_over_http(repository: Repository) -> Iterator[str]:
    """The dumb protocol, which gives neither single commits nor shallow ones."""
    repository.git("update-server-info")
    handler = functools.partial(QuietHandler, directory=str(repository.path))
    with serving(handler) as url:
        yield f"git+{url}/.git"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return git_zoo.cache()


@pytest.fixture
def repository(tmp_path):
    path = tmp_path / "models"
    path.mkdir()
    repository = Repository(path)
    repository.git("init", "-q", "-b", "main")
    return repository


@pytest.mark.parametrize(
    ("text", "url", "ref", "subdirectory"),
    [
        ("git+https://host/a/b.git@v1.2", "https://host/a/b.git", "v1.2", ""),
        ("https://host/a/b@HEAD", "https://host/a/b", "HEAD", ""),
        ("https://host/a/b.git", "https://host/a/b.git", "HEAD", ""),
        ("git+ssh://git@host/a/b#subdirectory=c", "ssh://git@host/a/b", "HEAD", "c"),
        ("git+ssh://git@host/a.git@f/x#subdirectory=z/y", "ssh://git@host/a.git", "f/x", "z/y"),
        ("git+https://me:pw@host:81/a@main", "https://host:81/a", "main", ""),
        ("git+file:///srv/a.git@main#egg=a&subdirectory=z", "file:///srv/a.git", "main", "z"),
    ],
)
def test_urls_are_read_as_pip_writes_them(text, url, ref, subdirectory):
    zoo = parse(text)
    assert zoo is not None
    assert (zoo.url, zoo.ref, zoo.subdirectory) == (url, ref, subdirectory)


@pytest.mark.parametrize("path", ["model_zoo", "/a/b@c:d", "mine.py", "~/zoo", "a@b"])
def test_paths_are_no_urls(path):
    assert parse(path) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("git+https://host/a/b.git@", "names no ref"),
        ("git+https://host/a@--upload-pack=x", "no ref or folder"),
        ("git+https://host/a@a..b", "no ref or folder"),
        ("git+https://host/a@main#subdirectory=../x", "no ref or folder"),
        ("git+https://host/a@main#sub=x", "after #"),
        ("git+https://-oProxyCommand=x/a@main", "no ref or folder"),
        ("git+ext://sh/x@y", "kinds https, ssh, file, http, git"),
        ("s3://bucket/zoo@main", "kinds https, ssh, file, http, git"),
        ("git+https://@main", "no repository"),
        ("git+https://[::1/a@main", "Invalid IPv6"),
        ("git@github.com:a/b.git", "git+ssh://git@github.com/a/b.git"),
    ],
)
def test_urls_that_cannot_be_meant_are_refused(text, named):
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert named in str(error.value)


@pytest.mark.parametrize("kind", ["branch", "tag", "annotated tag", "commit", "short", "HEAD"])
def test_every_kind_of_ref_gives_its_commit(repository, kind):
    commit = repository.commit("first = 1\n")
    repository.git("tag", "light")
    repository.git("tag", "-a", "heavy", "-m", "a tag")
    refs = {"tag": "light", "annotated tag": "heavy", "commit": commit, "short": commit[:8]}
    if kind in refs:
        repository.commit("second = 2\n")
    else:
        refs |= {"branch": "main", "HEAD": "HEAD"}

    zoo = ensure_local(repository.url(refs[kind]))

    assert zoo.path.name == commit
    assert zoo.path.joinpath("zoo", "mnist.py").read_text() == "first = 1\n"
    assert (zoo.source, zoo.commit) == (repository.url(refs[kind]), commit)
    assert not zoo.path.joinpath(".git").exists()


def test_without_a_ref_the_commit_of_the_default_branch_is_taken_and_told(repository):
    repository.commit("x = 1\n")
    repository.git("switch", "-q", "-c", "other")
    commit = repository.commit("x = 2\n")
    url = repository.url("none").removesuffix("@none")

    zoo = ensure_local(url)

    assert zoo.path.joinpath("zoo", "mnist.py").read_text() == "x = 2\n"
    assert (zoo.source, zoo.commit) == (f"{url}@HEAD", commit)


def test_a_branch_that_moved_gives_its_new_commit(repository):
    first = ensure_local(repository.url(repository.commit("x = 1\n")))
    repository.commit("x = 2\n")

    second = ensure_local(repository.url("main") + "#subdirectory=zoo")

    assert first.path.joinpath("zoo", "mnist.py").read_text() == "x = 1\n"
    assert second.path.joinpath("mnist.py").read_text() == "x = 2\n"
    assert second.commit == repository.git("rev-parse", "HEAD") != first.commit


def test_a_commit_that_was_fetched_needs_no_repository(repository):
    url = repository.url(repository.commit("x = 1\n"))
    first = ensure_local(url)
    shutil.rmtree(repository.path)

    assert ensure_local(url) == first


def test_jobs_at_once_share_what_all_fetched(repository, cache):
    commit = repository.commit("x = 1\n")
    code = (
        "import sys; from edl_horovod.models.git_zoo import ensure_local;"
        " print(ensure_local(sys.argv[1]).path)"
    )
    command = [sys.executable, "-c", code, repository.url("main")]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {job.communicate(timeout=60)[0].strip() for job in jobs}

    (folder,) = cache.iterdir()
    assert printed == {str(folder / commit)}
    assert [path.name for path in folder.iterdir()] == [commit]


@pytest.mark.parametrize("ref", ["trunk", "abcdef12", "refs/pull/7/head"])
def test_an_unknown_ref_is_named_with_what_there_is(repository, ref, cache):
    repository.commit("x = 1\n")
    repository.git("tag", "v1")
    with pytest.raises(ConfigError, match=f"'{ref}'") as error:
        ensure_local(repository.url(ref))
    assert "HEAD, main, v1" in str(error.value)
    assert not [path for folder in cache.iterdir() for path in folder.iterdir()]


def test_a_subdirectory_that_is_unknown_or_leads_out_is_named(repository, tmp_path):
    (repository.path / "out").symlink_to(tmp_path)
    repository.commit("x = 1\n")
    with pytest.raises(ConfigError, match=r"'zo'.*root: .*'zoo'"):
        ensure_local(repository.url("main") + "#subdirectory=zo")
    with pytest.raises(ConfigError, match="no 'out'"):
        ensure_local(repository.url("main") + "#subdirectory=out")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("file:///no/such/repository", "fatal: .*Check the"),
        ("https://127.0.0.1:9/a", "fatal: .*Check the"),
        ("ssh://git@127.0.0.1:9/a", "ssh: .*refused"),
    ],
)
def test_a_repository_that_does_not_answer_is_one_error(url, named):
    with pytest.raises(ConfigError, match=named) as error:
        ensure_local(f"git+{url}@main")
    assert "\n" not in str(error.value)


def test_a_server_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(git_zoo, "_LIST_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"git+https://127.0.0.1:{server.getsockname()[1]}/a@main"
        with pytest.raises(ConfigError, match="within 1 s"):
            ensure_local(url)


def test_no_git_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match="command git"):
        fetch(GitZoo("https://host/a", "main"))


def test_submodules_are_missed_aloud(repository, caplog):
    (repository.path / ".gitmodules").write_text("")
    repository.commit("x = 1\n")
    with caplog.at_level(logging.WARNING):
        ensure_local(repository.url("main"))
    assert "submodules" in caplog.text


def test_the_repository_of_a_git_hook_around_us_is_left_alone(repository, monkeypatch):
    commit = repository.commit("x = 1\n")
    monkeypatch.setenv("GIT_DIR", "/no/such/place")
    assert ensure_local(repository.url("main")).path.name == commit


def test_prepare_takes_its_function_from_git(repository, tmp_path):
    repository.commit("def prepare_data_for_a_single_file(filename):\n    return b'x'\n")
    (tmp_path / "input").write_text("")

    result = edl_horovod.prepare(
        model_zoo=f"{repository.url('main')}#subdirectory=zoo",
        model_def="mnist",
        data=tmp_path / "input",
        output=tmp_path / "output",
    )

    assert result.num_records == 1


@pytest.mark.parametrize(
    ("kind", "server", "spelling"),
    [
        ("tags", "of single commits", str.lower),
        ("heads", "of single commits", str.upper),
        ("tags", "of whole repositories", str.upper),
        ("heads", "of whole repositories", str.lower),
    ],
)
def test_a_full_hash_is_that_commit_whatever_else_is_called_so(repository, kind, server, spelling):
    pinned = repository.commit("x = 'pinned'\n")
    other = repository.commit("x = 'other'\n")
    repository.git("update-ref", f"refs/{kind}/{spelling(pinned)}", other)

    with contextlib.ExitStack() as stack:
        url = f"git+file://{repository.path}"
        if server == "of whole repositories":
            url = stack.enter_context(served_over_http(repository))
        zoo = ensure_local(f"{url}@{spelling(pinned)}")

    assert zoo.path.joinpath("zoo", "mnist.py").read_text() == "x = 'pinned'\n"
    assert (zoo.commit, zoo.path.name) == (pinned, pinned)


@pytest.mark.parametrize("kind", ["tags", "heads"])
def test_a_hash_that_only_a_name_is_like_is_no_commit(repository, kind, cache):
    other = repository.commit("x = 'other'\n")
    name = "0123456789" * 4
    repository.git("update-ref", f"refs/{kind}/{name}", other)
    with pytest.raises(ConfigError, match=f"commit '{name}'"):
        ensure_local(repository.url(name))
    assert not [path for folder in cache.iterdir() for path in folder.iterdir()]


def test_the_hash_of_a_tag_object_is_no_commit(repository):
    commit = repository.commit("x = 1\n")
    repository.git("tag", "-a", "v1", "-m", "a tag")
    with pytest.raises(ConfigError, match=f"tag .*{commit}"):
        ensure_local(repository.url(repository.git("rev-parse", "v1")))


@pytest.mark.parametrize("scheme", ["http", "git"])
def test_what_nobody_vouches_for_is_named_by_its_hash(scheme):
    for ref in ("main", "v1", "HEAD", "abcdef12"):
        with pytest.raises(ConfigError, match=r"hash.*https"):
            parse(f"git+{scheme}://host/a.git@{ref}")
    assert parse(f"git+{scheme}://host/a.git@{'ab' * 20}") is not None


def test_https_does_not_become_http_on_the_way():
    for zoo in (GitZoo("https://host/a", "main"), GitZoo("http://host/a", "ab" * 20)):
        allowed = git_zoo.environment(zoo)["GIT_ALLOW_PROTOCOL"].split(":")
        assert ("http" in allowed) == zoo.url.startswith("http:")
