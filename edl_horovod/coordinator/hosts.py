"""The hosts file: what host discovery wants, one `host:slots` a line."""

from collections.abc import Mapping
from pathlib import Path

from edl_horovod.errors import ConfigError
from edl_horovod.whole_file import write_text

__all__ = ["parse", "read", "write"]

MAX_SLOTS_DIGITS = 6


def parse(text: str) -> dict[str, int]:
    """Host names and their slots; empty lines and `#` comments are skipped.

    Raises:
        ConfigError: A line is not `host:slots` with slots of 0 or more; names the line.
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
                f"Line {number} of the hosts file must be host:slots. Received: {raw!r}. "
                "Write for instance localhost:2."
            )
        hosts[host] = int(slots)
    return hosts


def read(path: Path) -> dict[str, int]:
    """What the file wants now; see `parse`.

    Raises:
        ConfigError: It is no text, or a line is not `host:slots`.
        OSError: It cannot be read.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"The hosts file must be UTF-8 text. Received: {error}. Write for instance localhost:2."
        ) from error


def write(path: Path, hosts: Mapping[str, int]) -> None:
    """Write the file; readers see the old or the new one, whole.

    Args:
        path: The hosts file.
        hosts: Host name to slots.
    """
    write_text(path, "".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
