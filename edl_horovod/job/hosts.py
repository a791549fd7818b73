"""The hosts file: the hosts and slots that host discovery asks for, a `host:slots` on each line."""

import logging
from collections.abc import Mapping
from pathlib import Path

from edl_horovod.errors import ConfigError
from edl_horovod.files.whole_file import write_text

log = logging.getLogger(__name__)

MAX_SLOTS_DIGITS = 6


def parse(text: str) -> dict[str, int]:
    """Host names and their slots; empty lines and `#` comments are skipped.

    Raises:
        ConfigError: A line is not `host:slots` with 0 or more slots; the message names the line.
    """
    hosts: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        host, _, slots = line.rpartition(":")
        is_number = slots.isascii() and slots.isdigit() and len(slots) <= MAX_SLOTS_DIGITS
        if not host or not is_number:
            raise ConfigError(
                f"Line {number} of the hosts file must be host:slots.",
                received=repr(raw),
                hint="Write for instance localhost:2.",
            )
        hosts[host] = int(slots)
    return hosts


def read(path: Path) -> dict[str, int]:
    """The hosts and slots in the file; see `parse`.

    Raises:
        ConfigError: The file is not UTF-8 text, or a line is not `host:slots`.
        OSError: The file cannot be read.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            "The hosts file must be UTF-8 text.",
            received=str(error),
            hint="Write for instance localhost:2.",
        ) from error


def write(path: Path, hosts: Mapping[str, int]) -> None:
    """Write the file; readers see the old or the new one, never a partial one."""
    write_text(path, text_of(hosts))


def text_of(hosts: Mapping[str, int]) -> str:
    """The file's lines; `parse` reads them."""
    return "".join(f"{host}:{slots}\n" for host, slots in hosts.items())


class HostsFile:
    """A hosts file that is polled for changes."""

    def __init__(self, path: Path) -> None:
        """Remember the path of the file, which does not have to exist yet."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._complaint = ""

    def change(self) -> dict[str, int] | None:
        """The hosts and slots if the file changed since the last call; else None.

        A file that cannot be read counts as unchanged: a bad file must not empty the ring.
        """
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self._seen:
                return None
            hosts = read(self._path)
        except (OSError, ConfigError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("hosts file: %s", error)
            return None
        self._seen, self._complaint = stamp, ""
        return hosts


def num_workers(slots: int, spares: int) -> int:
    """Workers of a host with this number of slots; the spare ones stay warm to replace others."""
    return slots + spares if slots > 0 else 0
