"""The ledger: which record went into which step on which rank, and the proof that none was lost."""

from edl_horovod.ledger.check import Proof, Violation, check
from edl_horovod.ledger.curve import StepLoss, read_losses
from edl_horovod.ledger.files import LedgerFile, read
from edl_horovod.ledger.prove import prove

__all__ = [
    "LedgerFile",
    "Proof",
    "StepLoss",
    "Violation",
    "check",
    "prove",
    "read",
    "read_losses",
]
