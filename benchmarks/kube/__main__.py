"""`python -m benchmarks.kube`: host discovery with many pods, the coordinator with many workers."""

import sys

from benchmarks.kube import scale
from benchmarks.report import Page, Section, main

PAGE = Page(
    title="Benchmarks of the Kubernetes half",
    module="benchmarks.kube",
    introduction="How host discovery and the coordinator scale.",
    sections=[
        Section(
            title="Host discovery",
            method="""\
Discovery is the program `edl_horovod.cluster.pod.discovery`, over HTTP, with the API server of
`tests/kube`, which runs in the measuring process on the same machine. A pod is some 4 KB of JSON.
The time begins before the pod's status is changed in the server and ends when the hosts file that
shows it was read; a change's share of the server is in it.""",
            parts={"discovery": scale.measure_discovery},
        ),
        Section(
            title="Coordinator",
            method="""\
The coordinator is the program `edl_horovod.coordinator`. Its workers are sockets of one other
process that speak the worker's protocol: they leave their ring at once when told and report every
ring as formed, so neither a training step nor Horovod's rendezvous is in the time. It begins with
the change and ends when the last worker has read its place in the new ring.""",
            parts={"coordinator": scale.measure_coordinator},
        ),
    ],
)


if __name__ == "__main__":
    sys.exit(main(PAGE))
