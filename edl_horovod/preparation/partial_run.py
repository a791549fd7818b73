"""The finished groups of a run, stored beside its shards so that the same command can continue.

`<output>.partial/` contains `manifest.json` (the parameters of the run), `groups.jsonl` (a line for
each finished group), `lock`, and `shards/`. Once all groups are done, small shards are concatenated
in `merged/`, which becomes the output.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.files import marker
from edl_horovod.files.output_dir import publish, writing
from edl_horovod.files.whole_file import write_json, write_text
from edl_horovod.preparation.groups import GroupDone, Shard
from edl_horovod.preparation.inputs import Inputs
from edl_horovod.records.index import Index

KIND = "prepare run"
_FORMAT = 2
_MANIFEST, _GROUPS, _LOCK, _SHARDS = "manifest.json", "groups.jsonl", "lock", "shards"
_OLD, _MERGED = "old", "merged"
_Done = dict[int, tuple[str, GroupDone]]
"""Finished groups by number, each with the digest of the states of its input files."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that the shards of a run depend on."""

    settings: dict[str, Any]
    paths_digest: str
    num_files: int
    source: str
    """Digest of the model code; empty before a process has loaded it."""
    group_starts: list[int]
    """Number of the first file of each group."""

    def bounds(self, group: int) -> tuple[int, int]:
        """Return the number of a group's first file, and of the file after its last one."""
        start, *rest = self.group_starts[group : group + 2]
        return start, rest[0] if rest else self.num_files

    def differences(self, saved: "Manifest") -> list[str]:
        """Describe the differences from an earlier run; empty if that run can be continued.

        The groups may differ: they depend on sizes, and a repaired bad file has a different size.
        """
        differences = [
            f"{key} was {saved.settings.get(key)!r} and is {self.settings.get(key)!r}"
            for key in sorted({*self.settings, *saved.settings})
            if self.settings.get(key) != saved.settings.get(key)
        ]
        if self.paths_digest != saved.paths_digest:
            differences.append(
                f"the {saved.num_files} input files were replaced by {self.num_files} others"
            )
        if self.source and self.source != saved.source:
            differences.append("the model code has changed")
        return differences


@dataclass
class PartialRun:
    """The finished groups of a run; created by `open_partial_run`, which holds the lock."""

    folder: Path
    manifest: Manifest
    done: dict[int, GroupDone]
    lines: TextIO

    def __post_init__(self) -> None:
        self.num_files = sum(group.num_files for group in self.done.values())
        self.num_records = sum(group.num_records for group in self.done.values())

    def add(self, done: GroupDone, states_digest: str) -> None:
        """Record that a group is done.

        Its shards are synced to disk, but the line is not, because all processes would wait for the
        disk. If the line is lost, the group is processed again.
        """
        self.lines.write(json.dumps({"states": states_digest, **asdict(done)}) + "\n")
        self.lines.flush()
        self.done[done.number] = done
        self.num_files += done.num_files
        self.num_records += done.num_records

    def finish(self, output: Path, *, overwrite: bool) -> list[str]:
        """Merge the shards into the output, and remove the rest.

        Returns:
            The names of the output's files.

        Raises:
            OutputError: The output exists and may not be replaced, or cannot be written.
        """
        merged, settings = self.folder / _MERGED, self.manifest.settings
        shards = [shard for number in sorted(self.done) for shard in self.done[number].shards]
        files = [[shard] for shard in shards]
        if not settings["files_per_group"]:
            bounds = {name: settings[name] for name in ("records_per_shard", "bytes_per_shard")}
            files = combine(shards, **bounds)
        with writing(output):
            shutil.rmtree(merged, ignore_errors=True)
            merged.mkdir()
            names = merge(files, self.folder / _SHARDS, merged)
        # Store an index beside the records, so that no rank of a job has to scan them.
        Index.open([str(merged / name) for name in names], folder=merged)
        publish(merged, output, "prepared records", overwrite=overwrite, old=self.folder / _OLD)
        self.discard()
        return names

    def discard(self) -> None:
        """Remove the folder, except files that are not ours."""
        with contextlib.suppress(OSError):  # The folder cannot be removed, or does not exist.
            _empty(self.folder)
            shutil.rmtree(self.folder / _OLD, ignore_errors=True)
            if not _foreign(self.folder):
                shutil.rmtree(self.folder)


