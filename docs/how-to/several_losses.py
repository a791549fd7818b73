"""Train the GAN of the model zoo on a ring of two, and draw what it generates: `make gan`."""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import keras
import numpy as np
import PIL.Image

import edl_horovod

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
TRAIN = {"batch_size": 64, "epochs": 100, "learning_rate": 0.0005, "batch_norm": "synchronized"}
"""As on the page."""
COLUMNS, REAL_ROWS, GENERATED_ROWS = 16, 2, 4
SCALE, MARGIN = 2, 3


def main() -> None:
    """Train and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    picture = parser.parse_args().picture
    sys.path.insert(0, str(ZOO))
    os.environ["PYTHONPATH"] = str(ZOO.parent)
    digits = list(import_module("sample_images").digits())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = [sys.executable, ZOO / "sample_images.py", "digits", folder / "images"]
        subprocess.run(script, check=True)
        job = {"model_zoo": ZOO, "model_def": "digits_gan"}
        edl_horovod.prepare(**job, data=folder / "images/train", output=folder / "records")
        edl_horovod.train(
            **job,
            data=folder / "records/*.recordio",
            output=folder / "gan",
            train=TRAIN,
            launch={"np": 2},
            progress=True,
        )
        gan = import_module("digits_gan.digits_gan")
        model = keras.saving.load_model(folder / "gan/model.keras")
    random = np.random.default_rng(0)
    noise = random.standard_normal((GENERATED_ROWS * COLUMNS, gan.NOISE_SIZE), np.float32)
    generated = 255 * np.asarray(model.generator(noise, training=False))
    real = [np.asarray(image) for _, _, image in digits[: REAL_ROWS * COLUMNS]]
    _draw(picture, np.concatenate([real, generated]))


def _draw(path: Path, images: np.ndarray) -> None:
    """Draw real digits above a line, and generated ones below it, in black on white."""
    padded = np.pad(images, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    side = padded.shape[1]
    grid = padded.reshape(-1, COLUMNS, side, side).swapaxes(1, 2).reshape(-1, COLUMNS * side)
    grid[REAL_ROWS * side - 1] = 255
    picture = PIL.Image.fromarray((255 - grid).astype(np.uint8))
    picture.resize((picture.width * SCALE, picture.height * SCALE)).save(path)


if __name__ == "__main__":
    main()
