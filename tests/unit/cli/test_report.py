"""The block for a report: what a reader needs stays, and what is private goes."""

import pytest

from edl_horovod.cli import report
from edl_horovod.health import Finding


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A user with a home, a secret and a machine with a name."""
    monkeypatch.setenv("LOGNAME", "zenobia")
    monkeypatch.setenv("HOME", "/home/zenobia")
    monkeypatch.setenv("HF_TOKEN", "xyzzy-plugh-42")
    monkeypatch.setattr("platform.node", lambda: "rack7.corp.example")


def shown(text, **options):
    line = report.markdown([("check", Finding("OK", text, **options))]).splitlines()[3]
    return line.removeprefix("OK    check       ")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("3.11.2 in /home/zenobia/secret/.venv/bin/python, x", "3.11.2 in ~/..., x"),
        ("settings of /home/zenobia", "settings of ~"),
        ("/scratch/zenobia/run: 5.0 GB free", "/scratch/USER/run: 5.0 GB free"),
        ("/scratch/zenobia_env: 5.0 GB free", "/scratch/USER_env: 5.0 GB free"),
        ("rack7 and RACK7.corp.example answer", "HOST and HOST answer"),
        ("the token is xyzzy-plugh-42.", "the token is SECRET."),
        ("https://api.corp.example:6443 runs", "https://HOST runs"),
        ("http://joe:pw@10.1.2.3/v2/: HTTP 401", "http://HOST/v2/: HTTP 401"),
        ("10.1.2.3:6443 and fe80::1:2 refuse", "ADDRESS:6443 and ADDRESS refuse"),
        ("Authorization: Bearer abc.def-ghi_jkl", "Authorization: Bearer SECRET"),
        ("joe@corp.example said", "ADDRESS said"),
        ("Pool(host='proxy.corp.example', port=3128)", "Pool(host='HOST', port=3128)"),
        ("AKIAABCDEFGHIJKLMNOP leaked", "SECRET leaked"),
        (
            'HTTP 403: pods is forbidden: User "alice" cannot',
            'HTTP 403: pods is forbidden: User "USER" cannot',
        ),
    ],
)
def test_names_addresses_folders_and_secrets_are_left_out(text, safe):
    assert shown(text) == safe


@pytest.mark.parametrize(
    "text",
    [
        "keras: keras 3.15.0, tensorflow-cpu 2.21.0, horovod 0.28.1",
        "unix:///var/run/docker.sock: not there",
        "at most 1,024, which may be raised to 1,048,576",
        "no right to create mpijobs.kubeflow.org, roles.rbac.authorization.k8s.io",
        "namespace default on localhost",
    ],
)
def test_what_a_reader_needs_stays(text):
    assert shown(text) == text


@pytest.mark.parametrize(
    "secret",
    [
        "pw@ab.cd!rest-of-secret",
        "https://h.example/x?sig=abcdefsecret",
        "10.1.2.3-then-more",
        "first line\nsecond line",
    ],
)
def test_a_secret_is_left_out_whole_and_wherever_it_stands(secret, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", secret)
    assert shown(f"a{secret}b failed, {secret}: no") == "aSECRETb failed, SECRET: no"


def test_of_two_secrets_the_longer_one_is_left_out_first(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "xyzzy-plugh-42-and-more")
    assert shown("xyzzy-plugh-42-and-more") == "SECRET"


# Such a name is left out whole, although a part of it looks like an address.
@pytest.mark.parametrize("name", ["lab-x", "lab-x/api-corp:6443/joe@corp.example"])
def test_a_check_names_what_only_it_knows_to_be_private(name):
    assert shown(f"context={name} is not there", private=(name,)) == "context=NAME is not there"


def test_no_text_ends_the_block():
    assert report.markdown([("a", Finding("OK", "x ``` y"))]).count("```") == 2
