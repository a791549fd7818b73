"""The coordinator's process: `python -m edl_horovod.coordinator --job-dir DIR`.

Ends with the job: `result.json` in the job's directory then says how. Also ends when its standard
input does, so that it never outlives a launcher that was killed.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from edl_horovod import log as logs
from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.coordinator.server import Coordinator, CoordinatorSettings
from edl_horovod.data.plan import choose_num_lanes
from edl_horovod.events import EventLog
from edl_horovod.lifeline import end_with_parent

log = logging.getLogger("edl_horovod.coordinator")  # Run as a program, it is called __main__.


def settings_of(config: JobConfig, job_dir: Path, address: str) -> CoordinatorSettings:
    """A job's settings, as far as its coordinator needs them."""
    lanes = choose_num_lanes(config.train.batch_size, config.data_plan.lanes)
    return CoordinatorSettings(
        job_dir=job_dir,
        address=address,
        secret=(job_dir / "secret").read_bytes(),
        num_start=config.launch.np,
        min_np=config.elastic.min_np,
        max_np=min(config.elastic.max_np or lanes, lanes),
        wait_seconds=config.elastic.wait_seconds,
        forming_seconds=config.elastic.forming_seconds,
    )


def main() -> int:
    """Run one job's coordinator; returns the process' exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--address", default="127.0.0.1", help="address that the workers can reach")
    args = parser.parse_args()
    config = resolved.load(args.job_dir / "config.yaml")
    logs.setup("coordinator", level=config.log_level)
    end_with_parent()
    with EventLog(args.job_dir / "events.jsonl", "coordinator") as events:
        coordinator = Coordinator(settings_of(config, args.job_dir, args.address), events)
        result = asyncio.run(coordinator.run())
    log.info("job %s", result["state"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
