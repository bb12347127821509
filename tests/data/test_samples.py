"""Arrays as samples in memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fedlada.data import Images, as_samples
from fedlada.data.given import Arrays
from fedlada.data.source import Source

MAPPED = """
import resource, sys
import numpy, torch
from torch.utils.data import Dataset

from fedlada.data import Images, as_samples
from fedlada.data.given import Arrays
from fedlada.data.source import Source

x = numpy.load(sys.argv[1], mmap_mode="r")
torch.ones(10).isfinite().all()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples = as_samples((x, numpy.zeros(len(x), numpy.int64)), torch.device("cpu"), torch.float32)
assert samples.x.data_ptr() == x.ctypes.data
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units there")
def test_a_memory_map_is_neither_copied_nor_doubled_by_checks(tmp_path):
    """Its own pages count as memory of the process as soon as they are read; half as much again is the limit."""
    megabytes = 96
    np.save(tmp_path / "x.npy", np.ones((megabytes, 2**18), np.float32))
    done = subprocess.run(
        [sys.executable, "-c", MAPPED, str(tmp_path / "x.npy")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1.5 * megabytes * 1024


def test_the_first_row_that_is_not_finite_is_named_in_large_arrays():
    x = torch.zeros(5, 2**21)
    x[3, 7] = torch.inf
    with pytest.raises(ValueError, match="x holds a NaN or an infinity in row 3"):
        as_samples((x, torch.zeros(5)), torch.device("cpu"), torch.float32)


def test_a_number_too_large_for_the_precision_is_no_infinity_of_the_data():
    x = torch.ones(5, 2, dtype=torch.float64)
    x[3, 1] = 1e300
    with pytest.raises(ValueError, match="x holds a number in row 3 that is too large for float32: scale x down"):
        as_samples((x, torch.zeros(5)), torch.device("cpu"), torch.float32)
    assert len(as_samples((x, torch.zeros(5)), torch.device("cpu"), torch.float64)) == 5
    x[3, 0] = torch.nan
    with pytest.raises(ValueError, match="x holds a NaN or an infinity in row 3"):
        as_samples((x, torch.zeros(5)), torch.device("cpu"), torch.float32)


class Pairs(Dataset):
    """Samples whose lengths differ, which only their own function can join."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        return torch.ones(1 + number % 3) * float(self.x[number, 0]), self.y[number]

    @staticmethod
    def collate_fn(samples):
        x, y = zip(*samples, strict=True)
        return torch.nn.utils.rnn.pad_sequence(x, batch_first=True), torch.as_tensor(np.asarray(y))


KINDS = {
    "pair": lambda x, y: (x, y),
    "images": lambda x, y: Images(x.astype(np.uint8).reshape(-1, 1, 2, 2), y),
    "inputs by name": lambda x, y: Arrays({"u": torch.from_numpy(x).bfloat16(), "v": x[:, :1]}, y.tolist()),
    "data set": Pairs,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_of_a_source_tells_its_samples_from_others(kind):
    x, y = np.arange(400.0).reshape(100, 4) % 250, np.arange(100) % 3

    def digest(x, y):
        return Source(KINDS[kind](x, y), None, num_classes=3, input_shape=(4,)).digest("train")

    assert digest(x.copy(), y.copy()) == digest(x, y)
    others = ((x, y), (x[:90], y[:90]), (x + 1, y), (x, 2 - y))
    assert len({digest(*one) for one in others}) == len(others)
