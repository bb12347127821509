"""Draws augmentation.png: `python docs/images/augmentation.py` (needs scikit-learn and matplotlib)."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import torch

from fedlada.data import Augmentation, Images, load_digits
from fedlada.federation.randomness import bits, words

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLUMNS = 10


def main() -> None:
    """Three digits, ten draws each, both kinds of cropping."""
    (digits, _), _ = load_digits()
    # 32x32, and bright on grey, so that what lies outside the image (the mean) can be told from it.
    x = np.repeat(np.repeat((60 + 195 * digits[:3]).astype(np.uint8), 4, axis=2), 4, axis=3)
    mean, std = (0.1,), (0.3,)
    figure, axes = plt.subplots(6, COLUMNS + 1, figsize=(11, 6.4))
    for row in range(6):
        crop = ("half", "always")[row // 3]
        images = Images(x, np.zeros(3, np.int64), mean, std, Augmentation(padding=4, crop=crop))
        samples = images.samples(torch.device("cpu"), torch.float32)
        chosen = np.full(COLUMNS, row % 3)
        plain, _ = samples.batch(chosen[:1])
        augmented, _ = samples.batch(chosen, words(bits(0, "augmentation", 1, row), COLUMNS))
        for column, image in enumerate([plain[0], *augmented]):
            place = axes[row, column]
            place.imshow(image[0], cmap="gray", vmin=-0.4, vmax=3)
            place.set_xticks([])
            place.set_yticks([])
        axes[row, 0].set_ylabel({1: "authors", 4: "crop"}.get(row, ""), fontsize=13)
    axes[0, 0].set_title("as it is")
    axes[0, 1].set_title("ten draws", loc="left")
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("augmentation.png"), dpi=80)


if __name__ == "__main__":
    main()
