"""The log file of a process."""

import logging

from edl_horovod.job import events, log


def test_a_full_disk_loses_lines_and_ends_nothing(tmp_path):
    path = tmp_path / "launcher.log"
    path.symlink_to("/dev/full")

    with log.logging_to(path, "launcher"):
        logging.getLogger("edl_horovod.test").warning("lost")


def test_warnings_about_the_result_are_events_once_a_job(tmp_path):
    path = tmp_path / "events.jsonl"
    for worker in ("host:0", "host:1"):
        with events.EventLog(path, worker) as file, log.warnings_as_events(file):
            logging.getLogger("edl_horovod.records.sources.csv_format").warning("left out %d", 3)
            logging.getLogger("edl_horovod.frameworks.keras.graph").warning("no loss")
            logging.getLogger("edl_horovod.frameworks.keras.graph").info("traced")
            logging.getLogger("edl_horovod.ring.loop").warning("the ring broke")
            logging.getLogger("edl_horovod.records.files.remote").warning("try 1 of 5 failed")
            logging.getLogger("tensorflow").warning("deprecated")

    logged = [entry.event for entry in events.read(path)]
    assert logged == [events.LogEvent(message="left out 3"), events.LogEvent(message="no loss")]
