"""Errors keep their kind, and so their exit code, from one process to another."""

import errno
import os
import pickle
import re
import tomllib
from pathlib import Path

import pytest

from edl_horovod import errors
from edl_horovod.errors import (
    ConfigError,
    DataError,
    JobFailed,
    MissingDependency,
    UserCodeError,
    did_you_mean,
    error_kind,
    error_of_kind,
    hint_of,
    how_to_install,
)


class Damaged(DataError):
    """A kind that only its own module knows."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("It is wrong."), "It is wrong."),
        (ConfigError("It is wrong.", hint=" Mend it."), "It is wrong. Mend it."),
        (ConfigError("It is wrong.", received="'a b'"), "It is wrong. Received: 'a b'."),
        (
            ConfigError("It is wrong.", received="None at all."),
            "It is wrong. Received: None at all.",
        ),
        (
            ConfigError("It is wrong.", received={"output": "", "launch.np": 0}, hint="Raise it."),
            "It is wrong. Received: output='', launch.np=0. Raise it.",
        ),
        (ConfigError("It is wrong.", received={"job_dir": Path("/a")}), "job_dir='/a'."),
    ],
)
def test_an_error_says_what_is_wrong_what_was_received_and_the_hint(error, text):
    assert str(error).endswith(text)


def test_an_error_keeps_its_fields_when_it_is_pickled_or_changed():
    error = Damaged("It is wrong.", received={"data": "/d", "np": 3}, hint="Mend it.")

    back = pickle.loads(pickle.dumps(error))
    longer = error.with_more_hint(" Try again.")
    changed = longer.reworded(lambda text: text.replace("/d", "/x"))

    assert type(back) is Damaged
    assert (str(back), back.received, back.hint) == (str(error), error.received, "Mend it.")
    assert str(longer) == f"{error} Try again."
    assert (type(changed), changed.received) == (Damaged, {"data": "/x", "np": 3})
    assert str(changed) == "It is wrong. Received: data='/x', np=3. Mend it. Try again."


@pytest.mark.parametrize(
    ("received", "text"),
    [
        ({"path": "/d"}, "Received: path='/d', np=3."),
        ("three.", "Received: three; np=3."),
        ("", "Received: np=3."),
    ],
)
def test_an_error_that_gets_more_settings_says_received_once(received, text):
    error = Damaged("It is wrong.", received=received, hint="Mend it.")
    assert str(error.with_received({"np": 3})) == f"It is wrong. {text} Mend it."


def test_only_the_error_classes_spell_how_received_values_are_shown():
    modules = Path(errors.__file__).parent.rglob("*.py")
    assert [m.name for m in modules if "Received: " in m.read_text()] == ["errors.py"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(DataError("x"), DataError), (UserCodeError("x"), UserCodeError), (Damaged("x"), DataError)],
)
def test_an_error_comes_back_as_the_kind_with_its_exit_code(error, kind):
    back = error_of_kind(error_kind(error), str(error))
    assert (type(back), str(back)) == (kind, "x")


@pytest.mark.parametrize("kind", ["", "None", "KeyError", "did_you_mean", "__name__"])
def test_what_is_no_kind_of_ours_is_a_job_that_failed(kind):
    assert type(error_of_kind(kind, "x")) is JobFailed


def test_all_kinds_are_known_by_name():
    kinds = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    assert {type(error_of_kind(name, "")).__name__ for name in kinds} == set(kinds)


def points(error):
    return str(error).count("edl doctor")


OF_THE_ENVIRONMENT = {
    *("MissingDependency", "NoCluster", "NoMPIJobs", "RegistryError"),
    *("ClusterForbidden", "ClusterUnreachable", "CredentialsRefused"),
}


def test_an_error_that_the_environment_causes_points_to_the_doctor_and_no_other_does():
    kinds = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    pointing = {name for name in kinds if points(getattr(errors, name)("It failed.", hint="Do."))}
    assert pointing == OF_THE_ENVIRONMENT


def test_it_points_once_whatever_happens_to_the_error():
    error = MissingDependency("Horovod is missing.", hint="Build it.")

    back = error_of_kind(error_kind(error), str(error))

    assert str(back) == str(error)
    assert points(pickle.loads(pickle.dumps(error))) == 1
    assert points(error.with_more_hint(" Then try again.")) == 1
    assert points(error.reworded(str.upper)) == 1
    assert points(type(error)(f"{error} Nothing was started.")) == 1
    assert points(MissingDependency("x", hint=hint_of(OSError(errno.EMFILE, "Too many")))) == 1


def test_the_hint_alone_does_not_point_for_the_doctor_shows_it_itself():
    error = MissingDependency("Horovod is missing.", received={"np": 2}, hint="Build it.")
    assert error.hint == "Build it."
    assert error.facts == "Horovod is missing. Received: np=2."


def test_the_nearest_word_is_found_whatever_its_capitals():
    assert did_you_mean("adm", ["Nadam", "Adam", "SGD"]) == " Did you mean 'Adam'?"


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        *((number, "Make room") for number in (errno.ENOSPC, errno.EDQUOT)),
        *((number, "write permission") for number in (errno.EACCES, errno.EPERM)),
        (errno.EROFS, "read-only"),
        (errno.ENAMETOOLONG, "shorter name"),
        (errno.EIO, "its disk"),
    ],
)
def test_each_reason_why_something_cannot_be_written_has_its_own_hint(number, hint):
    assert hint in hint_of(OSError(number, os.strerror(number)))


def test_nothing_names_a_package_index_that_does_not_have_edl_horovod():
    root = Path(__file__).parents[2]
    texts = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("edl_horovod/**/*.py")]

    wrong = [
        f"{path.relative_to(root)}:{number}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"pip install[^.]*\bedl[-_]horovod\b", line)
    ]

    assert len(texts) > 200
    assert wrong == []


def test_how_to_install_an_extra_works_in_a_clone():
    assert how_to_install("s3").endswith("run pip install -c constraints.txt '.[s3]'")
    root = Path(__file__).parents[2]
    used = {
        extra
        for path in (*root.glob("docs/**/*.md"), *root.glob("edl_horovod/**/*.py"))
        for extra in re.findall(r"""(?:how_to_install\(['"]|'\.\[)(\w+)""", path.read_text())
    }
    assert used >= {"s3", "gcs", "remote", "mpi", "kubernetes", "dashboard", "image"}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert used <= project["optional-dependencies"].keys()
