"""scikit-learn's handwritten digits: 1,797 images of 8x8, bundled with its package."""

from __future__ import annotations

import numpy as np

from fedlada.data.held_out import held_out

Arrays = tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]


def load_digits(*, test_share: float = 1 / 6, split_seed: int = 0) -> tuple[Arrays, Arrays]:
    """The digits as (train, test), images `[N, 1, 8, 8]` in [0, 1]; the split is fixed by `split_seed` alone."""
    try:
        from sklearn.datasets import load_digits as read
    except ImportError:
        raise ModuleNotFoundError(
            "the digits come with scikit-learn, which is not installed: pip install 'fedlada[all]'"
        ) from None
    raw = read()
    images = (raw.images / 16.0).astype(np.float32)[:, None]
    labels = raw.target.astype(np.int64)
    train, test = held_out(len(labels), "digits test split", share=test_share, seed=split_seed)
    return (images[train], labels[train]), (images[test], labels[test])
