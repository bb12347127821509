"""scikit-learn's handwritten digits: 1,797 images of 8x8, inside its package, so that nothing is downloaded."""

from __future__ import annotations

import numpy as np

from fedlada.randomness import bits, permutation

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
    order = permutation(bits(split_seed, "digits test split"), len(labels))
    num_test = round(test_share * len(labels))
    test, train = order[:num_test], order[num_test:]
    return (images[train], labels[train]), (images[test], labels[test])
