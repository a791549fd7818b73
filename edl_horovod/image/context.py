"""The build context: a tar of the Dockerfile, the requirements and the zoo."""

import io
import tarfile
from typing import IO

from edl_horovod.image.plan import REQUIREMENTS, ImagePlan

__all__ = ["write_context"]


def write_context(plan: ImagePlan, dockerfile: str, stream: IO[bytes]) -> None:
    """Write the build context to a seekable stream, and rewind the stream.

    Owners, times and most modes are left out, so that equal files give equal layers for everybody.
    """
    with tarfile.open(fileobj=stream, mode="w") as tar:
        _add(tar, "Dockerfile", dockerfile.encode())
        _add(tar, REQUIREMENTS, plan.requirements)
        for name, file in plan.files.items():
            is_program = bool(file.stat().st_mode & 0o100)
            _add(tar, f"model_zoo/{name}", file.read_bytes(), is_program=is_program)
    stream.seek(0)


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, is_program: bool = False) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755 if is_program else 0o644
    tar.addfile(entry, io.BytesIO(content))
