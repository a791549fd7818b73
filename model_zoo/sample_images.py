"""Real pictures to try the zoo on, from what scikit-learn brings along; nothing is downloaded.

    python model_zoo/sample_images.py digits FOLDER   # 1,797 handwritten digits, 28x28 grey
    python model_zoo/sample_images.py patches FOLDER  # 32x32 pieces of two photographs, 2 classes

Both write `FOLDER/train/<class>/*.png` and `FOLDER/test/<class>/*.png`. The digits have MNIST's
shape (they are 8x8 scans, enlarged). The patches have CIFAR-10's shape and no more than that: the
class says from which of the two photographs (a temple, a flower) a piece was cut.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import PIL.Image
from sklearn.datasets import load_digits, load_sample_images

HELD_OUT_EVERY = 5
PATCH = 32


def digits():
    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        grey = PIL.Image.fromarray((image * (255 / 16)).astype(np.uint8))
        yield number, int(label), grey.resize((28, 28), PIL.Image.Resampling.BILINEAR)


def patches():
    number = 0
    for label, photograph in enumerate(load_sample_images().images):
        height, width, _ = photograph.shape
        for top in range(0, height - PATCH + 1, PATCH):
            for left in range(0, width - PATCH + 1, PATCH):
                piece = photograph[top : top + PATCH, left : left + PATCH]
                yield number, label, PIL.Image.fromarray(piece)
                number += 1


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["digits", "patches"])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.folder.exists():
        parser.error(f"{args.folder} exists; remove it, or name another folder")
    pictures = {"digits": digits, "patches": patches}[args.kind]()
    count = 0
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sample-", dir=args.folder.parent) as work:
        made = Path(work) / "made"
        for number, label, image in pictures:
            part = "test" if number % HELD_OUT_EVERY == 0 else "train"
            folder = made / part / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{number:05d}.png")
            count += 1
        made.rename(args.folder)
    print(f"{count} pictures in {args.folder}")


if __name__ == "__main__":
    main()
