"""`edl image build` and `edl image push`: the image of a model zoo."""

from collections.abc import Sequence

from edl_horovod import image
from edl_horovod.cli.arguments import VerbParser, config_files, settings_parser
from edl_horovod.config.schema import ImageConfig
from edl_horovod.job import log

_EXAMPLES = """\
  edl image build base_image=registry/edl-worker:1 image_repository=registry/team/zoo
  edl image push model_zoo=zoo base_image=registry/edl-worker:1 image_repository=registry/zoo
  edl image push model_zoo=git+https://host/models.git@v2 base_image=... image_repository=..."""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl image`."""
    from edl_horovod.config.compose import compose_as, describe

    flags, overrides = _parser(verb, summary).parse_with_settings(argv)
    if flags.cfg:
        print(describe(verb, overrides, config_files(flags)))
        return 0
    config = compose_as(ImageConfig, overrides, files=config_files(flags))
    log.setup("edl", level="error" if flags.quiet else "info")
    if flags.dry_run:
        _print_plan(config, push=flags.action == "push")
        return 0
    built = image.build(config, push=flags.action == "push")
    print(f"image: {built.image}")
    if built.digest:
        print(f"digest: {built.digest}")
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    flags = "build|push [--dry-run]"
    parser = settings_parser(verb, summary, ImageConfig, flags=flags, examples=_EXAMPLES)
    text = "build the image; push also uploads it, and builds first if anything changed"
    parser.add_argument("action", choices=("build", "push"), help=text)
    parser.add_dry_run("print what would be built, and stop")
    return parser


def _print_plan(config: ImageConfig, *, push: bool) -> None:
    """The Dockerfile, for programs to read, with the files of the image in its comments."""
    plan = image.plan_of(config)
    print(plan.dockerfile(base=str(plan.base), user="<the base image's>"), end="")
    print(f"# model zoo: {len(plan.files)} files, {plan.num_bytes} bytes")
    print(f"# image: {plan.repository}:{plan.name}-<from the contents>")
    print(f"# pushed: {'yes' if push else 'no'}")
