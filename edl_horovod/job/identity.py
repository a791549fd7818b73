"""The identity of a worker."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    """The host and slot of a worker, by the names that its launcher uses."""

    host: str
    slot: int
    """The slot on its host; under horovodrun and mpirun the local rank."""
    coordinator_host: str = ""
    """Empty for a job without a coordinator."""
    training: str = ""
    """Distinguishes the federated training of a party from others; else empty."""

    @property
    def label(self) -> str:
        """Host and slot, for people."""
        return f"{self.host}:{self.slot}"
