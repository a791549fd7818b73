"""`python -m edl_horovod.preparation.worker`: one process of a pool on one machine.

It reads JSON lines from its standard input (`GroupSettings`, then groups, then null) and writes
JSON lines to its standard output: the digest of the model code, finished groups, an error. Its one
argument is the descriptor of its position file. Output of the user's code goes to stderr. If the
input ends without null, the parent has died, and this process exits at once.
"""

import functools
import json
import os
import queue
import sys
import threading
from dataclasses import asdict
from typing import Any, BinaryIO

from edl_horovod.errors import EdlError, error_kind
from edl_horovod.preparation.groups import Group, GroupSettings, prepare_group, source_digest
from edl_horovod.preparation.pools import write_position


def main() -> int:
    """Process groups until the input ends; return the exit code."""
    inbox_file, outbox = _take_standard_streams()
    position_file = int(sys.argv[1])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(inbox_file, inbox), name="inbox", daemon=True).start()

    def send(answer: Any) -> None:
        os.write(outbox, json.dumps(answer).encode() + b"\n")

    try:
        settings = GroupSettings(**inbox.get())
        send({"source": source_digest(settings.model_zoo, settings.model_def)})
        while (message := inbox.get()) is not None:
            group = Group(**message)
            done = prepare_group(
                settings, group, functools.partial(write_position, position_file, group.number)
            )
            send({"done": asdict(done)})
    except EdlError as e:
        send({"error": error_kind(e), "message": str(e)})
        return e.exit_code
    return 0


def _take_standard_streams() -> tuple[BinaryIO, int]:
    """Take over stdin and stdout; the user's code gets an empty stdin, and prints to stderr."""
    inbox = os.fdopen(os.dup(0), "rb")
    outbox = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return inbox, outbox


def _receive(file: BinaryIO, inbox: "queue.SimpleQueue[Any]") -> None:
    for line in file:
        message = json.loads(line)
        inbox.put(message)
        if message is None:
            return
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
