"""Write pictures and labels as NumPy's arrays: what all sides with PyTorch train on."""

import sys

import numpy as np

from benchmarks.common import side_parser, write_numbers

FILE_NAME = "pictures.npz"
NUM_CLASSES = 10


def main() -> int:
    """Write the file; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--num-records", type=int, required=True)
    parser.add_argument("--shape", type=int, nargs=3, required=True, help="of a picture")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    args.data.mkdir()
    images = random.integers(0, 256, (args.num_records, *args.shape), np.uint8)
    labels = random.integers(0, NUM_CLASSES, args.num_records)
    np.savez(args.data / FILE_NAME, image=images, label=labels)
    write_numbers(args.place, {"num_records": args.num_records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
