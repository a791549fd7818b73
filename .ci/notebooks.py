"""Run the notebooks of docs/notebooks and write them with what they show: `make notebooks`.

A notebook runs in a folder of its own, for which the outputs name another one, and is refused where
they name this clone or the home of who runs it. A test runs each of them in the same way and leaves
the files as they are.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
CELL_SECONDS = 400
SHOWN_FOLDER = "/tmp/notebook"


def execute(path: Path, folder: Path) -> NotebookNode:
    """Run all cells, with `folder` for files and for temporary files; returns the notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    here = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        resources=here,
        coalesce_streams=True,
        record_timing=False,
    )
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(folder / ".ipython"),
        "TMPDIR": str(folder),
        "COLUMNS": "100",
    }
    client.execute(env=os.environ | variables)
    return notebook


def main() -> int:
    """Run and write all notebooks, or those that are named; returns the exit code."""
    for path in [Path(name) for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
            # Without the version of the Python that happened to run.
            notebook.metadata.language_info = {"name": "python"}
            # The notebook makes a temporary folder in that folder.
            text = re.sub(
                rf"{re.escape(folder)}(/tmp\w+)?", SHOWN_FOLDER, nbformat.writes(notebook)
            )
        if names := [name for name in (ROOT, Path.home()) if str(name) in text]:
            print(f"{path} would name the folder {names[0]}: change the cell that shows it.")
            return 1
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(text):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
