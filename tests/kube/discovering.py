"""Host discovery, run as the program that it is."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from edl_horovod.job import hosts
from tests import waiting


class Program:
    """`with` starts it and ends it by SIGTERM."""

    def __init__(self, kubeconfig: Path, namespace: str, folder: Path, *flags: str) -> None:
        self.output = folder / "hosts"
        self.exit_code: int | None = None
        self._log = folder / "discovery.log"
        self._command = [sys.executable, "-m", "edl_horovod.cluster.pod.discovery", *flags]
        self._command += ["--namespace", namespace, "--job", "job", "--slots", "2"]
        self._command += ["--output", str(self.output)]
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def __enter__(self) -> "Program":
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=output, stderr=output
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()

    def signal_another_thread(self) -> None:
        """SIGTERM, as the kernel may give it, too: to a thread that is not the main one."""
        pid = self.process.pid
        others = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
        assert ctypes.CDLL(None).tgkill(pid, others[0], signal.SIGTERM) == 0

    def log(self) -> str:
        return self._log.read_text()


def hosts_in(path: Path) -> dict[str, int] | None:
    """What the file says; None where there is none."""
    return hosts.read(path) if path.exists() else None


def wait_until(is_so: Callable[[], bool], program: Program) -> None:
    def is_so_now() -> bool:
        assert program.process.poll() is None or is_so(), f"it ended\n{program.log()}"
        return is_so()

    def describe() -> str:
        text = program.output.exists() and program.output.read_text()
        return f"hosts file: {text}\n{program.log()}"

    waiting.wait_until(is_so_now, describe=describe)
