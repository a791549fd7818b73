"""Walk the README and CONTRIBUTING as a newcomer: `python .ci/readme.py [PAGE...]`, as root.

Every indented block of the pages runs, in the order in which they print them, in a clone of this
checkout that has nothing beside it, as a new account with an empty home, 1,024 open files and umask
077. A comment in the line above a block says what the newcomer brings along:

    <!-- newcomer: fixture COMMAND -->   a command that makes the user's own files, run before it
    <!-- newcomer: python -->            the block is Python, not shell
    <!-- newcomer: root -->              the block runs as root, in the same clone, after all others
"""

import dataclasses
import itertools
import os
import pwd
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md")
INDENT = "    "
MARK = re.compile(r"<!-- newcomer: (.*) -->")
OPEN_FILES = 1024
ENDING_SECONDS = 10
ACCOUNT = f"edl-newcomer-{os.getpid()}"
KEPT = re.compile(
    r"EDL_.*|PIP_.*|UV_.*|.*_PROXY|.*_proxy|SSL_CERT_.*|OPENBLAS_.*|CI|LANG|LC_.*|PYTHON|TERM"
)
"""Variables that say how this machine reaches an index, what tests find on it, which Python `make`
takes, and the like."""


@dataclasses.dataclass(frozen=True)
class Block:
    """One indented block of the README.

    Args:
        lines: Without their indent.
        kind: `shell`, `python` or `root`.
        fixture: A command that runs before the block; empty for none.
    """

    lines: tuple[str, ...]
    kind: str = "shell"
    fixture: str = ""


def blocks(text: str) -> list[Block]:
    """The indented blocks of a Markdown text, in its order.

    Raises:
        ValueError: A mark is unknown, or no block follows it.
    """
    parsed: list[Block] = []
    mark, lines, was_blank = "", [], True
    for line in [*text.splitlines(), "# The end"]:
        if line.startswith(INDENT) and (lines or was_blank):
            lines.append(line.removeprefix(INDENT))
            continue
        if line.strip() and lines:
            parsed.append(_block(lines, mark))
            mark, lines = "", []
        elif lines:
            lines.append("")
        if line.strip() and mark:
            raise ValueError(f"No indented block follows the mark. Received: {mark}")
        if found := MARK.fullmatch(line.strip()):
            mark = found[1]
        was_blank = not line.strip()
    if mark:
        raise ValueError(f"No indented block follows the mark. Received: {mark}")
    return parsed


def walk_of(pages: list[str]) -> list[Block]:
    """The blocks of all pages; those for root come last, because root's files would be in the way.

    Raises:
        ValueError: A mark is unknown, or no block follows it.
    """
    walk = [block for page in pages for block in blocks(page)]
    return sorted(walk, key=lambda block: block.kind == "root")


def _block(lines: list[str], mark: str) -> Block:
    while not lines[-1]:
        lines.pop()
    word, _, rest = mark.partition(" ")
    if word == "fixture" and rest:
        return Block(tuple(lines), fixture=rest)
    if mark not in ("", "python", "root"):
        raise ValueError(f"A mark is python, root or fixture COMMAND. Received: {mark}")
    return Block(tuple(lines), mark or "shell")


def commands(block: Block) -> list[str]:
    """The shell commands of a block; a line that ends in a backslash goes on in the next one."""
    if block.kind == "python":
        return [f"python -c {shlex.quote(chr(10).join(block.lines))}"]
    joined = "\n".join(block.lines).replace("\\\n", "")
    fixture = [block.fixture] if block.fixture else []
    return [*fixture, *(line for line in joined.splitlines() if line.strip())]


def script(commands: list[str]) -> str:
    """A shell script that runs commands as if typed one after the other, and times each."""
    lines = []
    for command in commands:
        lines += [
            f"printf '\\n$ %s\\n' {shlex.quote(command)}",
            "SECONDS=0",
            command,
            'status=$?; echo "($SECONDS s, exit code $status)"; [ $status -eq 0 ] || exit $status',
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Make the account, walk, and remove the account; returns the process' exit code."""
    if os.getuid() != 0:
        sys.exit(
            "This makes an account, which needs root. The README's commands themselves do not."
        )
    pages = sys.argv[1:] or [ROOT / page for page in PAGES]
    walk = walk_of([Path(page).read_text(encoding="utf-8") for page in pages])
    if not walk:
        raise ValueError(f"The pages have no indented block. Received: {pages}")
    subprocess.run(["useradd", "--create-home", "--skel", "/nonexistent", ACCOUNT], check=True)
    try:
        return _walk(walk, pwd.getpwnam(ACCOUNT)) or _leftovers()
    finally:
        subprocess.run(["pkill", "-KILL", "-u", ACCOUNT], check=False)
        subprocess.run(
            ["userdel", "--force", "--remove", ACCOUNT], capture_output=True, check=False
        )


def _walk(walk: list[Block], account: pwd.struct_passwd) -> int:
    """Clone, and run the blocks; returns the first exit code that is not 0.

    Blocks that follow each other share a shell, as one terminal does.
    """
    clone = Path(account.pw_dir) / "edl_horovod"
    with tempfile.TemporaryDirectory(prefix="edl-readme-") as scratch:
        Path(scratch).chmod(0o755)
        bundle = Path(scratch) / "edl_horovod.bundle"
        subprocess.run(
            ["git", "-C", str(ROOT), "bundle", "create", "-q", str(bundle), "HEAD"], check=True
        )
        clone_it = f"git -c advice.detachedHead=false clone -q {bundle} {clone}"
        code = _run([clone_it], account, clone.parent)
    for is_root, together in itertools.groupby(walk, lambda block: block.kind == "root"):
        typed = [command for block in together for command in commands(block)]
        if code == 0 and is_root:
            shell = ["bash", "-c", script(typed)]
            code = subprocess.run(
                shell, cwd=clone, stdin=subprocess.DEVNULL, check=False
            ).returncode
        elif code == 0:
            code = _run(typed, account, clone)
    return code


def _leftovers() -> int:
    """Whether a command left a process behind; waits for those that are about to end."""
    deadline = time.monotonic() + ENDING_SECONDS
    command = ["ps", "-u", ACCOUNT, "-o", "stat=,pid=,args="]
    while True:
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        # A container may have nobody who takes note of ended processes without a parent.
        left = [line for line in listed.splitlines() if not line.startswith("Z")]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if left:
        print("The commands left processes behind:", *left, sep="\n")
    return int(bool(left))


def _run(commands: list[str], account: pwd.struct_passwd, folder: Path) -> int:
    """Run commands as the account, in one shell; returns the exit code of the first that fails."""
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": shutil.which("bash") or "/bin/bash",
        **kept,
    }
    return subprocess.run(
        ["bash", "-c", script(commands)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        umask=0o077,
        preexec_fn=_limit_open_files,
        check=False,
    ).returncode


def _limit_open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))


if __name__ == "__main__":
    started = time.monotonic()
    exit_code = main()
    print(f"The pages took {(time.monotonic() - started) / 60:.1f} minutes.")
    sys.exit(exit_code)
