"""Programs that a test puts on the path, as scripts of the shell."""


def writer(folder, monkeypatch, *behind):
    """Put a new folder on the path, before some others; gives a writer of programs."""
    folder.mkdir()
    monkeypatch.setenv("PATH", ":".join([str(folder), *behind]))

    def write(name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return write
