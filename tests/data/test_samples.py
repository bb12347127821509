"""Arrays as samples in memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from fedlada.data import as_samples

MAPPED = """
import resource, sys
import numpy, torch
from fedlada.data import as_samples

x = numpy.load(sys.argv[1], mmap_mode="r")
torch.ones(10).isfinite().all()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples = as_samples((x, numpy.zeros(len(x), numpy.int64)), torch.device("cpu"), torch.float32)
assert samples.x.data_ptr() == x.ctypes.data
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


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
