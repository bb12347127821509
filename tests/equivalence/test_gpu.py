"""The sequential engine on a GPU equals the CPU, in float64 to rounding; run where there is one."""

from __future__ import annotations

import pytest
import torch

import fedlada
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def run(name, device, dtype):
    x, y = blobs()
    return fedlada.simulate(
        small_net(),
        (x, y),
        test=(x, y),
        method=METHODS[name].method(),
        partition=UNEQUAL,
        cohort_size=3,
        rounds=6,
        lr=0.05,
        batch_size=8,
        device=device,
        dtype=dtype,
    )


@pytest.mark.parametrize("name", METHODS)
def test_gpu_equals_cpu(name):
    on_gpu, on_cpu = (run(name, device, torch.float64) for device in ("cuda", "cpu"))
    assert on_gpu.server.params.is_cuda
    torch.testing.assert_close(on_gpu.server.params.cpu(), on_cpu.server.params, rtol=1e-10, atol=1e-10)
    assert next(on_gpu.model.parameters()).device.type == "cpu"  # the model comes back where it was


@pytest.mark.parametrize("name", METHODS)
def test_gpu_resumes_and_auto_finds_it(name, tmp_path):
    x, y = blobs()
    common = {"method": METHODS[name].method(), "partition": UNEQUAL, "cohort_size": 3, "lr": 0.05}
    fedlada.simulate(small_net(), (x, y), rounds=3, checkpoint_every=2, out=tmp_path / "a", **common)
    resumed = fedlada.simulate(small_net(), (x, y), rounds=6, checkpoint_every=2, out=tmp_path / "a", **common)
    whole = fedlada.simulate(small_net(), (x, y), rounds=6, checkpoint_every=2, out=tmp_path / "b", **common)
    assert whole.server.params.is_cuda
    torch.testing.assert_close(resumed.server.params, whole.server.params, rtol=1e-5, atol=1e-6)
