"""`edl logs`: what the pods of a job wrote."""

from collections.abc import Sequence

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import WaitDisplay, add_cluster_flags, add_name, detaching, jobs_of

__all__ = ["run"]


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `logs`.
        summary: One line about it.
        argv: What follows it.
    """
    usage = "[-f] [--rank R | --pod POD] [--tail N] [-n NAMESPACE] [--context CONTEXT] NAME"
    parser = VerbParser(verb, summary=summary, usage=usage)
    add_name(parser, verb)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--rank", type=int, metavar="R", help="only the pod that has this rank now")
    one.add_argument("--pod", default="", metavar="POD", help="only this pod")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each pod")
    add_cluster_flags(parser)
    flags = parser.parse_all(argv)
    is_one = flags.rank is not None or bool(flags.pod)
    with jobs_of(flags) as jobs, detaching(verb, argv):
        job = jobs.status(flags.name)
        if all(pod.state == "pending" for pod in job.pods):
            WaitDisplay(flags.name)(job)  # Nothing has been written yet; this is why.
        for line in jobs.logs(
            flags.name, rank=flags.rank, pod=flags.pod, follow=flags.follow, tail=flags.tail
        ):
            print(line.text if is_one else f"[{line.pod}] {line.text}", flush=True)
    return 0
