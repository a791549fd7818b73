"""`edl dashboard`: serve a page that shows a job."""

import signal
import sys
from collections.abc import Sequence

from edl_horovod.cli.jobs import client_of, job_parser
from edl_horovod.displays.page import address
from edl_horovod.job import log

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl dashboard`."""
    parser = job_parser(verb, summary, "[--host HOST] [--port PORT]")
    parser.add_argument(
        "--host", default=address.HOST, help="address to listen on; by itself this machine alone"
    )
    parser.add_argument(
        "--port", type=int, default=address.PORT, help="port to listen on; 0 takes a free one"
    )
    flags = parser.parse_all(argv)
    log.setup("edl", level="warning")
    with (
        client_of(flags) as client,
        client.dashboard(flags.job, host=flags.host, port=flags.port) as dashboard,
    ):
        # SIGTERM ends this command as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(dashboard.url, flush=True)
        if dashboard.is_public:
            print(
                "Anyone who can reach this port can read the page: it asks for no password.",
                file=sys.stderr,
            )
        dashboard.serve()
    return 0
