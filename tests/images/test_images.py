"""Images of model zoos: built by a real builder, pushed to a real registry."""

import base64
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import edl_horovod
from edl_horovod import image
from edl_horovod.config.compose import compose
from edl_horovod.errors import ImageError, RegistryError
from edl_horovod.health import Programs, Scope
from edl_horovod.image.health import check_registry
from tests.images.servers import PASSWORD, USER


def push(zoo, base, registry, **settings):
    defaults = {"model_zoo": zoo, "base_image": base}
    defaults["image_repository"] = f"{registry.address}/team/zoo"
    return edl_horovod.build_image(push=True, **(defaults | settings))


def layers(registry, pushed):
    """The digests of an image's layers, as the registry serves them."""
    _, text = registry.manifest("team/zoo", pushed.digest.partition("@")[2])
    return [layer["digest"] for layer in json.loads(text)["layers"]]


def files_of(podman, name):
    """The folder in which an image's files can be looked at."""
    return Path(podman.run("image", "mount", name).strip())


def test_the_digest_is_that_of_the_registry(builder, zoo, base, registry):
    pushed = push(zoo, base, registry)
    digest, text = registry.manifest("team/zoo", pushed.image.rpartition(":")[2])
    assert pushed.digest == f"{registry.address}/team/zoo@{digest}"
    assert digest == f"sha256:{hashlib.sha256(text).hexdigest()}"


def test_an_image_holds_the_zoo_and_what_it_requires(builder, zoo, base, registry, podman):
    pushed = push(zoo, base, registry)
    root = files_of(podman, pushed.image)
    assert (root / "model_zoo" / "deep" / "more.py").read_text() == "import edl_probe\n"
    assert not (root / "model_zoo" / ".git").exists()
    assert list(root.rglob("edl_probe.py"))
    assert builder.images.get(pushed.image).attrs["Config"]["User"] == "1000"


def test_a_changed_model_costs_one_layer(builder, zoo, base, registry, say):
    first = push(zoo, base, registry)
    (zoo / "model.py").write_text("VERSION = 2\n")
    began = time.monotonic()
    second = push(zoo, base, registry)
    say(f"a changed model: built and pushed in {time.monotonic() - began:.2f} s")
    before, after = layers(registry, first), layers(registry, second)
    assert first.image != second.image
    assert before[:-1] == after[:-1]
    assert before[-1] != after[-1]
    _, text = registry.manifest("base", "1")
    assert before[0] == json.loads(text)["layers"][0]["digest"]


def test_the_same_zoo_is_the_same_tag(builder, zoo, base, registry):
    first = push(zoo, base, registry)
    assert push(zoo, base, registry).image == first.image
    (zoo / "requirements.txt").write_text("")
    assert push(zoo, base, registry).image != first.image


def test_the_image_can_be_pulled_by_its_digest(builder, zoo, base, registry):
    pushed = push(zoo, base, registry)
    builder.images.remove(pushed.image, force=True)
    pulled = builder.api.pull(pushed.digest.partition("@")[0], tag=pushed.digest.partition("@")[2])
    assert "error" not in pulled.lower()
    # And something can be put on it: its layers are there.
    again = push(zoo, pushed.digest, registry)
    assert len(layers(registry, again)) > len(layers(registry, pushed))


def test_what_pip_cannot_install_is_told(builder, zoo, base, registry, index):
    (zoo / "requirements.txt").write_text(f"--index-url {index}\nno-such-thing==9\n")
    tags = set(map(str, builder.images.list()))
    with pytest.raises(ImageError, match=r"requirements\.txt") as error:
        push(zoo, base, registry)
    assert "no-such-thing==9" in str(error.value)
    assert set(map(str, builder.images.list(filters={"dangling": False}))) <= tags
    assert builder.containers.list(all=True) == []


def test_a_base_image_that_is_nowhere(builder, zoo, registry):
    with pytest.raises(RegistryError, match=r"nothing:1 .*pulled.*Check the image"):
        push(zoo, f"{registry.address}/nothing:1", registry)


def test_a_registry_that_is_not_there(builder, zoo, base, registry, nobody):
    with pytest.raises(RegistryError, match=r"pushed.*refused"):
        push(zoo, base, registry, image_repository=f"{nobody}/team/zoo")


def test_a_registry_that_wants_a_login(builder, zoo, base, registry, guarded):
    with pytest.raises(RegistryError, match="Log in"):
        push(zoo, base, registry, image_repository=f"{guarded.address}/team/zoo")


def write_login(path, address):
    text = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    path.write_text(json.dumps({"auths": {address: {"auth": text}}}))


def login_of_docker(tmp_path, address, _monkeypatch):
    write_login(tmp_path / "docker" / "config.json", address)


def login_of_podman(tmp_path, address, _monkeypatch):
    write_login(tmp_path / "auth.json", address)


def login_of_a_helper(tmp_path, address, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    helper = tools / "docker-credential-edltest"
    answer = json.dumps({"ServerURL": address, "Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\necho '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    (tmp_path / "docker" / "config.json").write_text(
        json.dumps({"credHelpers": {address: "edltest"}})
    )


@pytest.mark.parametrize("login", [login_of_docker, login_of_podman, login_of_a_helper])
def test_logins_are_found(
    builder, zoo, base, registry, guarded, login, tmp_path, monkeypatch, caplog
):
    login(tmp_path, guarded.address, monkeypatch)
    with caplog.at_level("DEBUG"):
        pushed = push(zoo, base, registry, image_repository=f"{guarded.address}/team/zoo")
    assert pushed.digest.startswith(f"{guarded.address}/team/zoo@sha256:")
    assert PASSWORD not in caplog.text


def test_a_zoo_in_git(builder, zoo, base, registry, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (zoo / ".git" / "config").unlink()
    (zoo / ".git").rmdir()
    git = ["git", "-C", str(zoo), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *command], check=True)
    config = compose(
        "train",
        [
            f"model_zoo=git+file://{zoo}@main",
            "model_def=model",
            "data=d",
            "output=o",
            f"base_image={base}",
            f"image_repository={registry.address}/team/zoo",
        ],
    )
    job = image.ensure(config)
    assert job.model_zoo == "/model_zoo"
    assert job.image.startswith(f"{registry.address}/team/zoo@sha256:")
    builder.images.pull(*job.image.split("@")[:1], tag=job.image.partition("@")[2])
    labels = builder.images.get(job.image).labels
    assert labels["org.opencontainers.image.revision"] == job.model_zoo_commit


def test_the_command_prints_tag_and_digest(builder, zoo, base, registry):
    command = [sys.executable, "-m", "edl_horovod", "image", "push", f"model_zoo={zoo}"]
    command += [f"base_image={base}", f"image_repository={registry.address}/team/zoo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert printed["image"].startswith(f"{registry.address}/team/zoo:zoo-")
    assert printed["digest"].startswith(f"{registry.address}/team/zoo@sha256:")
    assert "pip install" in done.stderr


def test_the_doctor_tries_a_push_with_the_login_and_leaves_nothing(
    builder, registry, guarded, tmp_path, monkeypatch
):
    def levels(address):
        scope = Scope(Programs(), image_repository=f"{address}/doctor/zoo")
        return [finding.level for finding in check_registry(scope)]

    assert levels(registry.address) == ["OK", "OK"]
    assert levels(guarded.address) == ["OK", "FAIL"]
    login_of_docker(tmp_path, guarded.address, monkeypatch)
    assert levels(guarded.address) == ["OK", "OK"]
    begun = "_uploads/*/startedat"
    uploads = [*registry.folder.rglob(begun), *guarded.folder.rglob(begun)]
    assert uploads == []
