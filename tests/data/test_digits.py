"""The digits are scikit-learn's own, read without importing it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedlada.data.digits import load_digits


def test_images_and_labels_are_scikit_learns():
    from sklearn.datasets import load_digits as theirs  # takes seconds: here and not where all tests are collected

    parts = load_digits()
    found = sorted(
        (image.tobytes(), int(label)) for images, labels in parts for image, label in zip(images, labels, strict=True)
    )
    raw = theirs()
    images = (raw.images / 16.0).astype(np.float32)
    assert found == sorted((image.tobytes(), int(label)) for image, label in zip(images, raw.target, strict=True))


@pytest.mark.slow
def test_scikit_learn_is_not_imported():
    program = "import sys; from fedlada.data.digits import load_digits; load_digits(); print('sklearn' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "False\n"
