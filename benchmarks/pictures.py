"""Write PNG files to prepare: pieces of two photographs, of the size that classifiers are fed."""

import sys
from pathlib import Path

import numpy as np
import PIL.Image
from sklearn.datasets import load_sample_images

from benchmarks.common import side_parser, write_numbers

SIDE = 224
NUM_FOLDERS = 10


def main() -> int:
    """Write the files; returns the exit code."""
    parser = side_parser(__doc__.partition("\n")[0])
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    args = parser.parse_args()
    photographs = load_sample_images().images
    random = np.random.default_rng(0)
    for number in range(args.number):
        photograph = photographs[number % len(photographs)]
        top, left = (int(random.integers(0, size - SIDE)) for size in photograph.shape[:2])
        piece = photograph[top : top + SIDE, left : left + SIDE]
        folder = args.pictures / str(number % NUM_FOLDERS)
        folder.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(piece).save(folder / f"{number:05d}.png", compress_level=1)
    write_numbers(args.place, {"num_pictures": args.number})
    return 0


if __name__ == "__main__":
    sys.exit(main())
