"""The user's `PredictionOutputsProcessor`: what is done with predictions beside writing them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["Processor"]


class Processor:
    """One processor of a rank, made once and called for each batch."""

    def __init__(self, kind: type, loaded: LoadedSpec) -> None:
        """Make the user's object.

        Raises:
            UserCodeError: It raised something.
        """
        self._zoo = loaded.zoo
        self._where = f"{kind.__name__} of {loaded.source_file}"
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
        available = {"predictions": predictions, "worker_id": worker_id, "record_ids": record_ids}
        with user_code(f"process of {self._where}", root=self._zoo):
            call_declared(self._object.process, available)
