"""One export of a SELECT into Parquet: rows per second."""

import sys
import time

from benchmarks.common import side_parser, write_numbers
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.export import export


def main() -> int:
    """Export; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--select", required=True)
    args = parser.parse_args()
    began = time.perf_counter()
    with open_engine(args.url) as engine:
        table = export(engine, args.select, args.place / "rows", nulls={}, tell=print)
    write_numbers(args.place, {"rate": table.num_rows / (time.perf_counter() - began)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
