"""`edl spec`: show the contents of a model spec's files, or write a zoo's model as a spec."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from edl_horovod.cli.arguments import VerbParser, fact_lines, print_rows, table
from edl_horovod.errors import ConfigError

_EXAMPLES = """\
examples:
  edl spec show config.yml
  edl spec show config.yml -o json
  edl spec write mnist_torch --output digits
  edl spec write cifar10_functional_api --params "filters=[32, 64]" --output cifar
"""
_USAGE = """\
show [-o json] [--debug] MODEL_SPEC
       edl spec write [--model-zoo ZOO] [--framework NAME] [--params TEXT] --output DIR [--debug]
                      MODEL_DEF"""
_FILE = "config.yml"


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl spec`."""
    parser = VerbParser(verb, summary, _USAGE, epilog=lambda: _EXAMPLES)
    text = "show the files of a spec, or write a model of a zoo as files and a spec"
    parser.add_argument("action", choices=("show", "write"), help=text)
    text = "MODEL_SPEC: a file with a section `model`; MODEL_DEF: a model of the zoo"
    parser.add_argument("model", metavar="MODEL", help=text)
    parser.add_format()
    parser.add_argument("--model-zoo", default="model_zoo", help="folder, file or Git URL")
    parser.add_argument("--framework", default="", help="keras or torch, if the file imports both")
    parser.add_argument("--params", default="", help="parameters of the model: name=value, ...")
    parser.add_argument("--output", default="", help="new folder for the files and their spec")
    flags = parser.parse_all(argv)
    return _show(flags) if flags.action == "show" else _write(flags)


def _show(flags: argparse.Namespace) -> int:
    from edl_horovod.config.frameworks import model_kinds
    from edl_horovod.config.model_spec import check, read_section
    from edl_horovod.models.child_process import call_in_child
    from edl_horovod.models.spec_zoo import summarize
    from edl_horovod.supervisor.needs import require_framework

    section = read_section(Path(flags.model).absolute())
    check(section)
    if not isinstance(section["spec"], Mapping):
        raise ConfigError(
            "edl spec show runs no code, but a function returns this spec.",
            received={"model.spec": section["spec"]},
            hint="Write the returned spec itself into the file.",
        )
    require_framework(model_kinds()[section["name"]].framework)
    description = call_in_child(summarize, {"section": section})
    is_json = flags.format == "json"
    print(json.dumps(description, indent=2) if is_json else _as_table(section, description))
    return 0


def _write(flags: argparse.Namespace) -> int:
    from edl_horovod.config import params
    from edl_horovod.config.checks import check_choice, check_given
    from edl_horovod.config.frameworks import DEFAULT, FRAMEWORKS
    from edl_horovod.config.model_spec import section_of
    from edl_horovod.files.output_dir import staged
    from edl_horovod.models import git_zoo
    from edl_horovod.models.child_process import call_in_child
    from edl_horovod.models.framework_name import imported_framework
    from edl_horovod.models.spec_zoo import write_model
    from edl_horovod.supervisor.needs import require_worker_packages

    if flags.framework:
        check_choice("--framework", flags.framework, tuple(FRAMEWORKS))
    check_given("--output", flags.output, "a new folder")
    output = Path(flags.output).absolute()
    zoo = str(git_zoo.ensure_local(flags.model_zoo).path)
    framework = flags.framework or imported_framework(zoo, flags.model) or DEFAULT
    require_worker_packages(framework)
    request = {
        "framework": framework,
        "model_zoo": zoo,
        "model_def": flags.model,
        "params": params.parse(flags.params),
    }
    with staged(output, "model spec", overwrite=False) as folder:
        written = call_in_child(write_model, {**request, "folder": str(folder)})
        spec = {"model_name": flags.model, **written["spec"]}
        section = section_of(framework, spec)
        (folder / _FILE).write_text(yaml.safe_dump({"model": section}, sort_keys=False))
    rows = {"model_spec": str(output / _FILE)}
    print_rows(rows | {f"without {n + 1}": text for n, text in enumerate(written["left_out"])})
    return 0


def _as_table(section: Mapping[str, Any], description: Mapping[str, Any]) -> str:
    layers = description["layers"]
    counts = [layer["num_parameters"] for layer in layers]
    total = f"{sum(counts):,}" if counts and None not in counts else ""
    facts = {
        "model": f"{section['spec']['model_name']} ({section['name']})",
        "files": description["kind"],
        "optimizer": description["optimizer"] or "none: set optimizer=...",
        "loss": description["loss"] or "none: set loss=...",
        "parameters": total,
        "unsafe": "nothing that would run" if not description["unsafe"] else "needs trust=model",
    }
    lines = [*fact_lines(facts), *(f"  {reason}" for reason in description["unsafe"])]
    if layers:
        numbers = ["" if count is None else f"{count:,}" for count in counts]
        rows = [
            (layer["name"], layer["kind"], number, layer["shape"])
            for layer, number in zip(layers, numbers, strict=True)
        ]
        lines += ["", *table(("LAYER", "KIND", "PARAMETERS", "SHAPE"), rows)]
    return "\n".join(lines)
