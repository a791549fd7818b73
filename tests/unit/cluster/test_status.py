from datetime import UTC, datetime

import pytest

from edl_horovod.cluster import status


def job(*conditions, **fields):
    return {
        "metadata": {"name": "mnist", "namespace": "ml", "creationTimestamp": ""},
        "spec": {
            "runPolicy": {},
            "mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": {}}}},
        },
        "status": {
            "conditions": [
                {"type": kind, "status": "True", "reason": reason} for kind, reason in conditions
            ],
            **fields,
        },
    }


def launcher(phase):
    name = {"training.kubeflow.org/job-role": "launcher"}
    return {
        "metadata": {"name": "mnist-launcher-abcde", "labels": name},
        "spec": {},
        "status": {"phase": phase},
    }


def test_the_state_follows_the_launcher_and_not_what_the_operator_once_said():
    """It says Running once, and goes on to say so when the launcher's pod is gone."""
    running = job(("Running", "MPIJobRunning"))
    states = {
        "Pending": "waiting",
        "Running": "running",
        "Failed": "waiting",
        "Succeeded": "running",  # Between the launcher's end and the operator's word.
    }

    assert status.view(running).state == "waiting"
    for phase, state in states.items():
        assert status.view(running, [launcher(phase)]).state == state, phase


def test_a_job_that_lost_an_evicted_worker_has_failed_only_if_it_ended():
    running = job(("Running", "MPIJobRunning"), ("Failed", "MPIJobEvicted"))
    assert status.view(running, [launcher("Running")]).state == "running"
    ended = job(("Failed", "MPIJobEvicted"), completionTime="2026-11-21T11:00:00Z")
    assert status.view(ended).state == "failed"


def test_a_launcher_that_gave_up_is_a_failure():
    assert status.view(job(("Failed", "BackoffLimitExceeded"))).state == "failed"


def test_a_job_that_the_operator_has_not_seen_waits_for_it():
    (reason,) = status.view(job()).waits_for

    assert "mpi-operator" in str(reason)
    assert status.view(job(("Created", "MPIJobCreated"))).waits_for == ()


def leaving(role, *, ends_at, phase="Running"):
    seconds = datetime.fromtimestamp(ends_at, UTC).isoformat()
    return {
        "metadata": {
            "name": f"mnist-{role}-0",
            "labels": {"training.kubeflow.org/job-role": role},
            "deletionTimestamp": seconds,
        },
        "spec": {"nodeName": "node-7"},
        "status": {"phase": phase},
    }


NOW = 1_800_000_000.0


@pytest.mark.parametrize("role", ["launcher", "worker"])
def test_a_pod_that_its_node_does_not_end_is_named_once_it_is_overdue(role):
    def causes(**fields):
        seen = status.view(job(("Running", "x")), [leaving(role, **fields)], now=NOW)
        return [cause for cause in seen.waits_for if cause.object == f"Pod/mnist-{role}-0"]

    assert causes(ends_at=NOW + 20) == [], "it has its grace"
    assert causes(ends_at=NOW - 3600, phase="Failed") == [], "it has ended"
    (cause,) = causes(ends_at=NOW - 3600)
    assert "node-7" in cause.reason
    assert "kubectl delete node node-7" in cause.hint
    assert ("not help" in cause.hint) == (role == "launcher")
