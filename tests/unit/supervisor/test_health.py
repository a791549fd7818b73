"""`edl doctor ring` where the ring of one framework works, and that of another does not."""

import json
from subprocess import CompletedProcess

import pytest

from edl_horovod.health import Scope
from edl_horovod.supervisor.health import check_ring
from tests.frameworks import NEEDS_KERAS, NEEDS_TORCH

SUM = f"SUM {json.dumps({'sum': 3, 'patch': '4', 'warning': ''})}"


class RingPrograms:
    """Programs of which the rings of some frameworks fail."""

    def __init__(self, *broken):
        self.broken = broken

    def run(self, command, *, seconds):
        if command[-1] in self.broken:
            return CompletedProcess(command, 1, "", "OSError: broken")
        return CompletedProcess(command, 0, SUM, "")


@NEEDS_KERAS
@NEEDS_TORCH
@pytest.mark.parametrize(
    ("broken", "wanted", "levels"),
    [
        (["keras"], [], {"keras": "WARN", "torch": "OK"}),
        (["keras"], ["ring"], {"keras": "FAIL", "torch": "OK"}),
        (["keras", "torch"], [], {"keras": "FAIL", "torch": "FAIL"}),
    ],
)
def test_one_ring_that_works_is_enough_unless_all_are_asked_for(broken, wanted, levels):
    scope = Scope(RingPrograms(*broken), wanted=frozenset(wanted))
    findings = check_ring(scope)
    assert {finding.text.partition(":")[0]: finding.level for finding in findings} == levels