def partial_folder(output: Path) -> Path:
    """Return the folder of a run until it is complete."""
    return output.with_name(f"{output.name}.partial")


def shards_folder(output: Path) -> Path:
    """Return the folder to which processes write the shards of a run."""
    return partial_folder(output) / _SHARDS


@contextlib.contextmanager
def open_partial_run(
    output: Path, manifest: Manifest, inputs: Inputs, *, overwrite: bool
) -> Iterator[PartialRun]:
    """Start a run or continue an earlier one; if no group is finished, the folder is removed.

    With `overwrite` an earlier run that does not match is discarded.

    Raises:
        OutputError: An earlier run does not match, or the folder cannot be written.
        ConfigError: Another process prepares the same output.
    """
    folder = partial_folder(output)
    with contextlib.ExitStack() as stack:
        with writing(output):
            marker.claim(folder, KIND, received=f"output={str(output)!r}")
            _lock(stack.enter_context((folder / _LOCK).open("a")), folder)
            saved = _saved_manifest(folder)
            done = {} if saved is None else _done(folder)
            mismatches = [] if saved is None else _mismatches(manifest, saved, done, inputs)
            if mismatches and not overwrite:
                raise OutputError(
                    "This run cannot continue an interrupted earlier run:"
                    f" {'; '.join(mismatches)}.",
                    received={"output": output},
                    hint="Run the earlier command again to continue it, or set overwrite=true to"
                    f" start from the beginning ({folder} is removed).",
                )
            if saved is None or mismatches:
                _begin(folder, manifest)
                done = {}
            else:
                manifest = saved
                finished = {shard.name for _, group in done.values() for shard in group.shards}
                for path in (folder / _SHARDS).iterdir():
                    if path.name not in finished:
                        path.unlink()
            saved_lines = [
                json.dumps({"states": states, **asdict(group)}) for states, group in done.values()
            ]
            write_text(folder / _GROUPS, "".join(f"{line}\n" for line in saved_lines))
            lines = stack.enter_context((folder / _GROUPS).open("a"))
        groups = {number: group for number, (_, group) in done.items()}
        partial = PartialRun(folder, manifest, groups, lines)
        try:
            yield partial
        finally:
            if not partial.done:
                partial.discard()


def saved_state(output: Path, manifest: Manifest, inputs: Inputs) -> str:
    """Describe the state of an interrupted earlier run; empty if there is none."""
    folder = partial_folder(output)
    saved = _saved_manifest(folder) if folder.is_dir() else None
    if saved is None:
        return ""
    done = _done(folder)
    if mismatches := _mismatches(manifest, saved, done, inputs):
        return f"an interrupted run cannot be continued: {'; '.join(mismatches)}"
    return (
        f"continuing an interrupted run: {len(done)} of {len(saved.group_starts)} groups are done"
    )


def _lock(file: TextIO, folder: Path) -> None:
    error = ConfigError(
        f"Another process is preparing this output: it has locked {folder / _LOCK}.",
        received={"output": folder.stem},
        hint="Wait for it, or choose another output.",
    )
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise error from e
    if not os.path.samestat(os.fstat(file.fileno()), os.stat(folder / _LOCK)):
        raise error  # The previous owner removed the file, and a third process created a new one.


def _begin(folder: Path, manifest: Manifest) -> None:
    if foreign := _foreign(folder):
        raise OutputError(
            f"{folder} is needed for this run, but contains files that edl_horovod did not write:"
            f" {', '.join(foreign)}.",
            hint="Move these files, or choose another output.",
        )
    _empty(folder)
    (folder / _SHARDS).mkdir()
    write_json(folder / _MANIFEST, {"format": _FORMAT, **asdict(manifest)})


