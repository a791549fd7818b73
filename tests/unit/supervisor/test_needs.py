"""What is not installed is told before anything starts."""

import sys
from pathlib import Path

import pytest

from edl_horovod import api
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import MissingDependency


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (("horovod",), "and horovod is not installed"),
        (("keras", "tensorflow", "horovod"), "and keras and tensorflow and horovod are not"),
    ],
)
def test_a_job_here_without_what_its_workers_import_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], told: str
) -> None:
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    config = JobConfig(
        task="train", data=str(tmp_path), output=str(tmp_path / "out"), model_def="m"
    )

    with pytest.raises(MissingDependency, match=told) as found:
        api.run(config)

    assert "make setup" in str(found.value)
    assert "pip install -c constraints.txt '.[tensorflow,horovod-build]'" in str(found.value)
    assert list(tmp_path.iterdir()) == []
