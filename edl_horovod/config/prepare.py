"""The settings of `edl prepare`, which starts no job."""

from dataclasses import dataclass
from typing import ClassVar

from edl_horovod.config.checks import LOG_LEVELS, check, check_choice, check_given, check_least

__all__ = ["PrepareConfig"]


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How input files become RecordIO files."""

    data: str
    """Input files: a folder, a glob, `@` and a text file with a path on each line, or several with
    commas between."""
    output: str
    """Directory that will hold the RecordIO files."""
    model_zoo: str = "model_zoo"
    """Folder of model files, one .py file, or git+https://host/repo.git@REF#subdirectory=path."""
    model_def: str = ""
    """Where `prepare_data_for_a_single_file` is in the zoo: `file` or `folder.file`; may be left
    out where model_zoo is one file."""
    shuffle: bool = True
    """Whether the input files are shuffled, the same way each time; otherwise they are sorted, or
    in the order of a list."""
    records_per_shard: int = 4096
    """Most records of one output file."""
    bytes_per_shard: int = 268435456
    """Most bytes of one output file, before compression; a larger record gets its own file."""
    files_per_group: int = 0
    """Input files that a process prepares at a time, and that a restart does not repeat once done;
    0 chooses about as many as fill one output file, fewer for few files."""
    prefix: str = "part"
    """Start of the names of the output files."""
    codec: str = "snappy"
    """How chunks are compressed: `none`, `snappy` or `gzip`."""
    launch: str = "local"
    """`local`, or `mpi` for the ranks of the mpirun that starts this command."""
    processes: int = 0
    """Number of parallel processes; 0 takes one for each core. With `mpi`, mpirun sets it."""
    bad_files: str = "raise"
    """How to handle a file that cannot be prepared: `raise` ends the run, `skip` leaves it out."""
    max_bad_files: int = 100
    """Most files that `skip` may leave out; one more ends the run."""
    overwrite: bool = False
    """Whether an earlier result, or an interrupted run that does not fit, may be replaced."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""

    INSTEAD_OF_A_MODEL_IN_FILES: ClassVar = (
        "edl prepare makes records with a function in a file of a model zoo, and a model in files"
        " has no such function.",
        "Give model_def=... with such a function. Data with columns (CSV, .npz, Parquet) trains a"
        " model in files as it is.",
    )
    """Why the verb takes no model in files, and what to do instead."""

    def __post_init__(self) -> None:
        check_given("data", self.data, "the input files")
        check_given("output", self.output, "a directory for the result")
        if not self.model_zoo.endswith(".py"):
            check_given("model_def", self.model_def, "a file of the zoo")
        is_file = self.output.endswith(".recordio")
        check(not is_file, "output", self.output, "must name a directory, not a .recordio file")
        check_least("", self, records_per_shard=1, bytes_per_shard=1)
        check_least("", self, files_per_group=0, processes=0, max_bad_files=0)
        is_name = bool(self.prefix) and "/" not in self.prefix
        check(is_name, "prefix", self.prefix, "must be the start of a file name")
        check_choice("codec", self.codec, ("none", "snappy", "gzip"))
        check_choice("launch", self.launch, ("local", "mpi"))
        is_local = self.launch == "local" or not self.processes
        rule = "is for launch=local; with launch=mpi, mpirun -n sets the number"
        check(is_local, "processes", self.processes, rule)
        check_choice("bad_files", self.bad_files, ("raise", "skip"))
        check_choice("log_level", self.log_level, LOG_LEVELS)
