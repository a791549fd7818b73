"""Install locked packages with uv, from where pip would take them, beside this Python.

    python locks/install.py setup tensorflow       # as `make setup` does
    TORCH_LINKS=folder python locks/install.py setup torch

With TORCH_LINKS PyTorch comes from that folder or page alone.

uv loads and unpacks side by side, in a third of pip's time, but does not read pip's settings, in
which a company's mirror may be named; so they are handed on.

PyTorch's build for CPUs (locks/torch.txt) is not on the public index. It is looked for where pip
looks anyway, then on PyTorch's own index. If neither has the build for this Python, for example
behind a mirror of the public index, the public build is taken (locks/torch-cuda.txt): it runs on
CPUs, too, but brings the libraries of CUDA along.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
CPU, PUBLIC = "torch", "torch-cuda"
ALONE = "keras-2"
"""Installed without what it brings along: it asks for the TensorFlow of another package."""
PROBE = {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1"}
"""A place that does not answer is given up soon: there is another one."""
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
"""Settings of pip that name places, and uv's options for them."""
VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY"}


def settings_of_pip() -> dict[str, str]:
    """What pip was told by files and variables; where two say the same, what pip itself takes."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    pairs = [line.partition("=")[::2] for line in run.stdout.splitlines() if "=" in line]
    sections: dict[str, dict[str, str]] = {}
    for name, value in pairs:
        section, _, key = name.rpartition(".")
        sections.setdefault(section, {})[key] = ast.literal_eval(value)
    return {
        key: value
        for section in ("global", "install", ":env:")
        for key, value in sections.get(section, {}).items()
        if value
    }


def options(settings: dict[str, str]) -> list[str]:
    """Options of uv for the places that pip was told; without folders that are not there."""
    places = [(OPTIONS[key], place) for key in OPTIONS for place in settings.get(key, "").split()]
    return [word for option, place in places if _may_be_there(place) for word in (option, place)]


def _may_be_there(place: str) -> bool:
    path = place.removeprefix("file://")
    return os.path.exists(path) if path.startswith("/") else True


def uv(
    settings: dict[str, str], names: list[str], *words: str, is_probe: bool = False
) -> subprocess.CompletedProcess[str]:
    """Install the sets of these names; what a probe prints is captured."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which("uv", path=beside)
    if program is None:
        sys.exit("uv is not installed here: pip install --require-hashes -r locks/build.txt")
    command = [program, "pip", "install", "--python", sys.executable, "--require-hashes"]
    # A package may be in several places, as pip takes it; its hash says which is right.
    command += ["--no-build-isolation", "--no-config", "--index-strategy", "unsafe-best-match"]
    if not sys.stderr.isatty():
        command.append("--quiet")
    command += [*options(settings), *words]
    for name in names:
        command += ["-r", str(HERE / f"{name}.txt")]
    given = {variable: settings[key] for key, variable in VARIABLES.items() if key in settings}
    environment = {**given, **os.environ, **(PROBE if is_probe else {})}
    return subprocess.run(
        command,
        env=environment,
        stderr=subprocess.PIPE if is_probe else None,
        text=True,
        check=False,
    )


def install_torch(settings: dict[str, str]) -> int:
    """Try the places in turn; returns the exit code."""
    links = os.environ.get("TORCH_LINKS", "")
    if links:
        places = [(f"TORCH_LINKS={links}", ["--find-links", links])]
    else:
        index = ["--find-links", PYTORCH_INDEX]
        places = [("where pip looks by itself", []), (f"PyTorch's index {PYTORCH_INDEX}", index)]
    for place, words in places:
        run = uv(settings, [CPU], *words, is_probe=True)
        if run.returncode == 0:
            print(f"PyTorch is its build for CPUs, from {place}.")
            return 0
    if links:
        print(
            f"{run.stderr.strip()}\nPyTorch's build for CPUs is not in the place that TORCH_LINKS "
            f"names, and no other build is taken then. Received: TORCH_LINKS={links}. It must be a "
            f"folder or a page with an archive that {CPU}.txt locks.",
            file=sys.stderr,
        )
        return 1
    print(
        "PyTorch's build for CPUs and this Python is neither where pip looks by itself nor on "
        f"PyTorch's index\n{PYTORCH_INDEX}. The public index's build is taken instead. It runs on "
        "CPUs, too, and brings\ngigabytes of CUDA's libraries along. TORCH_LINKS=FOLDER takes the "
        "build for CPUs from a folder.",
        flush=True,
    )
    return uv(settings, [PUBLIC]).returncode


def main(names: list[str]) -> int:
    """Install the sets of these names; returns the exit code."""
    settings = settings_of_pip()
    together = [name for name in names if name not in (CPU, ALONE)]
    code = uv(settings, together).returncode if together else 0
    if code == 0 and ALONE in names:
        code = uv(settings, [ALONE], "--no-deps").returncode
    if code == 0 and CPU in names:
        code = install_torch(settings)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
