"""`edl logs`: what the processes of a job wrote."""

from collections.abc import Sequence

from edl_horovod.cli.jobs import StatusDisplay, client_of, detaching, job_parser

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl logs`."""
    parser = job_parser(verb, summary, "[-f] [--rank R | --worker WORKER] [--tail N]")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    only_one = parser.add_mutually_exclusive_group()
    only_one.add_argument(
        "--rank", type=int, metavar="R", help="only the worker that has this rank now"
    )
    only_one.add_argument(
        "--worker",
        default="",
        metavar="WORKER",
        help="only this pod; on this machine worker-0, launcher, coordinator, ...",
    )
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each")
    flags = parser.parse_all(argv)
    is_one = flags.rank is not None or bool(flags.worker)
    with client_of(flags) as client, detaching(verb, argv):
        status = client.status(flags.job, is_brief=True)
        pods = status.in_cluster.pods if status.in_cluster is not None else None
        if pods is not None and all(pod.state == "pending" for pod in pods):
            StatusDisplay(flags.job)(status)  # Nothing has been written yet; this is why.
        for line in client.logs(
            flags.job, rank=flags.rank, worker=flags.worker, follow=flags.follow, tail=flags.tail
        ):
            print(line.text if is_one else f"[{line.source}] {line.text}", flush=True)
    return 0
