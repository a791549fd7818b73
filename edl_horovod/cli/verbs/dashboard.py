"""`edl dashboard`: serve a job's page."""

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import add_cluster_flags, is_job_dir, jobs_of
from edl_horovod.displays.page import address
from edl_horovod.job import log
from edl_horovod.job.directory import JobDir

__all__ = ["run"]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `dashboard`.
        summary: One line about it.
        argv: What follows it.
    """
    usage = "[--host HOST] [--port PORT] [-n NAMESPACE] [--context CONTEXT] [--debug] JOB"
    parser = VerbParser(verb, summary=summary, usage=usage)
    parser.add_job()
    parser.add_argument(
        "--host", default=address.HOST, help="address to listen on; by itself this machine alone"
    )
    parser.add_argument(
        "--port", type=int, default=address.PORT, help="port to listen on; 0 takes a free one"
    )
    add_cluster_flags(parser)
    flags = parser.parse_all(argv)
    # What these two import comes with an extra.
    from edl_horovod.displays.page import server
    from edl_horovod.displays.page.sources import ClusterSource, DirectorySource, Source

    log.setup("edl", level="warning")
    with contextlib.ExitStack() as opened:
        source: Source
        if is_job_dir(flags.job):
            source = DirectorySource(JobDir(Path(flags.job)))
        else:
            source = ClusterSource(opened.enter_context(jobs_of(flags)), flags.job)
        listening = opened.enter_context(address.listen(flags.host, flags.port))
        # SIGTERM ends this command as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(address.url(flags.host, listening.getsockname()[1]), flush=True)
        if flags.host not in _LOOPBACK:
            print(
                "Whoever reaches this port can read the page; nobody is asked for a password.",
                file=sys.stderr,
            )
        server.serve(source, listening, host=flags.host)
    return 0
