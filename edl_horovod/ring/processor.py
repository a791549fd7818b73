"""The user's `PredictionOutputsProcessor`: what is done with predictions beside writing them."""

import inspect
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["Processor", "find_processor"]

CLASS_NAME = "PredictionOutputsProcessor"


class Processor:
    """One processor of a rank, made once and called for each batch."""

    def __init__(self, kind: type, loaded: LoadedSpec) -> None:
        """Make the user's object.

        Args:
            kind: The user's class; made without arguments.
            loaded: The spec of the same file.

        Raises:
            UserCodeError: It has no `process`, or raised something.
        """
        self._zoo = loaded.zoo
        self._where = f"{CLASS_NAME} of {loaded.source_file}"
        if not callable(getattr(kind, "process", None)):
            raise UserCodeError(
                f"{self._where} must have a method process(self, predictions, worker_id). "
                f"Received: a class with {', '.join(_public(kind)) or 'no method'}."
            )
        with user_code(f"Making {self._where}", root=loaded.zoo):
            self._object = call_declared(kind, {})

    def process(
        self, predictions: Any, *, worker_id: int, record_ids: npt.NDArray[np.int64]
    ) -> None:
        """Hand over a batch, with what the user's method declares.

        Args:
            predictions: What the model returned.
            worker_id: Rank of this worker in the ring.
            record_ids: Numbers of the records in the input, in the order of the predictions.

        Raises:
            UserCodeError: It raised something.
        """
        given = {
            "predictions": predictions,
            "worker_id": worker_id,
            "record_ids": record_ids,
        }
        with user_code(f"process of {self._where}", root=self._zoo):
            call_declared(self._object.process, given)


def find_processor(loaded: LoadedSpec) -> Processor | None:
    """The processor of the file that holds a spec; None where there is none.

    Args:
        loaded: The spec.

    Raises:
        UserCodeError: The class cannot be made, or has no `process`.
    """
    kind = getattr(loaded, "outputs_processor", None) or vars(loaded.module).get(CLASS_NAME)
    return Processor(kind, loaded) if inspect.isclass(kind) else None


def _public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]
