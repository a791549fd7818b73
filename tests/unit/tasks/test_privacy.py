"""The account of a party's privacy: its formula, and what counts when rounds are lost or redone."""

import math
import shutil

import pytest

from edl_horovod.config.schema import AdversarialConfig, FederatedConfig, PrivacyConfig
from edl_horovod.errors import ConfigError, JobFailed, OutputError, PartyError
from edl_horovod.job import earlier, privacy_accounts
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import PrivacyEvent, read
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.privacy_accounts import Spent
from edl_horovod.tasks.privacy import delta_of, epsilon_of
from tests.jobs import training
from tests.unit.tasks.ranks import federated_training

RECORDS, BATCH = 60, 12
PASS = RECORDS // BATCH
"""Local steps of a pass."""
PRIVATE = {"clip": 1.0, "noise": 1.0}
ADVERSARIAL = AdversarialConfig(method="fgsm", epsilon=0.1)


def epsilon_after(passes, noise=2.0, delta=1e-5):
    return epsilon_of(math.sqrt(passes) / noise, delta)


# From dp-accounting 0.6.0, in an environment of its own:
#     event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), passes)
#     PLDAccountant(value_discretization_interval=1e-5).compose(event).get_epsilon(delta)
ORACLE = [
    (0.5, 1, 1e-5, 9.99726),
    (1.0, 1, 1e-5, 4.37718),
    (1.0, 10, 1e-5, 17.85659),
    (2.0, 5, 1e-5, 4.98331),
    (2.0, 5, 1e-7, 6.06676),
    (4.0, 20, 1e-5, 4.98331),
    (4.0, 3, 1e-3, 1.13852),
    (8.0, 100, 1e-6, 6.31206),
    (20.0, 1, 1e-5, 0.16004),
]


@pytest.mark.parametrize(("noise", "passes", "delta", "epsilon"), ORACLE)
def test_epsilon_is_that_of_another_accountant(noise, passes, delta, epsilon):
    assert epsilon_after(passes, noise, delta) == pytest.approx(epsilon, rel=2e-4)


@pytest.mark.parametrize(
    ("noise", "epsilons"),
    [
        (1, {1: 4.38, 5: 11.48, 10: 17.86}),
        (2, {1: 1.99, 5: 4.98, 10: 7.51}),
        (4, {1: 0.93, 5: 2.26, 10: 3.34, 20: 4.98}),
        (8, {1: 0.43, 5: 1.05, 10: 1.53}),
    ],
)
def test_epsilon_is_that_of_the_page(noise, epsilons):
    for passes, epsilon in epsilons.items():
        assert round(epsilon_after(passes, noise), 2) == epsilon


