from edl_horovod.cluster import status


def job(*conditions, **more):
    return {
        "metadata": {"name": "mnist", "namespace": "ml", "creationTimestamp": ""},
        "spec": {
            "runPolicy": {},
            "mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": {}}}},
        },
        "status": {
            "conditions": [{"type": kind, "status": "True", "reason": reason}
                           for kind, reason in conditions], **more,
        },
    }  # fmt: skip


def test_a_job_that_lost_an_evicted_worker_has_not_failed():
    running = job(("Running", "MPIJobRunning"), ("Failed", "MPIJobEvicted"))

    assert status.view(running).state == "running"


def test_a_job_that_ended_so_has():
    ended = job(("Failed", "MPIJobEvicted"), completionTime="2026-11-21T11:00:00Z")

    assert status.view(ended).state == "failed"


def test_a_launcher_that_gave_up_is_a_failure():
    assert status.view(job(("Failed", "BackoffLimitExceeded"))).state == "failed"


def test_a_job_that_the_operator_has_not_seen_waits_for_it():
    (reason,) = status.view(job()).waits_for

    assert reason.startswith("mpi-operator")
    assert status.view(job(("Created", "MPIJobCreated"))).waits_for == ()
