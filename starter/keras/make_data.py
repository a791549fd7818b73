"""Writes scikit-learn's 1,797 handwritten digits as `data/train.npz` and `data/test.npz`."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
is_test = np.arange(len(digits.target)) % 5 == 0
folder = Path("data")
folder.mkdir(exist_ok=True)
for name, chosen in (("train", ~is_test), ("test", is_test)):
    images = (digits.images[chosen] / 16).astype(np.float32)
    np.savez(folder / f"{name}.npz", image=images, label=digits.target[chosen])
    print(f"{len(images):,} digits in data/{name}.npz")
