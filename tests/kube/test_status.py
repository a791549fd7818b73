"""What `edl status` says of a job that does not go on: whom it waits for, why, and the hint."""

import json

import pytest

from edl_horovod import Client
from edl_horovod.cli.main import main
from edl_horovod.errors import ConfigError, JobFailed, NotEnoughWorkers
from tests.kube.conftest import allow, rule
from tests.kube.lab import LAUNCHER, TRAIN, WORKERS


def status(capsys) -> str:
    assert main(["status", "mnist"]) == 0
    return capsys.readouterr().out


def causes(capsys) -> list[dict[str, str]]:
    assert main(["status", "mnist", "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)["waits_for"]


# -- suspended, as the pods and the operator say


def test_a_stop_that_the_operator_has_not_seen_is_no_suspension(lab, capsys):
    lab.run()
    lab.set_condition("Running")

    with Client() as client:
        client.stop("mnist", wait=False)

    printed = status(capsys)
    assert "stopping: 3 pods" in printed
    assert "2 of 2 pods" in printed
    (cause,) = causes(capsys)
    assert (cause["object"], "the stop" in cause["reason"]) == ("MPIJob/mnist", True)
    assert "mpi-operator" in cause["hint"]
    main(["list"])
    assert capsys.readouterr().out.splitlines()[1].split()[1:4] == ["mnist", "stopping", "2/2"]


def test_a_job_is_stopping_until_its_last_pod_has_ended(lab, capsys):
    lab.run()
    with Client() as client:
        client.stop("mnist", wait=False)
    lab.set_condition("Suspended")
    lab.cluster.delete("Pod", LAUNCHER, grace_seconds=0)
    lab.cluster.delete("Pod", WORKERS[1], grace_seconds=0)
    lab.cluster.delete("Pod", WORKERS[0])

    printed = status(capsys)
    assert "stopping: 1 pod " in printed
    assert "waits for" not in printed, "the operator has done its part"
    lab.cluster.delete("Pod", WORKERS[0], grace_seconds=0)

    assert "state      suspended\n" in status(capsys)


def test_pods_of_a_suspended_job_are_counted_not_remembered(lab, capsys):
    lab.submit("kubernetes.suspend=true")
    lab.set_condition("Running", replicaStatuses={"Worker": {"active": 2}})

    printed = status(capsys)

    assert "state      suspended\n" in printed
    assert "0 of 2 pods" in printed


def test_a_resume_that_the_operator_has_not_seen_is_told(lab, capsys):
    lab.submit()
    lab.set_condition("Suspended")

    (cause,) = causes(capsys)

    assert "state      waiting" in status(capsys)
    assert (cause["object"], "the resume" in cause["reason"]) == ("MPIJob/mnist", True)


# -- pods that are refused


QUOTA = (
    "is forbidden: exceeded quota: team, requested: requests.cpu=4, used: requests.cpu=8, "
    "limited: requests.cpu=10"
)


REFUSED = 'worker pod created failed: pods "mnist-worker-0"'
FORBIDDEN = f"MPIJobFailed: {REFUSED} is forbidden: "
NOT_CREATED = "MPIJobFailed: worker pod created failed: "
REASONS = {
    f"MPIJobFailed: {REFUSED} {QUOTA}": "Ask for less",
    FORBIDDEN + "failed quota: team: must specify requests.ephemeral-storage for: worker": (
        "LimitRange"
    ),
    FORBIDDEN + 'violates PodSecurity "baseline:latest": hostPath volumes (volume "data")': (
        "Mount a claim"
    ),
    FORBIDDEN + 'violates PodSecurity "restricted:v1.36": runAsNonRoot != true (pod or container '
    '"worker" must set securityContext.runAsNonRoot=true)': "pod-security.kubernetes.io/enforce",
    FORBIDDEN + "error looking up service account default/default: serviceaccount "
    '"default" not found': "kubectl create serviceaccount default -n default",
    FORBIDDEN + "no PriorityClass with name high was found": "kubectl get priorityclasses",
    FORBIDDEN + "[maximum cpu usage per Container is 2, but limit is 4, maximum memory usage per "
    "Container is 1Gi, but limit is 4Gi]": "kubernetes.worker",
    FORBIDDEN + "unable to create new content in namespace default because it is being "
    "terminated": "another namespace",
    FORBIDDEN + "what nobody has heard of": "edl events mnist",
    NOT_CREATED + 'pods is forbidden: User "system:serviceaccount:mpi-operator:mpi-operator" '
    'cannot create resource "pods" in API group "" in the namespace "default"': (
        "mpi-operator's ClusterRole"
    ),
    NOT_CREATED + 'admission webhook "v.example" denied the request: no': (
        "Ask the owner of this webhook"
    ),
    'MPIJobFailed: launcher pod created failed: jobs.batch "mnist-launcher" is forbidden: exceeded '
    "quota: team, requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: "
    "count/jobs.batch=1": "Ask for less",
    NOT_CREATED + 'Pod "mnist-worker-0" is invalid: spec.nodeSelector: Invalid value: "a b"': (
        "another kubernetes.name"
    ),
    'ErrResourceExists: Resource "mnist-worker-0" of Kind "Pod" already exists and is not managed '
    "by MPIJob": "another kubernetes.name",
    "ValidationError: Found validation errors: spec.runPolicy.cleanPodPolicy: Required value": (
        "mpi-operator 0.8"
    ),
}


@pytest.mark.parametrize(("reason", "hint"), REASONS.items(), ids=lambda text: text[-40:])
def test_what_the_operator_cannot_make_is_told_with_a_hint(lab, capsys, reason, hint):
    """The operator tells it in an event of the MPIJob, and nothing in the MPIJob itself."""
    lab.submit()
    lab.say("MPIJob/mnist", "MPIJobCreated", "MPIJob default/mnist is created.", kind="Normal")
    lab.say("MPIJob/mnist", *reason.split(": ", 1))

    (cause,) = causes(capsys)

    assert (cause["object"], cause["reason"]) == ("MPIJob/mnist", reason)
    assert hint in cause["hint"]
    waits_for = f"MPIJob/mnist: {reason}. {cause['hint']}"
    assert waits_for in status(capsys)


def test_a_launcher_that_is_refused_while_all_workers_are_there_is_told(lab, capsys):
    lab.run()
    lab.set_condition("Running")
    lab.cluster.delete("Pod", LAUNCHER, grace_seconds=0)
    message = f'Error creating: pods "mnist-launcher-x7k2p" {QUOTA}'
    lab.say("Job/mnist-launcher", "FailedCreate", message)

    (cause,) = causes(capsys)

    assert (cause["object"], cause["reason"]) == ("Job/mnist-launcher", f"FailedCreate: {message}")
    assert "state      waiting" in status(capsys)


def test_the_quota_that_a_scaled_job_meets_is_told(lab, capsys):
    lab.run()
    with Client() as client:
        client.scale("mnist", 4)
    lab.say("MPIJob/mnist", "MPIJobFailed", f"{REFUSED} {QUOTA}".replace("-0", "-2"))

    printed = status(capsys)

    assert "state      running" in printed
    assert "quota: team" in printed
    assert "edl scale" in printed


def test_the_last_word_of_an_object_counts(lab, capsys):
    lab.submit()
    early, late = "2101-01-01T00:00:00Z", "2101-01-01T00:00:00.500000Z"
    lab.say("MPIJob/mnist", "MPIJobFailed", f"{REFUSED} is forbidden: new", time=late)
    lab.say("MPIJob/mnist", "MPIJobFailed", f"{REFUSED} is forbidden: old", time=early)

    (cause,) = causes(capsys)

    assert "forbidden: new" in cause["reason"]


def test_a_refusal_that_is_over_is_not_told(lab, capsys):
    lab.submit("launch.np=3")
    lab.add_pods(workers=2)
    lab.say("MPIJob/mnist", "MPIJobFailed", f"{REFUSED} {QUOTA}")
    pod = f'Error creating: pods "mnist-launcher-x7k2p" {QUOTA}'
    lab.say("Job/mnist-launcher", "FailedCreate", pod)

    assert causes(capsys) == []


def test_a_job_that_the_operator_saw_and_made_nothing_for_sends_to_its_log(lab, capsys):
    lab.submit()
    lab.say("MPIJob/mnist", "MPIJobCreated", "MPIJob default/mnist is created.", kind="Normal")

    (cause,) = causes(capsys)

    assert "none of its pods" in cause["reason"]
    assert "log" in cause["hint"]


# -- launchers that have ended


def ended_launcher(lab, code: int) -> None:
    ended = {"exitCode": code, "reason": "Error"}
    status = {"name": "launcher", "restartCount": 0, "state": {"terminated": ended}}
    lab.set_pod(LAUNCHER, "Failed", containerStatuses=[status])


def add_launcher(lab, name: str) -> None:
    pod = lab.cluster.get("Pod", LAUNCHER)
    lab.cluster.create({**pod, "metadata": {"name": name, "labels": pod["metadata"]["labels"]}})


def test_a_job_waits_for_no_launcher_that_was_replaced(lab, capsys):
    lab.run()
    ended_launcher(lab, 137)
    assert [cause["object"] for cause in causes(capsys)] == [f"Pod/{LAUNCHER}"]
    add_launcher(lab, "mnist-launcher-fghij")

    assert causes(capsys) == [], "the next one only needs its time"
    assert f"{LAUNCHER}  failed" in status(capsys), "it is shown all the same"


def test_a_job_that_has_ended_waits_for_nothing(lab, capsys):
    lab.run()
    ended_launcher(lab, 137)
    lab.set_condition("Succeeded")

    assert causes(capsys) == []


def test_a_failed_job_says_how_its_last_launcher_ended(lab, capsys):
    lab.run()
    ended_launcher(lab, NotEnoughWorkers.exit_code)
    # The operator adds the message of the pod, which has none.
    message = "Job has reached the specified backoff limit: "
    lab.set_condition("Failed", message, completionTime="2101-01-01T00:00:00Z")

    (line,) = [line for line in status(capsys).splitlines() if line.startswith("state ")]
    assert f"backoff limit: {LAUNCHER} " in line
    assert f" {NotEnoughWorkers.exit_code} (" in line
    assert main(["wait", "mnist", "-q"]) == JobFailed.exit_code
    assert "min_np" in capsys.readouterr().err


# -- a launcher on a node that is lost

TAINT = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
FIRST = "mnist-launcher-0"


def launchers(lab) -> list[str]:
    return [name for name in lab.pods() if "launcher" in name]


@pytest.fixture
def lost_launcher(lab):
    grant(lab, "jobs")
    lab.submit()
    lab.control()
    lab.lose_node_of(FIRST)


def test_a_launcher_on_a_lost_node_is_told_with_the_node_and_the_hint(lab, lost_launcher, capsys):
    lab.control()

    (cause,) = causes(capsys)

    assert cause["object"] == f"Pod/{FIRST}"
    assert f"node-of-{FIRST}" in cause["reason"]
    commands = (f"taint node node-of-{FIRST} {TAINT}", f"delete node node-of-{FIRST}")
    for text in (*commands, "coordinator_away_seconds"):
        assert text in cause["hint"]
    assert f"Pod/{FIRST}: {cause['reason']}. {cause['hint']}" in status(capsys)


def test_what_is_said_of_a_lost_launcher_is_so(lab, lost_launcher, capsys):
    lab.control()
    lab.cluster.delete("Pod", FIRST, grace_seconds=0)  # kubectl delete pod --force
    lab.control()
    assert launchers(lab) == [FIRST], "the Job counts it first, and waits for its last phase"
    assert TAINT in status(capsys)

    lab.set_out_of_service(FIRST)
    lab.control()

    assert launchers(lab) == ["mnist-launcher-1"]
    assert causes(capsys) == []


def test_mpi_operator_0_8_0_replaces_a_launcher_on_a_lost_node(lab, capsys):
    grant(lab, "jobs")
    lab.submit()
    lab.control(release="0.8.0")

    lab.lose_node_of(FIRST)
    lab.control(release="0.8.0")

    assert launchers(lab) == [FIRST, "mnist-launcher-1"]
    assert causes(capsys) == [], "there is another one"


# -- a job in a queue of Kueue

QUEUED = "kubernetes.labels={kueue.x-k8s.io/queue-name: team}"
NO_ROOM = (
    "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor "
    "default, 2 more needed"
)


def queue(lab) -> None:
    """What Kueue does with a job that its queue has no room for."""
    lab.submit(QUEUED, "kubernetes.suspend=true")
    lab.set_condition("Suspended", "MPIJob suspended")
    workload = "mpijob-mnist-1a2b3"
    created = f"Created Workload: default/{workload}"
    lab.say("MPIJob/mnist", "CreatedWorkload", created, kind="Normal")
    lab.say(f"Workload/{workload}", "Pending", NO_ROOM)
    lab.say("Workload/mpijob-mnist-two-1a2b3", "Pending", "of another job")


def test_a_job_that_kueue_holds_waits_for_its_queue(lab, capsys):
    queue(lab)

    (cause,) = causes(capsys)

    assert cause["object"] == "LocalQueue/team"
    assert NO_ROOM in cause["reason"]
    assert "workload mpijob-mnist-1a2b3" in cause["hint"]
    assert "waiting: in queue team " in status(capsys)
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2] == "waiting"


def test_a_job_whose_workload_kueue_has_not_made_yet_waits_for_its_queue(lab, capsys):
    lab.submit(QUEUED, "kubernetes.suspend=true")

    (cause,) = causes(capsys)

    assert (cause["object"], "admitted" in cause["reason"]) == ("LocalQueue/team", True)


@pytest.mark.parametrize("is_admitted", [False, True])
def test_what_kueue_would_undo_is_refused(lab, capsys, is_admitted):
    if is_admitted:
        lab.submit(QUEUED)
        lab.add_pods()
    else:
        queue(lab)
    before = lab.cluster.get("MPIJob", "mnist")

    for words in (["scale", "mnist", "--np", "3"], ["stop", "mnist"], ["resume", "mnist"]):
        assert main(words) == ConfigError.exit_code, words
        assert "queue team" in capsys.readouterr().err
    assert lab.cluster.get("MPIJob", "mnist") == before


# -- a launcher that stays suspended


def resume(lab) -> None:
    """As the operator leaves it: it makes the workers, and fails at the launcher's Job."""
    lab.submit()
    lab.set_condition("Suspended", "MPIJob suspended", startTime="2026-01-01T00:00:00Z")
    with Client() as client:
        client.stop("mnist", wait=False)
        client.resume("mnist")
    lab.add_pods()
    lab.cluster.delete("Pod", LAUNCHER, grace_seconds=0)


def test_a_launcher_that_the_operator_cannot_resume_is_told_with_the_hint(lab, capsys):
    resume(lab)
    for name in WORKERS:
        lab.set_pod(name, "Running", is_ready=True)

    (cause,) = causes(capsys)

    assert cause["object"] == "Job/mnist-launcher"
    assert "launcher" in cause["reason"]
    assert "jobs.batch/status: kubectl " in cause["hint"]


def test_a_resume_in_the_midst_is_not_called_stuck(lab, capsys):
    resume(lab)

    (cause,) = causes(capsys)

    assert (cause["object"], "the resume" in cause["reason"]) == ("MPIJob/mnist", True)


# -- whether the operator could resume, before the first stop


def grant(lab, *resources: str, namespace: str = "mpi-operator") -> None:
    """What mpi-operator's account may do; of Jobs its own ClusterRole has `jobs` alone."""
    others = rule("", "pods services configmaps secrets", "*")
    rules = [rule("batch", " ".join(resources), "*"), others]
    account = {"kind": "ServiceAccount", "name": "mpi-operator", "namespace": namespace}
    allow(lab.cluster, "mpi-operator", rules, subject=account)


LACKS = "may not update jobs.batch/status"
UNKNOWN = "could not be checked"
DRY_RUN = ["train", *TRAIN, "kubernetes.name=other", "--dry-run=server"]


def said_by(capsys, *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().err


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("kubernetes", "release", "resources", "is_resumed"),
    [
        ("1.35", "0.8.2", ["jobs"], False),
        ("1.35", "0.8.2", ["jobs", "jobs/status"], True),
        ("1.35", "0.8.0", ["jobs"], True),
        ("1.36", "0.8.2", ["jobs"], True),
    ],
)
def test_a_stop_warns_only_where_the_job_could_not_be_resumed(
    lab, capsys, kubernetes, release, resources, is_resumed
):
    lab.server.set_kubernetes_version(kubernetes)
    grant(lab, *resources)
    lab.submit()
    lab.control(release=release)
    said = said_by(capsys, "stop", "mnist", "--no-wait")
    lab.control(release=release)
    assert lab.pods() == {}, "it is suspended"

    with Client() as client:
        client.resume("mnist")
    lab.control(release=release)

    assert {*WORKERS} <= {*lab.pods()}
    assert any("launcher" in name for name in lab.pods()) == is_resumed
    assert (LACKS in said) == (not is_resumed)


@pytest.mark.long(after=1)
@pytest.mark.parametrize("can_resume", [False, True])
def test_no_right_is_mentioned_that_is_not_needed_or_there(lab, capsys, can_resume):
    if can_resume:
        lab.server.set_kubernetes_version("1.35")
        grant(lab, "jobs", "jobs/status")
    lab.submit()

    for words in (DRY_RUN, ["stop", "mnist", "--dry-run"], ["stop", "mnist"]):
        said = said_by(capsys, *words)
        assert (LACKS in said, UNKNOWN in said) == (False, False), words

    assert any("reviews" in seen.path for seen in lab.server.seen) == can_resume


@pytest.mark.parametrize("namespace", ["mpi-operator", "kubeflow"])
def test_an_operator_that_could_not_resume_is_named_before_the_first_stop(lab, capsys, namespace):
    lab.server.set_kubernetes_version("1.35")
    grant(lab, "jobs", namespace=namespace)
    lab.submit()

    for words in (DRY_RUN, ["stop", "mnist", "--dry-run"], ["stop", "mnist"]):
        said = said_by(capsys, *words)
        account = f"system:serviceaccount:{namespace}:mpi-operator"
        assert f"{account} {LACKS}" in said, words
        assert "clusterrole mpi-operator" in said


def test_an_operator_whose_account_is_not_known_could_not_be_checked(lab, capsys):
    lab.server.set_kubernetes_version("1.35")
    lab.submit()

    said = said_by(capsys, *DRY_RUN)
    assert UNKNOWN in said
    assert "jobs.batch --subresource=status" in said
    assert UNKNOWN in said_by(capsys, "stop", "mnist", "--dry-run")
    assert UNKNOWN not in said_by(capsys, "stop", "mnist"), "it is no reason to worry anybody"


def test_who_may_not_ask_is_told_that_it_could_not_be_checked(lab, stranger, capsys):
    lab.server.set_kubernetes_version("1.35")
    lab.submit()
    rules = (rule("kubeflow.org", "mpijobs", "get patch"), rule("", "configmaps", "get"))
    allow(lab.cluster, "user", [*rules])

    said = said_by(capsys, "stop", "mnist", "--dry-run")

    assert UNKNOWN in said
    assert "create localsubjectaccessreviews" in said
