"""`edl party`: take part in a federated training, whose coordinator another command runs."""

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
