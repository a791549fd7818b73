"""The settings as frozen dataclasses: the one list of keys, with types, defaults and units."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, Literal, get_args

from edl_horovod.config import model_spec as model_section
from edl_horovod.config import params as params_text
from edl_horovod.config.checks import check, check_choice, check_given, check_least
from edl_horovod.config.frameworks import FRAMEWORKS, model_kinds
from edl_horovod.config.kubernetes import KubernetesConfig
from edl_horovod.config.slurm import SlurmConfig
from edl_horovod.config.tasks import TASKS

_TRUST = ("changed", "image", "model")
PARTY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_LISTEN = re.compile(r"[^\s:]+:([0-9]{1,5})")
MAX_PORT = 65535

Compression = Literal["none", "bf16", "fp16", "int8"]
LogLevel = Literal["debug", "info", "warning", "error"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
_Sampler = Literal["tpe", "random"]
SAMPLERS: tuple[_Sampler, ...] = get_args(_Sampler)

MODEL_KEYS = ("model_def", *model_section.SETTINGS)
"""The settings that each can say which model is trained."""
TARGET_SECTIONS = ("kubernetes", "slurm")
"""Sections that each belong to the launch target of the same name."""


def needs_model_def(values: Mapping[str, Any]) -> bool:
    """Whether settings must name a model: a model in files and a zoo of one model need no name.

    Whether the only file of a zoo holds a single model is known when it is opened.
    """
    return not values.get("model") and not values["model_zoo"].endswith(".py")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How records are distributed to steps and lanes."""

    shuffle: bool = True
    """Whether an epoch's order is shuffled (training only)."""
    seed: int = 0
    """Seed of the order of records and of the model's initial weights."""
    lanes: int = 0
    """Number of lanes, the most ranks a ring can have; it divides the global batch. 0 takes the
    largest divisor up to 32, 4 * launch.np or elastic.max_np, whichever is most, and enough for
    both; with elastic.batching=per_rank, where they divide no batch, a multiple of launch.np and
    of 12. A resumed training keeps the lanes of its checkpoint."""
    shuffle_window: int = 0
    """Number of records of a lane that are shuffled together; 0 takes 1024, or fewer where records
    are so large that a worker could not hold the windows of all lanes."""
    prefetch_steps: int = 4
    """Steps whose examples are prepared ahead of the training step."""
    processes: int = 0
    """Processes of each rank that run create_dataset on records, for each of `data` and
    `validation_data`; at most prefetch_steps of them have work. 0 takes a thread of the rank
    (PyTorch)."""
    damaged: Literal["raise", "skip"] = "raise"
    """How to handle a damaged part of a file: `raise`, or `skip` (counted and logged), in formats
    that can tell which part is damaged."""
    max_chunk_bytes: int = 33554435
    """Most bytes of a RecordIO chunk before compression; the default is the most that edl_horovod
    writes. A chunk may have one record for each 32 of them."""
    csv_header: bool = True
    """Whether the first line of each CSV file holds the names of the columns."""
    columns: list[str] = field(default_factory=list)
    """The columns of Parquet, Arrow, JSON and NumPy files that are read; empty for all of them."""

    def __post_init__(self) -> None:
        least = {"lanes": 0, "shuffle_window": 0, "prefetch_steps": 1, "processes": 0}
        least |= {"max_chunk_bytes": 1}
        check_least("data_plan", self, **least)


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig:
    """When training ends because it no longer improves."""

    metric: str = ""
    """The number of the evaluations to watch: `loss` or a metric's name; empty never stops."""
    mode: Literal["min", "max"] = "min"
    """Whether `min` or `max` is better."""
    patience: int = 3
    """Evaluations without improvement after which training ends."""
    threshold: float | None = None
    """The value of the metric at which training ends, too: good enough; null for none."""
    min_delta: float = 0.0
    """Least difference that counts as an improvement."""
    restore_best: bool = False
    """Whether the trained model gets the weights of the best evaluation, not of the last step."""

    def __post_init__(self) -> None:
        check_least("train.early_stopping", self, patience=1, min_delta=0)
        is_used = self.threshold is None or bool(self.metric)
        rule = "needs train.early_stopping.metric"
        check(is_used, "train.early_stopping.threshold", self.threshold, rule)


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """Local rounds: replicas take steps of their own between two sums over the ring."""

    steps: int = 0
    """Local steps of a round, which then counts as one step of the job; 0 sums at every step."""
    warmup_steps: int = 0
    """Steps at the beginning of the job that sum over the ring as without rounds, which follow."""
    replicas: int = 4
    """The number of replicas, also the most ranks; the job's, so that the ring does not matter."""
    method: Literal["average", "diloco"] = "average"
    """What a round does with the replicas' mean change: `average` adds it, `diloco` applies it by
    SGD with Nesterov momentum."""
    inner_state: Literal["average", "reset", "keep"] = "average"
    """The optimizer's state at a round's end: `average` of the replicas, `reset` to its first
    values with the number of steps, or `keep` that of each replica."""
    outer_learning_rate: float = 0.7
    """The learning rate of `diloco` for the mean change."""
    outer_momentum: float = 0.9
    """The momentum of `diloco`."""
    fragments: int = 1
    """The number of parts of the model that are summed one after the other. The sums of all but the
    last start before the round's end; what such a part learns after that does not count."""
    fragment_steps: int = 1
    """Local steps between the starts of two fragments' sums; the last starts at the round's end."""

    def __post_init__(self) -> None:
        check_least("train.local", self, steps=0, replicas=1, outer_learning_rate=0)
        check_least("train.local", self, outer_momentum=0, warmup_steps=0)
        check_least("train.local", self, fragments=1, fragment_steps=1)
        num_early_steps = (self.fragments - 1) * self.fragment_steps
        rule = f"needs train.local.steps above {num_early_steps}: (fragments - 1) * fragment_steps"
        is_used = self.fragments > 1 or self.fragment_steps == 1
        needs = "needs train.local.fragments above 1"
        check(is_used, "train.local.fragment_steps", self.fragment_steps, needs)
        has_room = self.fragments == 1 or num_early_steps < self.steps
        check(has_room, "train.local.fragments", self.fragments, rule)
        rule = "needs train.local.steps: without rounds all steps are like those of the warm-up"
        is_before_rounds = self.steps > 0 or self.warmup_steps == 0
        check(is_before_rounds, "train.local.warmup_steps", self.warmup_steps, rule)
        check(
            self.outer_momentum < 1,
            "train.local.outer_momentum",
            self.outer_momentum,
            "must be below 1",
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The length of a training, its steps and its numbers."""

    batch_size: int = 128
    """The global batch: records of one step over the whole ring, independent of the ring's size;
    with elastic.batching=per_rank the records of each rank and step."""
    epochs: int = 1
    """Passes over the data."""
    max_steps: int = 0
    """Steps after which training ends, even before `epochs` are done; 0 means no limit."""
    max_seconds: float = 0.0
    """Seconds of training after which the next evaluation ends it; 0 means no limit."""
    learning_rate: float | None = None
    """Passed to `create_optimizer` as `lr` or `learning_rate`; null keeps the spec's default."""
    evaluate_steps: int = 0
    """Number of steps between evaluations on validation_data; 0 means at the end of each epoch."""
    clip_norm: float = 0.0
    """Maximum global norm of the gradients; larger gradients are scaled down; 0 disables it."""
    clip_value: float = 0.0
    """Maximum absolute value in a gradient; larger values are clipped; 0 disables it."""
    class_weight: list[float] = field(default_factory=list)
    """Weight of the examples of each class in the loss, from class 0 on; others weigh 1."""
    accumulate_steps: int = 1
    """Parts into which a rank splits its examples of a step, one after the other, to save
    memory."""
    batch_norm: Literal["own", "synchronized"] = "own"
    """Whether BatchNorm layers use each rank's `own` examples of a step, or, `synchronized`, the
    examples of all ranks, which costs two small messages for each layer and step."""
    compile: bool = False
    """Whether the model's passes are compiled, by `torch.compile` (PyTorch); needs a C++ compiler
    and Python's headers where the job runs."""
    precision: Precision = "float32"
    """Precision of the layers: `float32`, `mixed_bfloat16` or `mixed_float16`; variables stay
    float32."""
    bucket_bytes: int = 4194304
    """Most bytes of gradients in one collective; the ranks compute others at the same time."""
    compression: Compression = "none"
    """How gradients are sent between ranks: `none`, `bf16` (the range of float32, with 3 digits)
    or `fp16` (4 digits, from 6e-5 to 65,504); a quarter to half the time on a slow network. In
    local rounds the weights' changes are sent so, or with `int8` (2 digits); a warm-up before them
    then sends gradients with `bf16`."""
    saved_model: bool = False
    """Whether the trained model also holds a SavedModel, for TensorFlow Serving and others; in
    PyTorch `model.pt2`, a program of `torch.export`."""
    onnx: bool = False
    """Whether the trained model also holds `model.onnx` (PyTorch; needs the extra `onnx`)."""
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    local: LocalConfig = field(default_factory=LocalConfig)

    def __post_init__(self) -> None:
        if self.local.steps:
            self._check_rounds()
        check_least("train", self, clip_norm=0, clip_value=0, accumulate_steps=1, batch_size=1)
        check_least("train", self, bucket_bytes=1, epochs=1, max_steps=0, max_seconds=0)
        check_least("train", self, learning_rate=0, evaluate_steps=0)
        is_fine = self.compression != "int8" or self.local.steps > 0
        rule = "needs train.local.steps: only the changes of local rounds are sent so"
        check(is_fine, "train.compression", self.compression, rule)
        is_whole = self.batch_norm == "own" or self.accumulate_steps == 1
        rule = "needs train.accumulate_steps=1: parts of a step do not share statistics"
        check(is_whole, "train.batch_norm", self.batch_norm, rule)
        is_own = self.batch_norm == "own" or not self.compile
        rule = "needs train.compile=false: a compiled program cannot wait for other ranks"
        check(is_own, "train.batch_norm", self.batch_norm, rule)

    def _check_rounds(self) -> None:
        replicas = self.local.replicas
        is_shared = self.batch_size % replicas == 0
        rule = f"must divide train.batch_size={self.batch_size}: each has a part of a step"
        check(is_shared, "train.local.replicas", replicas, rule)
        rule = "needs train.local.steps=0: between two sums a replica has only its own examples"
        check(self.batch_norm == "own", "train.batch_norm", self.batch_norm, rule)


@dataclass(frozen=True, kw_only=True)
class AdversarialConfig:
    """Training on examples that each rank changes so that their loss rises."""

    method: Literal["none", "fgsm", "pgd"] = "none"
    """How examples are changed: `fgsm` by one step along the sign of the gradient, `pgd` by several
    from a random start; `none` leaves them as they are."""
    epsilon: float = 0.0
    """The largest change of a value, in the unit of the features of `create_dataset`."""
    steps: int = 10
    """The number of steps of `pgd`."""
    step_size: float = 0.0
    """The size of a step of `pgd`; 0 means 2.5 * epsilon / steps."""
    ratio: float = 1.0
    """The share of a step's examples that are changed; the others stay as they are."""
    inputs: list[str] = field(default_factory=list)
    """Names of the features that are changed; empty for all whose values are floating-point."""
    clip: list[float] = field(default_factory=list)
    """The lowest and the highest value that a feature may have, as [0, 1]; empty for no limits."""

    def __post_init__(self) -> None:
        check_least("adversarial", self, epsilon=0, steps=1, step_size=0, ratio=0)
        check(self.ratio <= 1, "adversarial.ratio", self.ratio, "must be at most 1")
        is_range = len(self.clip) == 2 and self.clip[0] < self.clip[1]
        rule = "must be [lowest, highest]"
        check(not self.clip or is_range, "adversarial.clip", self.clip, rule)
        has_method = self.method != "none"
        rule = "must be above 0 with adversarial.method, and needs one"
        check(has_method == (self.epsilon > 0), "adversarial.epsilon", self.epsilon, rule)


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """Differentially private local steps of a federated training."""

    clip: float = 0.0
    """Largest L2 norm of the gradient of one example, over all variables; 0 trains without
    privacy."""
    noise: float = 0.0
    """Standard deviation of the noise in a step's sum of gradients, as a multiple of `clip`."""
    delta: float = 1e-5
    """The delta for which epsilon is computed; it should be well below 1 / records of the party."""
    max_epsilon: float = 0.0
    """The party ends before the round in which its epsilon would exceed this; 0 sets no limit."""

    def __post_init__(self) -> None:
        section = "federated.privacy"
        check_least(section, self, clip=0, noise=0, max_epsilon=0)
        for key in ("clip", "noise"):
            value = getattr(self, key)
            rule = "must be a number above 0, as clip and noise belong together"
            is_usable = math.isfinite(value) and (value > 0 or not (self.clip or self.noise))
            check(is_usable, f"{section}.{key}", value, rule)
        rule = "must be above 0 and below 1"
        check(0 < self.delta < 1, f"{section}.delta", self.delta, rule)
        for key in ("delta", "max_epsilon"):
            value, default = getattr(self, key), getattr(PrivacyConfig, key)
            is_used = self.clip > 0 or value == default
            check(is_used, f"{section}.{key}", value, f"needs {section}.clip")


def _port_of(address: str) -> int:
    """The port of HOST:PORT; -1 for another text."""
    match = _LISTEN.fullmatch(address)
    return int(match[1]) if match else -1


@dataclass(frozen=True, kw_only=True)
class FederatedConfig:
    """Federated training: parties with data of their own take part in rounds."""

    rounds: int = 0
    """Rounds of a federated training, in place of train.epochs; 0 is a training that is not one."""
    local_epochs: int = 1
    """Passes of a party over its own data in a round."""
    local_steps: int = 0
    """Steps of a party in a round, of train.batch_size of its own records each; 0 takes
    `local_epochs`."""
    round_seconds: float = 0.0
    """Seconds of a round after which a party takes no further local step, and contributes what it
    has; 0 for no bound."""
    fraction: float = 1.0
    """The share of the parties in the ring that train in a round, at least one."""
    weighting: Literal["examples", "equal"] = "examples"
    """How much the change of a party counts in the mean: its `examples`, or all count `equal`."""
    proximal_mu: float = 0.0
    """Weight mu of FedProx in each local step, which adds mu / 2 times the squared distance from
    the round's first weights to the loss."""
    local_variables: list[str] = field(default_factory=list)
    """Globs for names of the model's variables that stay at each party, which has its own values of
    them, as *batch_norm* or head.*; the others are shared."""
    share_metrics: bool = False
    """Whether the other parties see the numbers of this party's evaluations beside its name."""
    secure_sums: bool = False
    """Whether the parties mask what they send, so that each learns only the sum over all that train
    in a round, which are three at least."""
    secure_range: float = 32.0
    """Largest change of any number of the model at a party in a round with secure sums. It sets how
    exact these are: a mean of 32-bit numbers is rounded by the number of parties times this
    divided by 2^31 at most."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    parties: list[str] = field(default_factory=list)
    """The names of the parties that may join (federate)."""
    min_parties: int = 2
    """Fewest parties that train; with fewer the others wait (federate)."""
    quorum: float = 0.0
    """The share of `parties` that must be there as well; with fewer the others wait (federate)."""
    listen: str = "127.0.0.1:0"
    """Address and port at which the parties join; port 0 takes any free one (federate)."""
    address: str = ""
    """HOST:PORT at which the other parties reach this one, which then listens on PORT of all its
    networks; empty takes the address from which it reaches the coordinator, and any free port."""
    unencrypted: bool = False
    """Whether the traffic of the training is not encrypted, because all of it passes a VPN; must be
    the same at the coordinator and at all parties."""
    party: str = ""
    """The name of this party, which `edl party` takes from the party's token; empty for a training
    of one party by `edl train`."""

    def __post_init__(self) -> None:
        check_least("federated", self, rounds=0, local_epochs=1, local_steps=0, fraction=0)
        check_least("federated", self, proximal_mu=0, min_parties=1, quorum=0, round_seconds=0)
        for key in ("fraction", "quorum"):
            check(
                getattr(self, key) <= 1, f"federated.{key}", getattr(self, key), "must be at most 1"
            )
        is_above = self.secure_range > 0 and math.isfinite(self.secure_range)
        check(is_above, "federated.secure_range", self.secure_range, "must be above 0")
        is_used = self.secure_sums or self.secure_range == FederatedConfig.secure_range
        rule = "needs federated.secure_sums"
        check(is_used, "federated.secure_range", self.secure_range, rule)
        is_one = not self.local_steps or self.local_epochs == 1
        rule = "must be left out with federated.local_steps"
        check(is_one, "federated.local_epochs", self.local_epochs, rule)
        for name in self.parties:
            rule = "must be letters, digits, - and _"
            check(bool(PARTY_NAME.fullmatch(name)), "federated.parties", name, rule)
        is_unique = len(set(self.parties)) == len(self.parties)
        check(is_unique, "federated.parties", self.parties, "must not have a name twice")
        rule = "must be HOST:PORT, with a port from {} to 65535"
        is_address = 0 <= _port_of(self.listen) <= MAX_PORT
        check(is_address, "federated.listen", self.listen, rule.format(0))
        is_address = not self.address or 0 < _port_of(self.address) <= MAX_PORT
        check(is_address, "federated.address", self.address, rule.format(1))

    @property
    def least_parties(self) -> int:
        """Fewest parties that train, by both settings."""
        # Rounded first: 0.7 * 10 is a little more than 7.
        return max(self.min_parties, math.ceil(round(self.quorum * len(self.parties), 6)))


@dataclass(frozen=True, kw_only=True)
class CallbacksConfig:
    """Which hooks of a model's callbacks are called."""

    per_step: bool = False
    """Whether the leader calls `on_train_batch_...` of callbacks around each step; such a hook must
    not change anything (train)."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are saved, from which training can go on after all processes ended."""

    every_steps: int = 0
    """Steps between checkpoints; 0 means that only time decides."""
    every_seconds: float = 300.0
    """Seconds between checkpoints; 0 means that only steps decide. With both at 0 nothing is
    saved."""
    keep: int = 2
    """Number of checkpoints to keep; older ones are removed."""

    def __post_init__(self) -> None:
        check_least("checkpoint", self, every_steps=0, every_seconds=0, keep=1)

    @property
    def is_on(self) -> bool:
        """Whether checkpoints are saved at all."""
        return self.every_steps > 0 or self.every_seconds > 0


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Where the ranks run."""

    kind: str = "local"
    """`local` (elastic, this machine), `mpi` (a static ring under mpirun), `kubernetes` or
    `slurm`."""
    np: int = 1
    """Ranks to start with."""
    threads_per_rank: int = 0
    """CPU threads of one rank; 0 divides this machine's cores among `np` ranks."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of a launch target that another package adds, which checks them itself."""

    def __post_init__(self) -> None:
        check_least("launch", self, np=1, threads_per_rank=0)


@dataclass(frozen=True, kw_only=True)
class ElasticConfig:
    """How the ring may change while the job runs."""

    min_np: int = 1
    """Fewest ranks that train; below it the job waits."""
    max_np: int | None = None
    """Most ranks in the ring; null means the number of lanes."""
    spares: int = 0
    """Workers of a host beyond its slots that stay warm, to replace a lost rank at once; each needs
    the memory of a rank."""
    batching: Literal["global", "per_rank"] = "global"
    """Whether train.batch_size is for the whole ring (`global`) or for each rank (`per_rank`). With
    `per_rank` the global batch grows with the ring, and the learning rate, which is for one rank,
    is multiplied by the ring's size (train)."""
    learning_rate_warmup_steps: int = 100
    """With batching=per_rank, steps over which the learning rate rises after the ring has grown;
    0 takes the new rate at once."""
    autoscale: bool = False
    """Whether the ring stops growing where added ranks do not pay off (train); the other workers
    stay warm."""
    autoscale_efficiency: float = 0.5
    """Least throughput of an added rank, as a share of the records/s of a rank before."""
    wait_seconds: float = 600.0
    """Seconds that the ring may stay below min_np before the job ends with an error."""
    coordinator_away_seconds: float = 7200.0
    """Seconds that a ring goes on training without its coordinator; in a cluster this must be
    longer than it takes until a lost node is repaired or declared lost, and the launcher has
    started elsewhere."""
    forming_seconds: float = 5.0
    """Seconds that members may take to form a ring before the missing ones are left out."""
    join_share: float = 0.25
    """Share of a step's time for sending a newcomer a part of a large state, after each step; it
    trains when it has all parts. 0 sends all at once, while the others wait (train)."""
    stall_seconds: float = 300.0
    """Seconds that a rank may let the others wait in a step before it is ended as hung."""
    restart_backoff_seconds: float = 1.0
    """Seconds before the second restart of a slot that keeps failing; doubled each time, up to
    60."""

    def __post_init__(self) -> None:
        check_least("elastic", self, min_np=1, spares=0, learning_rate_warmup_steps=0)
        is_room = self.max_np is None or self.max_np >= self.min_np
        check(is_room, "elastic.max_np", self.max_np, "must not be below elastic.min_np")
        share = self.autoscale_efficiency
        rule = "must be above 0 and at most 1"
        check(0 < share <= 1, "elastic.autoscale_efficiency", share, rule)
        check(
            0 <= self.join_share <= 1, "elastic.join_share", self.join_share, "must be from 0 to 1"
        )
        for name in ("wait", "coordinator_away", "forming", "stall", "restart_backoff"):
            value = getattr(self, f"{name}_seconds")
            check(value > 0, f"elastic.{name}_seconds", value, "must be above 0 seconds")


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """Extra output for finding errors, at some cost."""

    ledger: bool = False
    """Whether each rank records which records it gives to which step (train; `edl ledger`)."""
    timeline: bool = False
    """Whether the job directory gets a `timeline.json.gz` for Perfetto, with what each rank did
    when (train, evaluate, predict)."""


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """Everything a job needs; every rank reads the same resolved copy of it."""

    task: str
    """The task of the job: a name of `config.tasks`."""
    data: str = ""
    """Input files: a folder, a glob as `s3://bucket/*.csv`, or several with commas between."""
    output: str = ""
    """Directory that will hold the result, or `.recordio` file for predictions; must not exist."""
    job_dir: str = ""
    """Directory of the running job (config, events, logs); empty means `<output>.job`."""
    model_zoo: str = "model_zoo"
    """Folder of model files, one .py file, or git+https://host/repo.git@REF#subdirectory=path."""
    model_zoo_source: str = ""
    """The Git URL of a model zoo that the command fetched, without a password; set by the
    command."""
    model_zoo_commit: str = ""
    """The commit of that model zoo; set by the command."""
    model_def: str = ""
    """Which model in the zoo: `file`, `folder.file` or `file.Symbol`; may be left out where
    model_zoo is one file."""
    model: dict[str, Any] = field(default_factory=dict)
    """A model in files, in place of model_zoo and model_def: `name` (KerasFLModel,
    TensorFlowFLModel or PytorchFLModel) and `spec` (its keys, or a file that holds them)."""
    model_spec: str = ""
    """A YAML or JSON file whose section `model` replaces the setting model."""
    framework: str = ""
    """The framework that the model is written in, `keras` or `torch`; empty takes the framework
    that the model's file imports. A trained model records its framework, and the name of a model in
    files implies it."""
    input_fn: str = ""
    """Function that turns records into examples, in place of the model's own: `file.function`, or
    a function of the model's file."""
    loss: str = ""
    """Loss in place of the model's own: as input_fn, or a name in Keras or PyTorch, as `mse`."""
    optimizer: str = ""
    """Optimizer in place of the model's own: as input_fn, or a name in Keras or PyTorch, as
    `adam`."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the model: Python literals."""
    trained_model: str = ""
    """Directory of a trained model, for `evaluate` and `predict`."""
    trust: str = ""
    """Code that may run although it is refused by default, with commas between: `changed` is code
    in a trained model that was changed since, `image` the image for pods that it names, `model` the
    code that a model in files holds or names; `true` is all of these."""
    validation_data: str = ""
    """Files to evaluate on during training, as `data`; empty means none."""
    resume: Literal["never", "auto", "must"] = "never"
    """Whether training goes on from a checkpoint in job_dir: `never`, `auto` (if there is one) or
    `must`."""
    init_from: str = ""
    """Directory of a trained model, or for PyTorch a file, whose weights training starts from;
    empty means none."""
    overwrite: bool = False
    """Whether an earlier result in output, and another model's job in job_dir, may be replaced."""
    image: str = ""
    """Image of the pods of launch=kubernetes, with edl_horovod in it and the zoo in /model_zoo."""
    base_image: str = ""
    """Without `image`: the image on which the model zoo is put, as by `edl image`."""
    image_repository: str = ""
    """Without `image`: the `registry/path` to which the image of the model zoo is pushed."""
    log_level: LogLevel = "info"
    """`debug`, `info`, `warning` or `error`."""
    displays: list[str] = field(default_factory=list)
    """Where the job's launcher shows it, beside the terminal: `tensorboard`, `mlflow`, `wandb`,
    `opentelemetry`, or displays of other packages."""
    train: TrainConfig = field(default_factory=TrainConfig)
    adversarial: AdversarialConfig = field(default_factory=AdversarialConfig)
    federated: FederatedConfig = field(default_factory=FederatedConfig)
    callbacks: CallbacksConfig = field(default_factory=CallbacksConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    data_plan: DataConfig = field(default_factory=DataConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    kubernetes: KubernetesConfig = field(default_factory=KubernetesConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)
    origins: dict[str, str] = field(default_factory=dict, compare=False)
    """Where each setting that is not a default came from, by key; set by the command."""

    EXPAND: ClassVar = staticmethod(model_section.expand)
    """Replaces settings that name a file of settings by its content, in composed values."""

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        if self.framework:
            check_choice("framework", self.framework, FRAMEWORKS)
        params_text.check(self.params)
        task = TASKS[self.task]
        if "data" in task.needs:
            check_given("data", self.data, "the input files")
        if self.model:
            check(task.takes_zoo, "model", self.model.get("name"), "belongs to train")
            model_section.check(self.model)
            needed = model_kinds()[self.model["name"]].framework
            rule = f"must be {needed} for a {self.model['name']}"
            check(self.framework == needed, "framework", self.framework, rule)
        elif task.takes_zoo and needs_model_def(vars(self)):
            check_given("model_def", self.model_def, "a model of the zoo")
        rule = "must be empty here: the command replaces it by the setting model"
        check(not self.model_spec, "model_spec", self.model_spec, rule)
        if "trained_model" in task.needs:
            check_given("trained_model", self.trained_model, "a trained model")
            for key in ("input_fn", "loss", "optimizer"):
                rule = f"belongs to train; {self.task} uses the parts of the trained model"
                check(not getattr(self, key), key, getattr(self, key), rule)
        for trusted in self._trusted:
            check_choice("trust", trusted, (*_TRUST, "true"))
        if "output" in task.needs:
            check_given("output", self.output, "a directory for the result")
        if task.keeps_state and self.train.early_stopping.metric:
            purpose = "the data on which train.early_stopping.metric is measured"
            check_given("validation_data", self.validation_data, purpose)
        if task.keeps_state and self.train.max_seconds:
            purpose = "the data for the evaluations after which train.max_seconds takes effect"
            check_given("validation_data", self.validation_data, purpose)
        if task.keeps_state and self.train.local.steps:
            replicas, lanes = self.train.local.replicas, self.data_plan.lanes
            rule = f"must be left out or train.local.replicas={replicas}: each replica has a lane"
            check(lanes in (0, replicas), "data_plan.lanes", lanes, rule)
            rule = "needs train.local.steps=0: replicas belong to the job, not to the ring"
            check(self.elastic.batching == "global", "elastic.batching", "per_rank", rule)
        self._check_federated()
        is_plain = task.keeps_state or self.adversarial.method == "none"
        check(is_plain, "adversarial.method", self.adversarial.method, "is for train")
        # Checked again when the framework is known (`models.framework_name`).
        if self.framework and task.keeps_state:
            for key, rule in FRAMEWORKS[self.framework].unsupported.items():
                value = attrgetter(key)(self)
                check(not value, key, value, rule)
        rule = "is for train on an elastic ring"
        check(task.keeps_state or not self.elastic.autoscale, "elastic.autoscale", True, rule)
        batching = self.elastic.batching
        is_global = batching == "global"
        check(task.keeps_state or is_global, "elastic.batching", batching, "is for train")
        np, least, most = self.launch.np, self.elastic.min_np, self.elastic.max_np
        is_few = most is None or np <= most
        check(is_few, "launch.np", np, f"must not be above elastic.max_np={most}")
        check(np >= least, "launch.np", np, f"must not be below elastic.min_np={least}")

    def _check_federated(self) -> None:
        federated = self.federated
        self._check_secure_sums()
        if self.task == "federate":
            check_given("job_dir", self.job_dir, "a directory for the coordinator")
            is_local = self.launch.kind == "local"
            check(is_local, "launch.kind", self.launch.kind, "must be local for federate")
            num = len(federated.parties)
            rule = f"must not be above the number of federated.parties, {num}"
            check(
                federated.least_parties <= num, "federated.min_parties", federated.min_parties, rule
            )
        if self.task != "train":
            return
        if federated.rounds or federated.party:
            rule = "must be local for a federated training"
            check(self.launch.kind == "local", "launch.kind", self.launch.kind, rule)
        if not federated.rounds:
            needing = ("fraction", "local_epochs", "local_steps", "proximal_mu", "round_seconds")
            defaults = FederatedConfig()
            for key in (*needing, "weighting", "local_variables", "share_metrics"):
                value, default = getattr(federated, key), getattr(defaults, key)
                check(value == default, f"federated.{key}", value, "needs federated.rounds")
            clip = federated.privacy.clip
            check(clip == 0, "federated.privacy.clip", clip, "needs federated.rounds")
            return
        is_used = bool(self.validation_data) or not federated.share_metrics
        check(is_used, "federated.share_metrics", True, "needs validation_data")
        train, elastic = self.train, self.elastic
        instead = "must be left out: federated.rounds is the length of a federated training"
        check(train.epochs == 1, "train.epochs", train.epochs, instead)
        check(train.max_steps == 0, "train.max_steps", train.max_steps, instead)
        rule = "must be left out of a federated training"
        check(train.local.steps == 0, "train.local.steps", train.local.steps, rule)
        check(train.batch_norm == "own", "train.batch_norm", train.batch_norm, rule)
        restores_best = bool(federated.local_variables) and train.early_stopping.restore_best
        rule = "must be false with federated.local_variables, whose best values are not kept"
        check(not restores_best, "train.early_stopping.restore_best", True, rule)
        rule = "must be left out of a federated training"
        check(elastic.batching == "global", "elastic.batching", elastic.batching, rule)
        check(not self.debug.ledger, "debug.ledger", self.debug.ledger, rule)
        check(self.launch.np == 1, "launch.np", self.launch.np, "must be 1: a party is one rank")
        rule = "must be 0: a spare would not know what the party has learned since its start"
        check(elastic.spares == 0, "elastic.spares", elastic.spares, rule)
        check(self.data_plan.lanes in (0, 1), "data_plan.lanes", self.data_plan.lanes, rule)
        if federated.privacy.clip:
            self._check_private()

    def _check_private(self) -> None:
        train, rule = self.train, "must be left out with federated.privacy"
        method, precision = self.adversarial.method, train.precision
        check(method == "none", "adversarial.method", method, rule)
        check(not train.class_weight, "train.class_weight", train.class_weight, rule)
        check(not train.compile, "train.compile", train.compile, rule)
        # A step that overflows is left out, which no noise hides.
        check(precision != "mixed_float16", "train.precision", precision, rule)

    def _check_secure_sums(self) -> None:
        federated = self.federated
        if not federated.secure_sums:
            return
        key, num = "federated.secure_sums", federated.least_parties
        if self.task == "federate":
            rule = "must be 3 or more with federated.secure_sums"
            check(num >= 3, "federated.min_parties", federated.min_parties, rule)
            return
        check(self.task == "train", key, True, "is for federated trainings")
        check(federated.rounds > 0, key, True, "needs federated.rounds")
        rule = "is for edl party: one party alone has no sums"
        check(bool(federated.party), key, True, rule)
        rule = "must be none with federated.secure_sums, which sends all numbers with all digits"
        check(self.train.compression == "none", "train.compression", self.train.compression, rule)

    @property
    def gpu_request(self) -> str:
        """The setting that asks the launch target for GPUs, as `key=value`; empty without one."""
        if self.launch.kind not in TARGET_SECTIONS:
            return ""
        request: str = getattr(self, self.launch.kind).gpu_request
        return request

    def public(self) -> "JobConfig":
        """The settings without those that may hold a secret of the user, and without origins."""
        kubernetes, slurm = replace(self.kubernetes, env={}), replace(self.slurm, setup=[])
        return replace(self, kubernetes=kubernetes, slurm=slurm, origins={})

    def trusts(self, kind: str) -> bool:
        """Whether the setting `trust` allows a kind of code: `changed`, `image` or `model`."""
        assert kind in _TRUST
        return kind in self._trusted or "true" in self._trusted

    @property
    def _trusted(self) -> list[str]:
        # YAML and Python write `true` as True.
        return [part.strip().lower() for part in self.trust.split(",") if part.strip()]


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
    codec: Literal["none", "snappy", "gzip"] = "snappy"
    """How chunks are compressed: `none`, `snappy` or `gzip`."""
    launch: Literal["local", "mpi"] = "local"
    """`local`, or `mpi` for the ranks of the mpirun that starts this command."""
    processes: int = 0
    """Number of parallel processes; 0 takes one for each core. With `mpi`, mpirun sets it."""
    bad_files: Literal["raise", "skip"] = "raise"
    """How to handle a file that cannot be prepared: `raise` ends the run, `skip` leaves it out."""
    max_bad_files: int = 100
    """Most files that `skip` may leave out; one more ends the run."""
    overwrite: bool = False
    """Whether an earlier result, or an interrupted run that does not fit, may be replaced."""
    log_level: LogLevel = "info"
    """`debug`, `info`, `warning` or `error`."""

    NOT_TAKEN: ClassVar = dict.fromkeys(
        model_section.SETTINGS,
        (
            "edl prepare makes records with a function in a file of a model zoo, and a model in"
            " files has no such function.",
            "Give model_def=... with such a function. Data with columns (CSV, .npz, Parquet) trains"
            " a model in files as it is.",
        ),
    )
    """Settings of jobs that this verb does not take: the reason, and what to do instead."""

    def __post_init__(self) -> None:
        check_given("data", self.data, "the input files")
        check_given("output", self.output, "a directory for the result")
        if needs_model_def(vars(self)):
            check_given("model_def", self.model_def, "a file of the zoo")
        is_file = self.output.endswith(".recordio")
        check(not is_file, "output", self.output, "must name a directory, not a .recordio file")
        check_least("", self, records_per_shard=1, bytes_per_shard=1)
        check_least("", self, files_per_group=0, processes=0, max_bad_files=0)
        is_name = bool(self.prefix) and "/" not in self.prefix
        check(is_name, "prefix", self.prefix, "must be the start of a file name")
        is_local = self.launch == "local" or not self.processes
        rule = "is for launch=local; with launch=mpi, mpirun -n sets the number"
        check(is_local, "processes", self.processes, rule)


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The contents of an image, and the repository to which it is pushed."""

    base_image: str
    """Image that the model zoo is put on: one of docker/Dockerfile, with a tag or a digest."""
    image_repository: str
    """Where images go: `registry/path`, without a tag."""
    model_zoo: str = "model_zoo"
    """Folder of model files, one .py file, or git+https://host/repo.git@REF#subdirectory=path."""

    NOT_TAKEN: ClassVar = dict.fromkeys(
        model_section.SETTINGS,
        (
            "edl image puts a model zoo on an image, and the zoo of a model in files is written"
            " only when a job starts.",
            "Start the job with base_image=... and image_repository=... (edl train"
            " launch=kubernetes): it puts the model on an image and pushes that.",
        ),
    )
    """Settings of jobs that this verb does not take: the reason, and what to do instead."""

    def __post_init__(self) -> None:
        check_given("base_image", self.base_image, "the image that the model zoo is put on")
        check_given("image_repository", self.image_repository, "where images go")


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How the next values are chosen."""

    name: _Sampler = "tpe"
    """`tpe` learns from earlier jobs; `random` does not."""
    seed: int | None = None
    """Seed of the choice; null makes every search different."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The objective of a search, and its number of jobs."""

    metric: str = "loss"
    """The number of the last evaluation on validation_data to optimize: `loss` or a metric."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """`minimize` or `maximize`."""
    n_trials: int = 20
    """Total number of jobs in the study, including jobs of earlier commands."""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)

    def __post_init__(self) -> None:
        check_given("hydra.sweeper.metric", self.metric, "a number of the evaluations")
        check_least("hydra.sweeper", self, n_trials=1)
