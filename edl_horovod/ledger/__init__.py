"""The ledger: which record went into which step on which rank, and the proof that none was lost."""

from edl_horovod.ledger.files import LedgerFile, StepLoss, read, read_losses
from edl_horovod.ledger.proof import Proof, Violation, check, prove

__all__ = ["LedgerFile", "Proof", "StepLoss", "Violation", "check", "prove", "read", "read_losses"]
