"""The dashboard's own process, and what it answers."""

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.job.directory import JobDir
from tests.waiting import wait_until

ENDING_SECONDS = 10.0


@dataclass
class Dashboard:
    """One that runs."""

    url: str
    process: subprocess.Popen[str]

    def get(self, path: str = "", **request) -> tuple[int, str, Mapping[str, str]]:
        """Status, text and headers of an answer."""
        asked = urllib.request.Request(self.url + path, **request)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as answer:
            with answer:
                return answer.code, answer.read().decode(), answer.headers

    def wait_for(self, status: int, text: str, *, seconds: float = 20.0) -> str:
        """The page, once it has that status and holds that text."""

        def page() -> str:
            code, shown, _ = self.get()
            return shown if code == status and text in shown else ""

        name = f"{status} with {text!r}"
        return wait_until(page, name, seconds=seconds, describe=lambda: str(self.get()))

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Exit code and stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=ENDING_SECONDS)
        return self.process.returncode, said


def new_job(folder: Path, name: str = "model.job", **settings: Any) -> Path:
    """The directory of a training in a folder, without events yet."""
    path = folder / name
    JobDir(path).claim()
    config = JobConfig(task="train", data="/d", output="/o", model_def="m", **settings)
    resolved.dump(config, path / "config.yaml")
    return path


@contextlib.contextmanager
def dashboard(*words: str | Path, first: str = "", **environment: str) -> Iterator[Dashboard]:
    """Serve on a free port until the end of the block; `first` is run in the process before."""
    program = f"{first}\nimport sys\nfrom edl_horovod.cli.main import main\nsys.exit(main())"
    run = ["-c", program] if first else ["-m", "edl_horovod"]
    argv = [sys.executable, *run, "dashboard", "--port", "0", *map(str, words)]
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        url = process.stdout.readline().strip()
        assert url, process.communicate(timeout=ENDING_SECONDS)[1]
        yield Dashboard(url, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
