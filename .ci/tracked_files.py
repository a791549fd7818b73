"""Refuse tracked files that are not sources: `python .ci/tracked_files.py [FOLDER]`.

Those are files above 500 KB, and binaries that are not pictures: what was downloaded or built.
"""

import subprocess
import sys
from pathlib import Path

MAX_BYTES = 500_000
PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")


def main() -> int:
    """Print what is wrong, a line for each file; returns the process' exit code."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    if not (folder / ".git").exists():
        print("The files are not checked: an archive of the sources does not say what is tracked.")
        return 0
    listed = subprocess.check_output(["git", "-C", str(folder), "ls-files", "-z"])
    names = sorted(name.decode() for name in listed.split(b"\0") if name)
    wrong = [f"{name}: {said}" for name in names for said in _complaints(folder / name)]
    print("\n".join(wrong) or f"{len(names)} tracked files, none of them large or a binary")
    return 1 if wrong else 0


def _complaints(path: Path) -> list[str]:
    if path.is_symlink() or not path.is_file():
        return []
    content = path.read_bytes()
    found = []
    if len(content) > MAX_BYTES:
        found.append(
            f"The file is too large. Received: {len(content)} bytes, the most are {MAX_BYTES}. "
            "Let the set-up download or make it."
        )
    if _is_binary(content) and not content.startswith(PICTURES):
        found.append(
            "The file is a binary that is not a picture (PNG, JPEG or GIF). "
            "Let the set-up download or make it."
        )
    return found


def _is_binary(content: bytes) -> bool:
    try:
        return "\0" in content.decode()
    except UnicodeDecodeError:
        return True


if __name__ == "__main__":
    sys.exit(main())