def _foreign(folder: Path) -> list[str]:
    """Return the names of files in the folder that are not ours."""
    ours = (marker.NAME, _MANIFEST, _GROUPS, _LOCK, _SHARDS, _MERGED, _OLD)
    # Temporary files of a process that was killed in `write_text` are also ours.
    names = "|".join(map(re.escape, ours))
    known = re.compile(rf"(?:{names})|\.(?:{names})\.[0-9a-f]+\.partial")
    return sorted(path.name for path in folder.iterdir() if not known.fullmatch(path.name))


def _empty(folder: Path) -> None:
    for name in (_MANIFEST, _GROUPS):
        (folder / name).unlink(missing_ok=True)
    for name in (_SHARDS, _MERGED):
        shutil.rmtree(folder / name, ignore_errors=True)


def _saved_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of an earlier run; None if there is nothing to continue."""
    path = folder / _MANIFEST
    if not path.exists() or not (folder / _SHARDS).is_dir():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != _FORMAT:
            raise ValueError("another version of edl_horovod wrote it")
        return Manifest(**values)
    except (ValueError, TypeError, KeyError, OSError) as e:
        raise OutputError(
            f"{path} cannot be read: {e}.", hint=f"Remove {folder} to start from the beginning."
        ) from e


def _done(folder: Path) -> _Done:
    """Return the groups whose line is complete and whose shards all exist."""
    done_groups: _Done = {}
    path = folder / _GROUPS
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue  # The last line may be truncated after a crash.
        states = values.pop("states")
        group = GroupDone.from_dict(values)
        if all((folder / _SHARDS / shard.name).exists() for shard in group.shards):
            done_groups[group.number] = (states, group)
    return done_groups


def _mismatches(manifest: Manifest, saved: Manifest, done: _Done, inputs: Inputs) -> list[str]:
    """Return the reasons why a run cannot continue an earlier one; empty if it can."""
    mismatches = manifest.differences(saved)
    if manifest.paths_digest != saved.paths_digest:
        return mismatches
    for number, (states, _) in sorted(done.items()):
        start, stop = saved.bounds(number)
        if inputs.digest_of_states(start, stop) != states:
            mismatches.append(
                f"one of the {stop - start} input files of group {number} ({inputs.paths[start]}"
                " and others) has changed since it was prepared"
            )
            break
    return mismatches


def combine(
    shards: Sequence[Shard], *, records_per_shard: int, bytes_per_shard: int
) -> list[list[Shard]]:
    """Group consecutive shards into files, within the limits of a file.

    Shards can be small: with few input files the groups are small, so that all processes have work.
    """
    files: list[list[Shard]] = []
    num_records = num_bytes = 0
    for shard in shards:
        num_records += shard.num_records
        num_bytes += shard.num_bytes
        if not files or num_records > records_per_shard or num_bytes > bytes_per_shard:
            files.append([])
            num_records, num_bytes = shard.num_records, shard.num_bytes
        files[-1].append(shard)
    return files


def merge(files: Sequence[Sequence[Shard]], source: Path, target: Path) -> list[str]:
    """Concatenate the shards of each file from one folder to another on the same file system.

    The shards are not removed, so that nothing is lost after an interruption. Each file has the
    name of its first shard.

    Returns:
        The names of the files.

    Raises:
        OSError: The disk is full or has an error.
    """
    for shards in files:
        path = target / shards[0].name
        if len(shards) == 1:
            # Some network file systems do not support hard links.
            with contextlib.suppress(OSError):
                os.link(source / shards[0].name, path)
                continue
        with path.open("xb") as file:
            for shard in shards:
                with (source / shard.name).open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
    return [shards[0].name for shards in files]
