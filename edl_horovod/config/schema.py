"""The settings as frozen dataclasses: the one list of keys, with types, defaults and units."""

from dataclasses import dataclass, field
from typing import Any

from edl_horovod.config import params as params_text
from edl_horovod.errors import ConfigError, did_you_mean

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "DebugConfig",
    "EarlyStoppingConfig",
    "ElasticConfig",
    "JobConfig",
    "LaunchConfig",
    "ParamValue",
    "PrepareConfig",
    "TrainConfig",
]

ParamValue = Any
"""A model parameter: a Python literal (number, string, boolean, None, list, dict)."""


_LOG_LEVELS = ("debug", "info", "warning", "error")


def _check(is_right: bool, key: str, value: object, rule: str) -> None:
    if not is_right:
        raise ConfigError(
            f"{key} {rule}. Received: {key}={value!r}. Change it in the command or in conf/."
        )


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    rule = f"must be one of {', '.join(choices)}"
    if value not in choices:
        raise ConfigError(f"{key} {rule}. Received: {key}={value}.{did_you_mean(value, choices)}")


def _check_given(key: str, value: str, what: str) -> None:
    if not value:
        raise ConfigError(f"{key} must name {what}. Received: {key}=''. Write {key}=... .")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How records are dealt to steps and lanes."""

    shuffle: bool = True
    """Whether an epoch's order is shuffled (training only)."""
    seed: int = 0
    """Seed of the order of records and of the model's initial weights."""
    lanes: int = 0
    """Number of lanes, the most ranks a ring can have; 0 takes the largest divisor of the global
    batch up to 32."""
    shuffle_window: int = 1024
    """Records of a lane that are shuffled among each other, in records."""
    prefetch_steps: int = 4
    """Steps whose examples are made ready ahead of the training step."""
    damaged: str = "raise"
    """What to do with a damaged chunk of a file: `raise`, or `skip` (counted and logged)."""
    csv_header: bool = True
    """Whether the first line of each CSV file names the columns, and so is no record."""

    def __post_init__(self) -> None:
        _check(self.lanes >= 0, "data_plan.lanes", self.lanes, "must be 0 or more")
        _check(
            self.shuffle_window >= 1,
            "data_plan.shuffle_window",
            self.shuffle_window,
            "must be 1 or more",
        )
        _check(
            self.prefetch_steps >= 1,
            "data_plan.prefetch_steps",
            self.prefetch_steps,
            "must be 1 or more",
        )
        _check_choice("data_plan.damaged", self.damaged, ("raise", "skip"))


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig:
    """When training ends because it no longer gets better."""

    metric: str = ""
    """Which number of the evaluations is watched: `loss` or a metric's name; empty never stops."""
    mode: str = "min"
    """Whether `min` or `max` is better."""
    patience: int = 3
    """Evaluations without anything better after which training ends."""
    min_delta: float = 0.0
    """Least difference that counts as better."""
    restore_best: bool = False
    """Whether the trained model gets the weights of the best evaluation instead of the last."""

    def __post_init__(self) -> None:
        _check_choice("train.early_stopping.mode", self.mode, ("min", "max"))
        for name, least in (("patience", 1), ("min_delta", 0)):
            value = getattr(self, name)
            _check(
                value >= least, f"train.early_stopping.{name}", value, f"must be {least} or more"
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how large."""

    batch_size: int = 128
    """The global batch: records of one step over the whole ring, whatever the ring's size."""
    epochs: int = 1
    """Passes over the data."""
    max_steps: int = 0
    """Steps after which training ends, whatever `epochs` says; 0 means no limit."""
    learning_rate: float | None = None
    """Handed to `create_optimizer` as `lr` or `learning_rate`; null leaves the spec's default."""
    evaluate_steps: int = 0
    """Evaluate on validation_data every so many steps; 0 means at the end of each epoch."""
    clip_norm: float = 0.0
    """Longest gradient, over all variables together; longer ones are shortened to it; 0 means no
    limit."""
    clip_value: float = 0.0
    """Largest absolute value in a gradient; larger ones are cut to it; 0 means no limit."""
    accumulate_steps: int = 1
    """Parts into which a rank cuts its examples of a step, one after the other, to save memory."""
    precision: str = "float32"
    """What layers compute in: `float32`, `mixed_bfloat16` or `mixed_float16`; variables stay
    float32."""
    saved_model: bool = False
    """Whether the trained model also holds a SavedModel, for TensorFlow Serving and others."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)

    def __post_init__(self) -> None:
        for name, least in (("clip_norm", 0), ("clip_value", 0), ("accumulate_steps", 1)):
            value = getattr(self, name)
            _check(value >= least, f"train.{name}", value, f"must be {least} or more")
        precisions = ("float32", "mixed_bfloat16", "mixed_float16")
        _check_choice("train.precision", self.precision, precisions)
        _check(self.batch_size >= 1, "train.batch_size", self.batch_size, "must be 1 or more")
        _check(self.epochs >= 1, "train.epochs", self.epochs, "must be 1 or more")
        _check(self.max_steps >= 0, "train.max_steps", self.max_steps, "must be 0 or more")
        _check(
            self.evaluate_steps >= 0,
            "train.evaluate_steps",
            self.evaluate_steps,
            "must be 0 or more",
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When training is saved so that it can go on after everything has ended."""

    every_steps: int = 0
    """Save after every so many steps; 0 means that only time decides."""
    every_seconds: float = 300.0
    """Save when so many seconds have passed since the last time; 0 means that only steps decide.
    With both at 0 nothing is saved."""
    keep: int = 2
    """Checkpoints that are kept; older ones are removed."""

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_seconds"):
            value = getattr(self, name)
            _check(value >= 0, f"checkpoint.{name}", value, "must be 0 or more")
        _check(self.keep >= 1, "checkpoint.keep", self.keep, "must be 1 or more")

    @property
    def is_on(self) -> bool:
        """Whether anything is saved at all."""
        return self.every_steps > 0 or self.every_seconds > 0


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Where the ranks run."""

    kind: str = "local"
    """`local` (elastic, this machine) or `mpi` (a static ring under mpirun)."""
    np: int = 1
    """Ranks to start with."""
    threads_per_rank: int = 0
    """CPU threads of one rank; 0 shares this machine's cores among `np` ranks."""

    def __post_init__(self) -> None:
        _check_choice("launch.kind", self.kind, ("local", "mpi"))
        _check(self.np >= 1, "launch.np", self.np, "must be 1 or more")
        _check(
            self.threads_per_rank >= 0,
            "launch.threads_per_rank",
            self.threads_per_rank,
            "must be 0 or more",
        )


@dataclass(frozen=True, kw_only=True)
class ElasticConfig:
    """How the ring may change while the job runs."""

    min_np: int = 1
    """Fewest ranks that train; below it the job waits."""
    max_np: int | None = None
    """Most ranks in the ring; null means as many as there are lanes."""
    spares: int = 0
    """Workers of a host beyond its slots that stay warm, to take a lost rank's place at once; each
    needs the memory of a rank."""
    wait_seconds: float = 600.0
    """How long the ring may stay below min_np before the job ends with an error."""
    forming_seconds: float = 5.0
    """How long members may take to form a ring before the missing ones are left out."""
    stall_seconds: float = 300.0
    """How long a rank may let the others wait in a step before it is ended as one that hangs."""
    restart_backoff_seconds: float = 1.0
    """Wait before the second restart of a slot that keeps failing; doubled each time, up to 60."""

    def __post_init__(self) -> None:
        _check(self.min_np >= 1, "elastic.min_np", self.min_np, "must be 1 or more")
        _check(self.spares >= 0, "elastic.spares", self.spares, "must be 0 or more")
        if self.max_np is not None:
            _check(
                self.max_np >= self.min_np,
                "elastic.max_np",
                self.max_np,
                "must not be below elastic.min_np",
            )
        for name in ("wait_seconds", "forming_seconds", "stall_seconds", "restart_backoff_seconds"):
            _check(
                getattr(self, name) > 0,
                f"elastic.{name}",
                getattr(self, name),
                "must be above 0 seconds",
            )


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """What is written down for whoever looks for a mistake, at some cost."""

    ledger: bool = False
    """Whether each rank writes down which records it gives to which step (train; `edl ledger`)."""


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """Everything a job needs; every rank reads the same resolved copy of it."""

    task: str
    """`train`, `evaluate` or `predict`."""
    data: str
    """Input files: a folder, a glob as `s3://bucket/*.csv`, or several with commas between."""
    output: str = ""
    """Directory that will hold the result, or `.recordio` file for predictions; not there yet."""
    job_dir: str = ""
    """Directory of the running job (config, events, logs); empty means `<output>.job`."""
    model_zoo: str = "model_zoo"
    """Folder of model files, one .py file, or git+https://host/repo.git@REF#subdirectory=path."""
    model_zoo_source: str = ""
    """The Git URL of a model zoo that the command fetched, without a password; it sets this."""
    model_zoo_commit: str = ""
    """The commit of that model zoo; the command sets this too."""
    model_def: str = ""
    """Which model in the zoo: `file`, `folder.file` or `file.Symbol`; may be left out where
    model_zoo is one file."""
    input_fn: str = ""
    """Function that makes examples of records, in place of the model's own: `file.function`, or
    a function of the model's file."""
    loss: str = ""
    """Loss in place of the model's own: as input_fn, or a Keras name such as `mse`."""
    optimizer: str = ""
    """Optimizer in place of the model's own: as input_fn, or a Keras name such as `adam`."""
    params: dict[str, ParamValue] = field(default_factory=dict)
    """Parameters of the model."""
    trained_model: str = ""
    """Directory of a trained model: what `evaluate` and `predict` work on."""
    validation_data: str = ""
    """Files to evaluate on during training, as `data`; empty means none."""
    resume: str = "never"
    """Whether training goes on from a checkpoint in job_dir: `never`, `auto` (if there is one) or
    `must`."""
    init_from: str = ""
    """Directory of a trained model whose weights training begins with; empty means none."""
    overwrite: bool = False
    """Whether an existing output may be replaced."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    data_plan: DataConfig = field(default_factory=DataConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        _check_choice("task", self.task, ("train", "evaluate", "predict"))
        _check_choice("log_level", self.log_level, _LOG_LEVELS)
        _check_choice("resume", self.resume, ("never", "auto", "must"))
        params_text.check(self.params)
        _check_given("data", self.data, "the input files")
        if self.task == "train":
            if not self.model_zoo.endswith(".py"):  # One file may hold one model.
                _check_given("model_def", self.model_def, "a model of the zoo")
        else:
            _check_given("trained_model", self.trained_model, "a trained model")
            for key in ("input_fn", "loss", "optimizer"):
                rule = f"belongs to train; {self.task} takes what the trained model has"
                _check(not getattr(self, key), key, getattr(self, key), rule)
        if self.task == "train":
            _check_given("output", self.output, "a directory for the result")
        if self.task == "train" and self.train.early_stopping.metric:
            _check_given("validation_data", self.validation_data, "what the metric is measured on")
        if self.elastic.max_np is not None:
            _check(
                self.launch.np <= self.elastic.max_np,
                "launch.np",
                self.launch.np,
                f"must not be above elastic.max_np={self.elastic.max_np}",
            )
        _check(
            self.launch.np >= self.elastic.min_np,
            "launch.np",
            self.launch.np,
            f"must not be below elastic.min_np={self.elastic.min_np}",
        )


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
    """Whether the input files are mixed, the same way each time; else they are taken as sorted, a
    list as it is."""
    records_per_shard: int = 4096
    """Most records of one output file."""
    bytes_per_shard: int = 268435456
    """Most bytes of one output file, before compression; a larger record has one of its own."""
    files_per_group: int = 0
    """Input files that a process turns into output files at a time, and that a restart does not
    do again; 0 chooses: about as many as fill one output file, fewer for few files."""
    prefix: str = "part"
    """Start of the names of the output files."""
    codec: str = "snappy"
    """How chunks are compressed: `none`, `snappy` or `gzip`."""
    launch: str = "local"
    """`local`, or `mpi` for the ranks of the mpirun that this command is started by."""
    processes: int = 0
    """Processes that work side by side; 0 takes one for each core. With `mpi` mpirun says it."""
    bad_files: str = "raise"
    """What a file that cannot be prepared does: `raise` ends the run, `skip` leaves it out."""
    max_bad_files: int = 100
    """Most files that `skip` leaves out; one more ends the run."""
    overwrite: bool = False
    """Whether an existing output, or an interrupted run that does not fit, may be replaced."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""

    def __post_init__(self) -> None:
        _check_given("data", self.data, "the input files")
        _check_given("output", self.output, "a directory for the result")
        if not self.model_zoo.endswith(".py"):
            _check_given("model_def", self.model_def, "a file of the zoo")
        is_file = self.output.endswith(".recordio")
        _check(not is_file, "output", self.output, "must name a directory, not a .recordio file")
        for key in ("records_per_shard", "bytes_per_shard"):
            _check(getattr(self, key) >= 1, key, getattr(self, key), "must be 1 or more")
        for key in ("files_per_group", "processes", "max_bad_files"):
            _check(getattr(self, key) >= 0, key, getattr(self, key), "must be 0 or more")
        _check(
            bool(self.prefix) and "/" not in self.prefix,
            "prefix",
            self.prefix,
            "must be the start of a file name",
        )
        _check_choice("codec", self.codec, ("none", "snappy", "gzip"))
        _check_choice("launch", self.launch, ("local", "mpi"))
        _check(
            self.launch == "local" or not self.processes,
            "processes",
            self.processes,
            "is for launch=local; with launch=mpi the number is what mpirun -n says",
        )
        _check_choice("bad_files", self.bad_files, ("raise", "skip"))
        _check_choice("log_level", self.log_level, _LOG_LEVELS)
