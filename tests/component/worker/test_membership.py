"""Which membership a worker gets by the variables of its launcher."""

from types import SimpleNamespace

import pytest

from edl_horovod.coordinator import tokens
from edl_horovod.errors import MissingDependency
from edl_horovod.frameworks.horovod import NEEDED_PATCH
from edl_horovod.worker.environment import WorkerEnvironment
from edl_horovod.worker.rank import make_membership
from tests.jobs import training


def membership(folder, *, patch):
    variables = {"EDL_COORDINATOR": "127.0.0.1:1", "EDL_HOST": "north"}
    variables["EDL_PARTY_TOKEN"] = str(folder / "north.token")
    horovod = SimpleNamespace(patch_version=lambda: patch, leave=lambda: None)
    return make_membership(WorkerEnvironment.of(variables), training(8), None, horovod)


def test_encryption_needs_our_patch_of_horovod(tmp_path):
    tokens.issue(tmp_path, ["north"])
    with pytest.raises(MissingDependency, match="setup-horovod"):
        membership(tmp_path, patch=NEEDED_PATCH - 1)
    membership(tmp_path, patch=NEEDED_PATCH).close()
    tokens.issue(tmp_path, ["north"], is_encrypted=False)
    membership(tmp_path, patch=0).close()
