"""A verb: `edl greet NAME`."""

import sys

from edl_horovod.cli.main import Verb

VERB = Verb("Greet somebody.", "plain_extension.greet")


def run(verb, summary, argv):
    sys.stdout.write(f"Hello {' '.join(argv)}\n")
    return 0