@pytest.mark.parametrize("mu", [1e-7, 1e-3, 0.1, 1.0, 7.0, 50.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_epsilon_is_the_least_that_keeps_delta(mu, delta):
    epsilon = epsilon_of(mu, delta)
    assert delta_of(epsilon, mu) <= delta * (1 + 1e-6)
    if epsilon:
        assert delta_of(epsilon * (1 - 1e-5), mu) > delta


@pytest.fixture
def run(run):
    """Run a party for some rounds: `run("federated.rounds=4", until=2)`."""

    def run_party(*settings, training="a", until=0):
        party = [f"train.batch_size={BATCH}", "federated.party=north", "model_def=line"]
        party += ["federated.privacy.clip=1.0", "federated.privacy.noise=2.0"]
        party += ["resume=auto", "overwrite=true"]
        identity = WorkerIdentity(host="north", slot=0, training=training)
        run("train", *party, *settings, data=f"numbers:{RECORDS}", until=until, identity=identity)

    return run_party


@pytest.fixture
def accounts(tmp_path):
    """The events of the account so far."""

    def read_accounts():
        events = [recorded.event for recorded in read(tmp_path / "events.jsonl")]
        return [event for event in events if isinstance(event, PrivacyEvent)]

    return read_accounts


def test_each_round_of_passes_has_an_event_with_the_epsilon_so_far(run, accounts):
    run("federated.rounds=3", "federated.local_epochs=2")
    assert [event.step for event in accounts()] == [1, 2, 3]
    assert [event.passes for event in accounts()] == [2, 4, 6]
    for event in accounts():
        assert event.epsilon == pytest.approx(epsilon_after(event.passes))
        assert event.delta == 1e-5


@pytest.mark.parametrize(
    ("steps", "passes"),
    [
        (1, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3]),
        (2, [1, 1, 2, 2, 2, 3, 3, 4]),
        (PASS, [1, 2, 3]),
        (PASS + 2, [2, 3, 5, 6]),
    ],
)
def test_a_record_counts_in_the_passes_that_have_begun(run, accounts, steps, passes):
    run(f"federated.rounds={len(passes)}", f"federated.local_steps={steps}")
    assert [event.passes for event in accounts()] == passes


@pytest.mark.long(after=1)
@pytest.mark.parametrize("steps", [1, 3, PASS])
def test_a_party_that_comes_back_goes_on_with_its_account(run, accounts, tmp_path, steps):
    run("federated.rounds=9", f"federated.local_steps={steps}")
    whole = {event.step: event.epsilon for event in accounts()}
    again = ["federated.rounds=9", f"federated.local_steps={steps}", "checkpoint.every_steps=1"]
    again += [f"job_dir={tmp_path}/other", f"output={tmp_path}/resumed"]
    run(*again, until=4)
    run(*again)
    resumed = accounts()[9:]
    assert [event.step for event in resumed] == list(range(1, 10))
    for event in resumed:
        assert event.epsilon >= whole[event.step] * (1 - 1e-9)
    assert resumed[-1].passes <= accounts()[8].passes + 1


def test_a_round_that_is_computed_again_counts_again(run, accounts):
    # Without a checkpoint: the party begins where it did before.
    run("federated.rounds=5", "checkpoint.every_seconds=0", until=3)
    run("federated.rounds=5", "checkpoint.every_seconds=0")
    assert [event.step for event in accounts()] == [1, 2, 3, 1, 2, 3, 4, 5]
    assert [event.passes for event in accounts()] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_noise_may_change_and_each_pass_counts_with_its_own(run, accounts):
    run("federated.rounds=4", "checkpoint.every_steps=1", until=2)
    run("federated.rounds=4", "federated.privacy.noise=5")
    mu = math.sqrt(2 / 2.0**2 + 2 / 5.0**2)
    assert accounts()[-1].epsilon == pytest.approx(epsilon_of(mu, 1e-5))


def test_a_training_with_another_clip_or_none_cannot_go_on(run):
    run("federated.rounds=4", "checkpoint.every_steps=1", until=2)
    for settings in (
        ["federated.privacy.clip=2"],
        ["federated.privacy.clip=0", "federated.privacy.noise=0"],
    ):
        with pytest.raises(ConfigError, match=r"privacy\.clip"):
            run("federated.rounds=4", *settings)


def test_a_party_ends_before_the_round_that_would_exceed_its_epsilon(run, accounts, tmp_path):
    limit = epsilon_after(3)
    with pytest.raises(PartyError, match=r"'north'.*round 4.*max_epsilon"):
        run("federated.rounds=5", f"federated.privacy.max_epsilon={limit}")
    assert [event.passes for event in accounts()] == [1, 2, 3]
    assert not (tmp_path / "out").exists()
    # Coming back does not help, and a larger limit does.
    with pytest.raises(PartyError, match="max_epsilon"):
        run("federated.rounds=5", f"federated.privacy.max_epsilon={limit}")
    run("federated.rounds=5", "federated.privacy.max_epsilon=100")


def test_another_training_has_an_account_of_its_own(run, accounts, tmp_path):
    run("federated.rounds=2")
    run("federated.rounds=2", f"job_dir={tmp_path}/other", training="b")
    assert [event.passes for event in accounts()] == [1, 2, 1, 2]


def test_a_training_between_two_others_does_not_make_a_party_forget(run, accounts, tmp_path):
    for name in ("a", "b", "a"):
        run("federated.rounds=1", training=name)
        shutil.rmtree(tmp_path / "job" / "checkpoints")
    assert [event.passes for event in accounts()] == [1, 1, 2]


@pytest.mark.parametrize(
    ("party", "resume", "is_kept"),
    [("", "never", False), ("", "auto", True), ("north", "never", True), ("north", "auto", True)],
)
def test_only_a_new_training_of_one_party_alone_forgets_the_account(
    tmp_path, party, resume, is_kept
):
    federated = FederatedConfig(rounds=2, party=party, privacy=PrivacyConfig(clip=1.0, noise=1.0))
    config = training(
        BATCH, federated=federated, resume=resume, overwrite=True, job_dir=str(tmp_path)
    )
    accounts = JobDir.of(config).privacy
    privacy_accounts.write(accounts, [Spent("", 3, 0.75)])
    earlier.settle_checkpoints(config, JobDir.of(config))
    assert accounts.exists() == is_kept


def test_a_new_training_of_one_party_alone_keeps_the_accounts_of_others(run, accounts, tmp_path):
    run("federated.rounds=2")
    config = training(BATCH, overwrite=True, job_dir=str(tmp_path / "job"))
    file = JobDir.of(config).privacy
    of_party = privacy_accounts.read(file)
    privacy_accounts.write(file, [Spent("", 3, 0.75), *of_party])
    for _ in range(2):
        earlier.settle_checkpoints(config, JobDir.of(config))
        assert privacy_accounts.read(file) == of_party
    run("federated.rounds=1")
    assert accounts()[-1].passes == 3


def test_a_damaged_account_is_left_for_a_training_with_privacy(tmp_path):
    config = training(BATCH, overwrite=True, job_dir=str(tmp_path))
    file = JobDir.of(config).privacy
    file.write_text("{")
    earlier.settle_checkpoints(config, JobDir.of(config))
    assert file.read_text() == "{"


@pytest.mark.parametrize(
    "text", ["", "{", '{"training": "a", "passes": 3}', '{"trainings": [{}]}', "[]"]
)
def test_a_damaged_account_ends_the_party(run, tmp_path, text):
    run("federated.rounds=4", "checkpoint.every_steps=1", until=2)
    (tmp_path / "job" / "privacy.json").write_text(text)
    with pytest.raises(JobFailed, match=r"privacy\.json"):
        run("federated.rounds=4")


def test_a_party_that_cannot_write_its_account_computes_nothing(run, accounts, tmp_path):
    (tmp_path / "job" / "privacy.json").mkdir(parents=True)
    with pytest.raises(OutputError):
        run("federated.rounds=4")
    assert accounts() == []


@pytest.mark.parametrize(
    ("privacy", "settings", "key"),
    [
        ({"clip": 1.0}, {}, "federated.privacy.noise"),
        ({"noise": 1.0}, {}, "federated.privacy.clip"),
        ({"clip": float("inf"), "noise": 1.0}, {}, "federated.privacy.clip"),
        ({"clip": 1.0, "noise": float("nan")}, {}, "federated.privacy.noise"),
        ({"clip": -1.0, "noise": 1.0}, {}, "federated.privacy.clip"),
        ({**PRIVATE, "delta": 0.0}, {}, "federated.privacy.delta"),
        ({**PRIVATE, "delta": 1.0}, {}, "federated.privacy.delta"),
        ({"max_epsilon": 1.0}, {}, "federated.privacy.max_epsilon"),
        ({"delta": 1e-6}, {}, "federated.privacy.delta"),
        (PRIVATE, {"rounds": 0}, "federated.privacy.clip"),
        (PRIVATE, {"train": {"compile": True}}, "train.compile"),
        (PRIVATE, {"train": {"class_weight": [1.0, 2.0]}}, "train.class_weight"),
        (PRIVATE, {"train": {"precision": "mixed_float16"}}, "train.precision"),
        (PRIVATE, {"sections": {"adversarial": ADVERSARIAL}}, "adversarial.method"),
    ],
)
def test_settings_that_keep_no_promise_are_refused(privacy, settings, key):
    with pytest.raises(ConfigError, match=key):
        federated_training(**{"rounds": 2, **settings}, privacy=privacy)
