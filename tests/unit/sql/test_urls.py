import pytest

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.sql.settings import read_settings
from edl_horovod.sql.urls import parse_url


def test_a_label_shows_no_secret():
    url = parse_url("postgresql://ann:geheim@db.example:5433/hr?sslpassword=alsogeheim")
    assert url.label == "postgresql://db.example:5433/hr"
    assert url.dialect == "postgres"
    assert "geheim" not in repr(url)
    assert url.without_secrets("no geheim, no alsogeheim") == "no ***, no ***"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgres://ann:geheim@h/d", "'postgresql'"),
        ("ann:geheim@h/d", "without ://"),
        ("ann:geheim@h://d", "without ://"),
        ("postgresql://ann:geheim@h:port/d", "cannot be read"),
        *((url, "three slashes") for url in ("sqlite://", "sqlite://hr.db", "sqlite:///:memory:")),
    ],
)
def test_a_url_that_names_no_engine_is_refused_without_its_secrets(url, said):
    with pytest.raises(ConfigError) as error:
        parse_url(url)
    assert said in str(error.value)
    assert "geheim" not in str(error.value)
    assert error.value.__cause__ is None


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(DataError, match=r"hr\.db"):
        parse_url(f"sqlite:///{tmp_path / 'hr.db'}")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "needs a database"),
        (["db=sqlite:///x", "data=/x"], "SELECT sets"),
        (["db=sqlite:///x", "params.x=1"], "WITH sets"),
        (["db=sqlite:///x", "overwrite=true"], "overwrite is not"),
    ],
)
def test_settings_that_statements_say_are_refused(settings, said, monkeypatch):
    monkeypatch.delenv("EDL_DB", raising=False)
    with pytest.raises(ConfigError, match=said):
        read_settings(settings, {})


def test_the_database_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("EDL_DB", "postgresql://me:hidden@host/db")
    settings = read_settings([], {})
    assert settings.db.endswith("host/db")
    assert "hidden" not in repr(settings)
