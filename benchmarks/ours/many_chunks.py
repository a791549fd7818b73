"""Write RecordIO files of many small chunks."""

import shutil
import sys

from benchmarks.common import side_parser, write_numbers
from edl_horovod.records.sources.recordio import Writer


def main() -> int:
    """Write the files; returns the exit code."""
    parser = side_parser(__doc__)
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--chunks", type=int, required=True, help="of each file")
    args = parser.parse_args()
    args.data.mkdir()
    first = args.data / "part-0000.recordio"
    with Writer(first, chunk_bytes=1) as writer:
        for number in range(args.chunks):
            writer.write(number.to_bytes(8, "little"))
    # An index looks at each file by itself, so that they may be the same.
    for number in range(1, args.files):
        shutil.copyfile(first, args.data / f"part-{number:04d}.recordio")
    write_numbers(args.place, {"num_chunks": args.files * args.chunks})
    return 0


if __name__ == "__main__":
    sys.exit(main())
