"""Federated trainings: the plans of a coordinator without ranks, and of a party that joins it."""

import ipaddress
import socket
import sys
from dataclasses import replace
from pathlib import Path

from edl_horovod.config import tasks
from edl_horovod.config.schema import MAX_PORT, JobConfig
from edl_horovod.coordinator import tokens
from edl_horovod.coordinator.tokens import PartyToken
from edl_horovod.errors import ConfigError
from edl_horovod.job import earlier
from edl_horovod.job.directory import JobDir, with_job_dir
from edl_horovod.models import framework_name
from edl_horovod.supervisor.plan import Command, LaunchPlan, local_worker


def plan_coordinator(config: JobConfig) -> LaunchPlan:
    """Plan the coordinator of a federated training.

    Raises:
        ConfigError: It would listen to any network without encryption.
    """
    host, _, port = config.federated.listen.rpartition(":")
    if config.federated.unencrypted and _is_unspecified(host):
        raise ConfigError(
            "federated.listen must name one address of this machine, because parties could join"
            " from any network otherwise.",
            received={"federated.listen": config.federated.listen, "federated.unencrypted": True},
            hint="Give the address of this machine in the VPN.",
        )
    federated, job_dir = config.federated, JobDir.of(config)
    config = replace(
        config,
        launch=replace(config.launch, np=len(federated.parties)),
        elastic=replace(config.elastic, min_np=federated.least_parties, max_np=None),
    )
    argv: tuple[str, ...] = (sys.executable, "-m", "edl_horovod.coordinator")
    argv += ("--job-dir", str(job_dir))
    argv += ("--address", host, "--port", port)
    argv += ("--secret-file", str(job_dir.tokens / tokens.SECRET))
    if not federated.unencrypted:
        argv += ("--authority", str(job_dir.tokens / tokens.AUTHORITY))
    return LaunchPlan(
        config=config,
        job_dir=job_dir,
        hosts=dict.fromkeys(federated.parties, 1),
        coordinator=Command(argv=argv),
    )


def plan_party(config: JobConfig, address: str, token: PartyToken, token_file: Path) -> LaunchPlan:
    """Plan a party.

    Args:
        config: The settings of its training.
        address: HOST:PORT of the coordinator.
        token: The party's token.
        token_file: Its file.

    Raises:
        ConfigError: The token is for encrypted traffic and the settings are not, or the reverse; or
            the settings do not fit.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise ConfigError(
            f"--join must be HOST:PORT, with a port from 1 to {MAX_PORT}.",
            received={"--join": address},
        )
    _require_same_encryption(config, token, token_file)
    config = framework_name.with_framework(earlier.with_checkpoint_lanes(with_job_dir(config)))
    tasks.check_start(config)
    job_dir = JobDir.of(config)
    variables = {"EDL_HOST": token.party, "EDL_PARTY_TOKEN": str(token_file.absolute())}
    variables["EDL_FEDERATED_TRAINING"] = token.training
    # Without encryption, sums take the same way as the coordinator's messages: the VPN.
    is_bare = config.federated.unencrypted
    variables["HOROVOD_GLOO_IFACE"] = _interface_towards(host, int(port)) if is_bare else "lo"
    return LaunchPlan(
        config=config,
        job_dir=job_dir,
        hosts={token.party: 1},
        worker=local_worker(config, job_dir, variables),
        join=address,
    )


def refuse_party(config: JobConfig) -> None:
    """Refuse to train a party alone, as `edl resume` of its directory would.

    Raises:
        ConfigError: The settings are those of a party.
    """
    if config.federated.party:
        raise ConfigError(
            "This is a party of a federated training, which only edl party starts.",
            received={"federated.party": config.federated.party},
            hint="Repeat the command edl party of this party, with resume=auto to go on.",
        )


def _require_same_encryption(config: JobConfig, token: PartyToken, token_file: Path) -> None:
    """Require that a party and its coordinator agree on encryption.

    Raises:
        ConfigError: They do not.
    """
    is_bare = config.federated.unencrypted
    if is_bare == (token.identity is None):
        return
    other = "without" if token.identity is None else "with"
    raise ConfigError(
        f"The coordinator has made the token of party {token.party!r} for a training {other}"
        " encryption.",
        received={"--party-token": token_file, "federated.unencrypted": is_bare},
        hint="Set federated.unencrypted=true at the coordinator and at all parties if a VPN"
        " connects them, or nowhere; edl federate makes new tokens when it starts.",
    )


def _is_unspecified(host: str) -> bool:
    """Whether a host stands for all addresses of this machine."""
    try:
        # Many texts stand for 0.0.0.0, such as 0 and 0x0.
        addresses = [entry[4][0] for entry in socket.getaddrinfo(host, None)]
    except OSError:
        return False  # The coordinator says that it cannot listen there.
    return any(
        ipaddress.ip_address(str(address).partition("%")[0]).is_unspecified for address in addresses
    )


def _interface_towards(host: str, port: int) -> str:
    """The network interface from which this machine reaches a host; nothing is sent.

    Raises:
        ConfigError: There is none.
    """
    import psutil  # Every environment that can run a worker has it.

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            source = probe.getsockname()[0].partition("%")[0]
    except OSError as error:
        raise ConfigError(
            f"This machine cannot reach the coordinator: {error}.",
            received={"--join": f"{host}:{port}"},
            hint="Check the address, and that the VPN is up.",
        ) from error
    for name, addresses in psutil.net_if_addrs().items():
        if source in [entry.address.partition("%")[0] for entry in addresses]:
            return str(name)
    raise ConfigError(
        "No network interface of this machine has the address from which it reaches the"
        " coordinator.",
        received={"--join": f"{host}:{port}", "address": source},
    )
