"""Small learning tasks for tests, made from a seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedlada.data import Given


def blobs(num_samples=120, num_classes=3, num_features=4, seed=0):
    """Classes as overlapping clouds."""
    random = np.random.default_rng(seed)
    y = random.integers(0, num_classes, num_samples)
    centres = 2 * random.standard_normal((num_classes, num_features))
    return centres[y] + random.standard_normal((num_samples, num_features)), y


def small_net(num_classes=3, num_features=4, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(num_features, 8), nn.Tanh(), nn.Linear(8, num_classes))


UNEQUAL = Given(indices=[range(40), range(40, 47), range(47, 48), range(48, 90), range(90, 120)])
"""Five clients of 40, 7, 1, 42 and 30 samples."""
