"""The sequential engine on a GPU equals the CPU, in float64 to rounding; run where there is one."""

from __future__ import annotations

import pytest
import torch

import fedlada
from fedlada.messages.means import BlockMeans
from fedlada.messages.noise import uniform_noise
from fedlada.messages.spec import CODECS
from fedlada.messages.top_k import TopK
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def run(name, device, dtype, messages="float32"):
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
        messages=messages,
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


@pytest.mark.parametrize(
    "codec",
    [*CODECS.values(), BlockMeans("mean64", 64), TopK("top", 0.3), TopK("top", 0.01)],
    ids=lambda one: one.name,
)
def test_codes_are_the_same_bits_on_both(codec):
    random = torch.Generator().manual_seed(0)
    for size in (1, 257, 1_000_003):
        vector = torch.randn(size, generator=random).round(decimals=3) * torch.exp(
            3 * torch.randn(size, generator=random)
        )
        vector = vector.abs() + 1e-12 if codec.needs_positive else vector
        for key in (0, 2**64 - 2, 0x9E3779B97F4A7C15):
            here, there = codec.encode(vector, key), codec.encode(vector.cuda(), key)
            for name, part in here.parts.items():
                assert torch.equal(part, there.parts[name].cpu()), (size, name)
            assert torch.equal(codec.decode(here), codec.decode(there).cpu())
            # What has travelled once lies exactly on its levels, where the least difference would show.
            again = codec.decode(here)
            once_more = codec.encode(again, key + 1), codec.encode(again.cuda(), key + 1)
            assert torch.equal(codec.decode(once_more[0]), codec.decode(once_more[1]).cpu())


def test_noise_is_the_same_bits_on_both():
    for key in (0, 1, 2**64 - 1):
        here, there = (uniform_noise(key, 100_000, torch.device(device)) for device in ("cpu", "cuda"))
        assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("messages", ["lean", "int4:delta=top0.3:control_change=top0.5:v=log8+every2"])
@pytest.mark.parametrize("name", ["fedlada", "scaffold", "fedadam_amended"])
def test_runs_with_codes_are_equal_on_both(name, messages):
    on_gpu, on_cpu = (run(name, device, torch.float64, messages) for device in ("cuda", "cpu"))
    torch.testing.assert_close(on_gpu.server.params.cpu(), on_cpu.server.params, rtol=1e-10, atol=1e-10)
    assert on_gpu.history["bytes_by_client"] == on_cpu.history["bytes_by_client"]
