"""The plans of a federated training: a coordinator without ranks, and one rank of a party."""

import socket
from datetime import timedelta

import psutil
import pytest

from edl_horovod.cli.main import main
from edl_horovod.config.schema import FederatedConfig
from edl_horovod.coordinator import tokens
from edl_horovod.errors import ConfigError
from edl_horovod.launch.party import plan_party
from edl_horovod.launch.target import find
from tests.jobs import config_of, training


def coordinator(tmp_path, *settings):
    parties = "federated.parties=[north,south,west]"
    return config_of("federate", [f"job_dir={tmp_path}/fed", parties, *settings])


def party(tmp_path, join, *, unencrypted=False, is_encrypted=None, **federated):
    is_encrypted = not unencrypted if is_encrypted is None else is_encrypted
    tokens.issue(tmp_path / "tokens", ["north"], is_encrypted=is_encrypted)
    path = tmp_path / "tokens" / "north.token"
    token = tokens.read(path)
    settings = FederatedConfig(rounds=3, party=token.party, unencrypted=unencrypted, **federated)
    config = training(8, federated=settings, framework="keras")
    return plan_party(config, join, token, path)


def test_the_coordinator_waits_for_the_parties_and_has_no_workers(tmp_path):
    config = coordinator(tmp_path, "federated.listen=127.0.0.1:7100", "federated.quorum=1")
    plan = find("local").plan(config)
    assert plan.hosts == {"north": 1, "south": 1, "west": 1}
    assert plan.worker is plan.ring is None
    assert "--port 7100" in str(plan.coordinator)
    assert plan.config.elastic.min_np == 3


def test_a_party_has_one_worker_which_joins_by_its_token(tmp_path):
    plan = party(tmp_path, "127.0.0.1:7100")
    assert plan.coordinator is plan.ring is None
    assert plan.join == "127.0.0.1:7100"
    environment = plan.worker.environment
    assert environment["EDL_HOST"] == "north"
    token = tokens.read(tmp_path / "tokens" / "north.token")
    assert environment["EDL_FEDERATED_TRAINING"] == token.training
    assert environment["HOROVOD_GLOO_IFACE"] == "lo"
    assert token.secret not in str(plan.worker)


def test_between_machines_nothing_but_the_addresses_differs(tmp_path):
    plan = find("local").plan(coordinator(tmp_path, "federated.listen=0.0.0.0:7100"))
    assert "--address 0.0.0.0" in str(plan.coordinator)
    assert tokens.AUTHORITY in str(plan.coordinator)
    plan = party(tmp_path, "coordinator.invalid:7100", address="north.invalid:7101")
    assert plan.worker.environment["HOROVOD_GLOO_IFACE"] == "lo"


def test_without_encryption_the_coordinator_does_not_listen_to_all_networks(tmp_path):
    bare = "federated.unencrypted=true"
    plan = find("local").plan(coordinator(tmp_path, "federated.listen=10.0.0.1:7100", bare))
    assert "10.0.0.1" in str(plan.coordinator)
    assert tokens.AUTHORITY not in str(plan.coordinator)
    for host in ("0.0.0.0", "0", "0x0", "00.0.0.0"):
        with pytest.raises(ConfigError, match=r"federated.listen"):
            find("local").plan(coordinator(tmp_path, f"federated.listen={host}:7100", bare))


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_party_and_its_coordinator_must_agree_on_encryption(tmp_path, is_bare):
    with pytest.raises(ConfigError, match=r"party 'north'.*north\.token.*unencrypted"):
        party(tmp_path, "127.0.0.1:7100", unencrypted=is_bare, is_encrypted=is_bare)


def test_sums_take_the_interface_from_which_a_party_reaches_the_coordinator(tmp_path):
    addresses = {
        address.address: name
        for name, interface in psutil.net_if_addrs().items()
        for address in interface
        if address.family is socket.AF_INET
    }
    for address, name in addresses.items():
        plan = party(tmp_path, f"{address}:7100", unencrypted=True)
        # This machine reaches itself by the interface with the address, or by lo.
        assert plan.worker.environment["HOROVOD_GLOO_IFACE"] == name


def test_a_party_that_cannot_reach_the_coordinator_is_told_so(tmp_path):
    with pytest.raises(ConfigError, match=r"--join=.coordinator.invalid:7100"):
        party(tmp_path, "coordinator.invalid:7100", unencrypted=True)


def test_an_expired_certificate_is_named_with_its_party_and_file(tmp_path, capsys):
    tokens.issue(tmp_path, ["north"], lifetime=timedelta(hours=-1))
    path = str(tmp_path / "north.token")
    assert main(["party", "--join", "127.0.0.1:1", "--party-token", path]) == 2
    message = capsys.readouterr().err
    assert all(words in message for words in ("'north'", "expired", path))


def test_a_party_is_not_trained_alone(tmp_path):
    config = training(8, federated=FederatedConfig(rounds=3, party="north"))
    with pytest.raises(ConfigError, match=r"edl party"):
        find("local").plan(config)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["federated.min_parties=4"], "federated.min_parties"),
        (["launch=mpi"], "launch.kind"),
        (["federated.parties=[]"], "federated.min_parties"),
    ],
)
def test_settings_of_a_coordinator_that_do_not_fit(tmp_path, settings, key):
    with pytest.raises(ConfigError, match=key):
        coordinator(tmp_path, *settings)


def test_the_command_of_a_party_takes_a_file_of_settings_and_shows_its_plan(tmp_path, capsys):
    tokens.issue(tmp_path / "tokens", ["north"])
    file = tmp_path / "digits.yaml"
    file.write_text("defaults: [config, _self_]\nfederated: {rounds: 4}\nmodel_def: m\n")
    command = ["party", "--join", "127.0.0.1:7100", "--party-token"]
    command += [str(tmp_path / "tokens" / "north.token"), str(file), "data=d", "--dry-run"]
    command += [f"output={tmp_path}/model"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("rounds: 4", "EDL_HOST=north"))


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model_def=m", "data=d", "output=o"], "--join"),
        (["--join", "here", "federated.rounds=2"], "HOST:PORT"),
        (["--join", "127.0.0.1:65536", "federated.rounds=2"], "HOST:PORT"),
        (["--join", "127.0.0.1:1"], "federated.rounds"),
    ],
)
def test_what_a_command_of_a_party_lacks(tmp_path, words, message, capsys):
    tokens.issue(tmp_path, ["north"])
    if "--join" in words:
        words += ["--party-token", str(tmp_path / "north.token")]
        words += ["model_def=m", "data=d", f"output={tmp_path}/o"]
    assert main(["party", *words]) == 2
    assert message in capsys.readouterr().err
