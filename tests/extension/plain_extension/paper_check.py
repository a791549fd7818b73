"""A check of `edl doctor`: what a launch on paper needs."""

import os

from edl_horovod.health import Check, Finding

CHECK = Check("plain_extension.paper_check", "check")


def check(scope):
    if "PAPER" in os.environ:
        yield Finding("OK", "there is paper")
    else:
        yield Finding("FAIL", "there is no paper", "Set PAPER to a file.")
