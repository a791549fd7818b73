"""From the user's own files to RecordIO: `prepare_data_for_a_single_file` over all of them."""

from edl_horovod.preparation.job import PrepareResult, describe, run

__all__ = ["PrepareResult", "describe", "run"]
