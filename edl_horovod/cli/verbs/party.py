"""`edl party`: take part in a federated training, whose coordinator another command runs.

`edl import-ibm-fl` prints the settings of both from files of IBM Federated Learning.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from edl_horovod.cli.arguments import VerbParser, config_files, print_result, settings_parser
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.schema import JobConfig
from edl_horovod.coordinator import tokens
from edl_horovod.displays.terminal import open_terminal
from edl_horovod.errors import ConfigError
from edl_horovod.job import log
from edl_horovod.launch.local import LocalTarget
from edl_horovod.launch.party import plan_party
from edl_horovod.supervisor.run import run_plan

_EXAMPLES = """\
  edl party --join 127.0.0.1:7100 --party-token federation/tokens/north.token digits.yaml \\
      data='north/*.recordio' output=north_model
  edl party --join 10.0.0.1:7100 --party-token south.token digits.yaml data='/data/*.csv' \\
      output=/models/south federated.address=south.example.org:7101"""

_IMPORT_EXAMPLES = """\
  edl import-ibm-fl config_agg.yml > coordinator.yaml
  edl import-ibm-fl config_agg.yml config_party0.yml > party.yaml
  edl federate --config-dir . --config-name coordinator job_dir=federation
  edl party --join 127.0.0.1:5000 --party-token federation/tokens/party0.token party.yaml \\
      output=model"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl party`."""
    from edl_horovod.config.compose import compose, describe

    flags, words = _parser(verb, summary).parse_with_settings(argv)
    names = [word for word in words if "=" not in word and word.endswith((".yaml", ".yml"))]
    overrides = [word for word in words if word not in names]
    files = config_files(flags)
    if names:
        path = Path(names[-1])
        files = ConfigFiles(str(path.parent), path.stem)
    if flags.cfg:
        print(describe("train", overrides, files))
        return 0
    if not (flags.join and flags.party_token):
        raise ConfigError(
            "edl party needs the address of the coordinator and the token of the party.",
            received={"--join": flags.join, "--party-token": flags.party_token},
            hint="Give both: --join HOST:PORT --party-token FILE.",
        )
    token = tokens.read(Path(flags.party_token))
    config = compose("train", overrides, values={"federated.party": token.party}, files=files)
    if not config.federated.rounds:
        raise ConfigError(
            "edl party is for federated trainings.",
            received={"federated.rounds": 0},
            hint="Set federated.rounds to the number of rounds.",
        )
    plan = plan_party(config, flags.join, token, Path(flags.party_token))
    if flags.dry_run:
        print(LocalTarget().describe(plan), end="")
        return 0
    with open_terminal(is_quiet=flags.quiet) as on_events:
        log.setup("edl", level="error" if flags.quiet else config.log_level)
        result = run_plan(plan, on_events=on_events)
    print_result(result)
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "--join HOST:PORT --party-token FILE [FILE.yaml] [--dry-run]"
    parser = settings_parser(verb, summary, JobConfig, flags=usage, examples=_EXAMPLES)
    text = "address of the coordinator (edl federate)"
    parser.add_argument("--join", metavar="HOST:PORT", default="", help=text)
    text = "the party's token, from the operator of the coordinator"
    parser.add_argument("--party-token", metavar="FILE", default="", help=text)
    parser.add_dry_run("print what would run, and stop")
    return parser


def run_import(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl import-ibm-fl`."""
    import yaml

    from edl_horovod.config.ibm_fl import settings_of_coordinator, settings_of_party

    usage = "AGGREGATOR.yml [PARTY.yml] [--debug]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: f"examples:\n{_IMPORT_EXAMPLES}")
    parser.add_argument("aggregator", metavar="AGGREGATOR.yml", type=Path, help="its file")
    text = "the file of a party, whose settings are printed in place of the coordinator's"
    parser.add_argument("party", metavar="PARTY.yml", type=Path, nargs="?", help=text)
    flags = parser.parse_all(argv)
    is_party = flags.party is not None
    settings = (
        settings_of_party(flags.aggregator, flags.party)
        if is_party
        else settings_of_coordinator(flags.aggregator)
    )
    print(f"# Settings of edl {'party' if is_party else 'federate'}, from files of IBM FL.")
    values = {"defaults": ["config", "_self_"], **settings.values}
    print(yaml.safe_dump(values, sort_keys=False), end="")
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
