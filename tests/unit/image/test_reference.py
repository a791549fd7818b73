import pytest

from edl_horovod.errors import ConfigError
from edl_horovod.image import reference
from edl_horovod.image.reference import Reference

DIGEST = "sha256:" + "ab" * 32


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
    assert reference.parse(text, "image") == expected
    assert str(expected) == text.removeprefix("docker-pullable://")


@pytest.mark.parametrize("text", ["zoo", "zoo:latest", "host:5000/team/zoo"])
def test_a_name_that_may_mean_another_image_tomorrow_is_refused(text):
    with pytest.raises(ConfigError, match="must say which image"):
        reference.parse(text, "image")


@pytest.mark.parametrize("text", ["", "Zoo:1", "a b:1", "zoo:1\nRUN evil", "zoo@sha256:12", "-x:1"])
def test_what_is_no_name_of_an_image_is_refused(text):
    with pytest.raises(ConfigError, match="no name of an image"):
        reference.parse(text, "base_image")


@pytest.mark.parametrize("text", ["host/zoo:1", f"host/zoo@{DIGEST}", "", "host/", "a b"])
def test_a_repository_has_no_tag(text):
    with pytest.raises(ConfigError, match="image_repository"):
        reference.parse_repository(text)
