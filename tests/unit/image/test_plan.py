import io
import os
import tarfile
from pathlib import Path

import pytest

from edl_horovod.errors import ConfigError
from edl_horovod.image import plan as plans
from edl_horovod.image.plan import Reference, parse_reference, parse_repository, write_context
from edl_horovod.models.git_zoo import FetchedZoo

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def zoo(tmp_path):
    folder = tmp_path / "My Zoo"
    (folder / "deep").mkdir(parents=True)
    (folder / "requirements.txt").write_text("a==1\n")
    (folder / "m.py").write_text("x = 1\n")
    (folder / "deep" / "n.py").write_text("x = 2\n")
    return folder


def make(zoo: Path, *, source="", commit="", **options):
    fetched = FetchedZoo(zoo, source, commit)
    return plans.make_plan(fetched, base_image="host/base:1", repository="host/zoo", **options)


def steps(plan, user=""):
    return plan.dockerfile(base="host/base:1", user=user).splitlines()


def tag(plan, base_id="sha256:1"):
    return plan.tag(base_id, plan.dockerfile(base="host/base:1", user=""))


def test_requirements_come_before_the_zoo(zoo):
    assert [step.split()[0] for step in steps(make(zoo))] == ["FROM", "COPY", "RUN", "COPY"]
    assert "/model_zoo/requirements.txt" in steps(make(zoo))[1].split()


def test_nothing_is_installed_where_nothing_is_required(zoo):
    (zoo / "requirements.txt").write_text("# nothing\n\n")
    assert steps(make(zoo)) == ["FROM host/base:1", "COPY model_zoo /model_zoo/"]


def test_the_base_images_user_is_the_images_user(zoo):
    lines = steps(make(zoo), user="1000")
    assert lines[1] == "USER root"
    assert lines[-1] == "USER 1000"


def test_a_tag_is_made_of_what_the_image_holds(zoo):
    first = tag(make(zoo))
    assert first.startswith("my-zoo-")
    assert tag(make(zoo)) == first
    assert tag(make(zoo), base_id="sha256:2") != first
    (zoo / "m.py").chmod(0o755)  # A file becomes a program.
    second = tag(make(zoo))
    assert second != first
    (zoo / "deep" / "n.py").write_text("x = 3\n")
    assert tag(make(zoo)) not in (first, second)


def test_the_zoo_travels_without_what_is_hidden_or_made(zoo):
    for name in (".git", "__pycache__", "env"):
        (zoo / name).mkdir()
        (zoo / name / "x.py").write_text("")
    (zoo / "env" / "pyvenv.cfg").write_text("")
    assert list(make(zoo).files) == ["deep/n.py", "m.py", "requirements.txt"]


def test_a_link_out_of_the_zoo_is_refused(zoo, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (zoo / "data.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=r"data\.txt"):
        make(zoo)


def test_a_folder_without_requirements_is_refused_but_for_a_copy(zoo):
    (zoo / "requirements.txt").unlink()
    with pytest.raises(ConfigError, match=r"requirements\.txt"):
        make(zoo)
    assert not make(zoo, needs_requirements=False).has_requirements


def test_a_zoo_of_one_file_is_that_file(zoo):
    plan = make(zoo / "m.py")
    assert plan.zoo_path == "/model_zoo/m.py"
    assert list(plan.files) == ["m.py"]
    assert not plan.has_requirements


def test_a_zoo_that_is_too_large_is_refused(zoo):
    (zoo / "weights.bin").touch()
    os.truncate(zoo / "weights.bin", plans.MAX_BYTES + 1)  # A hole: it takes no room.
    with pytest.raises(ConfigError, match=f"may hold {plans.MAX_BYTES}"):
        make(zoo)


def test_a_zoo_of_git_is_labelled(zoo):
    plan = make(zoo, source="git+https://host/team/models.git@v2", commit="c0ffee")
    assert plan.name == "models"
    assert [step for step in steps(plan) if step.endswith('.revision"="c0ffee"')]


def test_the_context_is_the_same_for_everybody(zoo):
    plan = make(zoo)
    first, second = io.BytesIO(), io.BytesIO()
    write_context(plan, "FROM x\n", first)
    write_context(plan, "FROM x\n", second)
    assert first.getvalue() == second.getvalue()
    with tarfile.open(fileobj=first) as tar:
        names = tar.getnames()
        assert {entry.uid for entry in tar} == {0}
    assert names[:2] == ["Dockerfile", "requirements.txt"]
    assert "model_zoo/deep/n.py" in names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zoo:1", Reference("zoo", "1")),
        ("host:5000/team/zoo:v1.2", Reference("host:5000/team/zoo", "v1.2")),
        (f"host/zoo@{DIGEST}", Reference("host/zoo", digest=DIGEST)),
        (f"host/zoo:1@{DIGEST}", Reference("host/zoo", "1", DIGEST)),
        (f"docker-pullable://host/zoo@{DIGEST}", Reference("host/zoo", digest=DIGEST)),
        ("[::1]:5000/zoo:1", Reference("[::1]:5000/zoo", "1")),
    ],
)
def test_names_of_images_are_read(text, expected):
    assert parse_reference(text, "image") == expected
    assert str(expected) == text.removeprefix("docker-pullable://")


@pytest.mark.parametrize("text", ["zoo", "zoo:latest", "host:5000/team/zoo"])
def test_a_name_that_may_mean_another_image_tomorrow_is_refused(text):
    with pytest.raises(ConfigError, match="one image"):
        parse_reference(text, "image")


@pytest.mark.parametrize("text", ["", "Zoo:1", "a b:1", "zoo:1\nRUN evil", "zoo@sha256:12", "-x:1"])
def test_what_is_no_name_of_an_image_is_refused(text):
    with pytest.raises(ConfigError, match="the name"):
        parse_reference(text, "base_image")


@pytest.mark.parametrize("text", ["host/zoo:1", f"host/zoo@{DIGEST}", "", "host/", "a b"])
def test_a_repository_has_no_tag(text):
    with pytest.raises(ConfigError, match="image_repository"):
        parse_repository(text)
