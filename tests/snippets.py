"""The commands and programs in the pages: which of them a test runs, and why the others are not."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = [
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if "_build" not in page.parts),
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "model_zoo" / "README.md"),
    *sorted(ROOT.glob("starter/*/README.md")),
]
PART = "It is a part of a file or of a program."
OPEN = "`...` stands for the rest of the command."
SHOWN = "It is what a command prints, or a drawing."
CLUSTER = "It needs a cluster; tests/kube has an API server."
BUILDER = "It needs a builder of images; tests/images has one."
INSTALLS = "It installs packages or needs other hosts."

WALKED = {
    "docs/how-to/coming-from/elasticdl.md",
    "docs/how-to/coming-from/horovod.md",
    "docs/how-to/coming-from/sqlflow.md",
    "docs/how-to/coming-from/torchrun-and-lightning.md",
    "docs/how-to/federated.md",
    "docs/how-to/first-model.md",
    "docs/how-to/local-rounds.md",
    "docs/how-to/mpi.md",
    "docs/how-to/predict.md",
    "docs/how-to/prepare.md",
    "docs/how-to/robust-training.md",
    "docs/how-to/several-losses.md",
    "docs/how-to/sql.md",
    "docs/reference/python-api.md",
    "docs/reference/pytorch.md",
}
"""tests/integration/test_pages.py runs the snippets of these pages, without those in `NOT_RUN`."""

NOT_RUN: dict[str, str | dict[str, str]] = {
    "README.md": "Continuous integration types it: .ci/readme.py.",
    "CONTRIBUTING.md": "tests/unit/test_readme.py",
    **dict.fromkeys(
        (f"starter/{name}/README.md" for name in ("keras", "sql", "table", "torch")),
        "tests/integration/test_templates.py",
    ),
    "model_zoo/README.md": "tests/integration/test_tables.py has tables of its own.",
    "docs/explanation/architecture.md": SHOWN,
    "docs/explanation/tests.md": "Continuous integration runs these commands: .ci/readme.py.",
    "docs/explanation/records.md": SHOWN,
    "docs/how-to/autoscale.md": {"edl train ...": OPEN, "at most 1": SHOWN},
    "docs/how-to/chaos.md": "tests/integration/test_chaos.py disturbs jobs of its own.",
    "docs/how-to/coming-from/ibm-fl.md": "tests/integration/test_model_specs.py has such files.",
    "docs/how-to/dashboard.md": "It serves until Ctrl-C: tests/component/displays/test_page.py.",
    "docs/how-to/data.md": {
        "pip install": INSTALLS,
        "export FSSPEC_HTTP": "It reads from a bucket and a server.",
        "1 of 1,000": SHOWN,
        "class TableSpec": PART,
    },
    "docs/how-to/doctor.md": "tests/integration/test_doctor.py",
    "docs/how-to/elastic.md": OPEN,
    "docs/how-to/extend.md": "tests/integration/test_extensions.py installs such a package.",
    "docs/how-to/federated.md": {
        "class Yogi": PART,
        "edl federate federated.listen=0.0.0.0:7100": INSTALLS,
        "edl party --join coordinator": INSTALLS,
        "edl party ...": OPEN,
        "kubectl": CLUSTER,
    },
    "docs/how-to/hangs.md": SHOWN,
    "docs/how-to/horovodrun.md": "tests/integration/test_horovodrun.py has hosts of its own.",
    "docs/how-to/host-discovery.md": CLUSTER,
    "docs/how-to/images.md": BUILDER,
    "docs/how-to/install.md": "tests/integration/test_wheel.py",
    "docs/how-to/jobs-in-a-cluster.md": CLUSTER,
    "docs/how-to/kubernetes.md": CLUSTER,
    "docs/how-to/model-specs.md": "tests/integration/test_model_specs.py has such files.",
    "docs/how-to/predict.md": {"class PredictionOutputsProcessor": PART, "def __init__": PART},
    "docs/how-to/prepare.md": {
        "def prepare_data_for_a_single_file": PART,
        "import tensorflow": "tests/component/preparation/test_tfrecords.py",
        "pip install": INSTALLS,
    },
    "docs/how-to/resume.md": "The machine goes down: tests/integration/test_resume.py.",
    "docs/how-to/robust-training.md": {"pip install": INSTALLS},
    "docs/how-to/several-losses.md": {"class DigitsGanSpec": PART},
    "docs/how-to/slurm.md": "tests/integration/test_slurm.py has a cluster of its own.",
    "docs/how-to/sql.md": {
        "SELECT ": "tests/integration/test_sql_statements.py has such statements.",
        "edl sql -f": CLUSTER,
        "openssl": "It serves until Ctrl-C: tests/integration/test_sql_service.py.",
    },
    "docs/how-to/sweep.md": "tests/integration/test_sweep.py runs smaller ones.",
    "docs/how-to/training.md": {"edl train ...": OPEN, "def ": PART},
    "docs/how-to/trackers.md": "tests/component/displays/test_trackers.py has the clients alone.",
    "docs/how-to/where-the-time-went.md": "tests/integration/test_report.py",
    "docs/reference/cli.md": OPEN,
    "docs/reference/data-formats.md": PART,
    "docs/reference/events.md": "tests/unit/displays/test_event_table.py",
    "docs/reference/files.md": SHOWN,
    "docs/reference/keras.md": "tests/component/frameworks/keras/test_adapted_layers.py",
    "docs/reference/model-files.md": {"class DNN": PART, "edl train ...": OPEN},
    "docs/reference/pytorch.md": {
        "class Regression": PART,
        "from dataclasses": "tests/component/frameworks/torch/test_model_styles.py",
        "class OnKeras": "tests/integration/test_keras_on_torch.py has such a module.",
        "from safetensors": PART,
    },
    "docs/tutorials/first-elastic-job-on-a-cluster.md": CLUSTER,
    "docs/tutorials/sql.md": "tests/integration/test_sql_statements.py",
    "docs/tutorials/your-own-experiments.md": "tests/integration/test_own_experiments.py",
}
"""Why snippets are not run, or which other test runs them: of a whole page, or by their begin."""


@dataclass(frozen=True)
class Snippet:
    """One block of a page that is not prose."""

    page: str
    line: int
    language: str
    text: str
    before: str
    """The page above it."""

    @property
    def listed(self) -> str:
        """Why the walk through its page leaves it out; empty where it is run there."""
        reasons = NOT_RUN.get(self.page, {})
        if isinstance(reasons, str):
            return reasons
        return next((reasons[start] for start in reasons if self.text.startswith(start)), "")

    @property
    def commands(self) -> list[list[str]]:
        """The words of its commands `edl`, without what the shell does with their output."""
        commands, pending = [], ""
        for line in self.text.replace("\\\n", " ").splitlines():
            pending += f"{line}\n"
            try:
                words = shlex.split(pending, comments=True)
            except ValueError:  # A text in quotes goes on in the next line.
                continue
            pending = ""
            ends = [at for at, word in enumerate(words) if word in (">", "|", "&")]
            starts = [at for at, word in enumerate(words) if word == "edl"]
            if starts and all("=" in word for word in words[: starts[0]]):
                commands.append(words[starts[0] + 1 : min(ends, default=None)])
        return commands


def snippets_in(page: Path) -> list[Snippet]:
    """The blocks of code of a page, in its order."""
    text, name = page.read_text(), page.relative_to(ROOT).as_posix()
    lines = text.splitlines()
    return [
        Snippet(name, token.map[0] + 1, token.info, token.content, "\n".join(lines[: token.map[0]]))
        for token in MarkdownIt().parse(text)
        if token.type in ("fence", "code_block")
    ]
