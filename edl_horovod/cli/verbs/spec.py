"""`edl spec show`: what the files of a model spec hold, without running anything of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.layout import fact_lines, table

__all__ = ["run"]

_EXAMPLES = """\
examples:
  edl spec show config.yml
  edl spec show config.yml -o json
"""
_WORKER = "edl_horovod.tasks.file_summary"


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl spec`."""
    usage = "show [-o json] [--debug] MODEL_SPEC"
    parser = VerbParser(verb, summary=summary, usage=usage, epilog=lambda: _EXAMPLES)
    parser.add_argument("action", choices=("show",), help="describe the model's files")
    parser.add_argument(
        "model_spec",
        metavar="MODEL_SPEC",
        type=Path,
        help="YAML or JSON file with a section `model`",
    )
    parser.add_format()
    flags = parser.parse_all(argv)
    from edl_horovod.config.model_spec import MODEL_KINDS, check, read_section
    from edl_horovod.models.own_process import ask
    from edl_horovod.supervisor.needs import require_framework

    section = read_section(flags.model_spec.absolute())
    check(section)
    _require_mapping(section)
    require_framework(MODEL_KINDS[section["name"]].framework)
    found = ask(_WORKER, {"section": section})
    print(json.dumps(found, indent=2) if flags.format == "json" else _as_table(section, found))
    return 0


def _require_mapping(section: Mapping[str, Any]) -> None:
    from edl_horovod.errors import ConfigError

    if not isinstance(section["spec"], Mapping):
        raise ConfigError(
            "edl spec show runs nothing, and this spec is what a function returns.",
            received={"model.spec": section["spec"]},
            cure="Write the spec that it returns into the file.",
        )


def _as_table(section: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    layers = found["layers"]
    counts = [layer["num_parameters"] for layer in layers]
    total = f"{sum(counts):,}" if counts and None not in counts else ""
    facts = {
        "model": f"{section['spec']['model_name']} ({section['name']})",
        "files": found["kind"],
        "optimizer": found["optimizer"] or "none: set optimizer=...",
        "loss": found["loss"] or "none: set loss=...",
        "parameters": total,
        "unsafe": "nothing that would run" if not found["unsafe"] else "needs trust=model",
    }
    lines = [*fact_lines(facts), *(f"  {each}" for each in found["unsafe"])]
    if layers:
        rows = [
            (
                layer["name"],
                layer["kind"],
                "" if layer["num_parameters"] is None else f"{layer['num_parameters']:,}",
                layer["shape"],
            )
            for layer in layers
        ]
        lines += ["", *table(("LAYER", "KIND", "PARAMETERS", "SHAPE"), rows)]
    return "\n".join(lines)
