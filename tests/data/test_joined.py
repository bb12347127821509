"""Several collections of samples as one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedlada.data.joined import JoinedSamples
from fedlada.data.samples import as_samples

CPU = (torch.device("cpu"), torch.float32)


def test_batches_come_from_their_parts_in_the_order_asked_for():
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    parts = [(x[:3], y[:3]), TensorDataset(x[3:4], y[3:4]), (x[4:], y[4:])]
    joined = JoinedSamples([as_samples(part, *CPU) for part in parts])
    assert len(joined) == 10
    assert joined.labels().tolist() == list(range(10))
    for rows in ([9, 0, 3, 4, 2, 1], [5], [0, 1, 2], [3, 3]):
        got_x, got_y = joined.batch(np.array(rows))
        assert torch.equal(got_x, x[rows])
        assert got_y.tolist() == rows


def test_several_inputs():
    x = {"a": np.arange(6.0).reshape(3, 2), "b": np.arange(3.0)}
    joined = JoinedSamples([as_samples((x, np.arange(3)), *CPU), as_samples((x, np.arange(3)), *CPU)])
    got, y = joined.batch(np.array([2, 3]))
    assert got["a"].tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert (got["b"].tolist(), y.tolist()) == ([2.0, 0.0], [2, 0])


def test_what_is_no_tensor_is_one_sentence():
    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return "word", 0

    joined = JoinedSamples([as_samples(Words(), *CPU)] * 2)
    with pytest.raises(ValueError, match="samples of type str cannot be put into one batch"):
        joined.batch(np.array([0, 1]))
