"""Compiles two kernels ahead, as for a GPU: prints what is in Triton's cache before this process loads them.

Then the same with a fork that fails, without any, with one that does not end, and with an error while they work.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

from fedlada.engines.stacked import triton_launch
from fedlada.engines.stacked.kernels import ConvShape
from fedlada.engines.stacked.triton_kernels import TritonKernels


class Gpu:
    """A driver for a GPU that is not here. In a fork nobody may ask it."""

    def __init__(self) -> None:
        self.owner = os.getpid()

    def get_current_device(self) -> int:
        assert os.getpid() == self.owner
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        assert os.getpid() == self.owner
        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: object, metadata: object) -> None:
        assert os.getpid() != self.owner, "launchers are built in the forks"


def main(cache: Path) -> None:
    triton.runtime.driver.set_active(Gpu())
    forks, loaded = [], []
    fork, load = triton_launch._fork, triton_launch._load

    def watched(*arguments):
        forks.append(fork(*arguments))
        return forks[-1]

    def noted(*arguments):
        loaded.append(len(list(cache.rglob("*.cubin"))))
        load(*arguments)

    triton_launch._fork, triton_launch._load = watched, noted
    kernels, shape = TritonKernels("ieee"), ConvShape((1, 1), (1, 1), (1, 1), 1)
    weight = torch.ones(2, 8, 3, 3, 16)
    with triton_launch.compiled_ahead():
        for size in (4, 8):  # the same kernel
            kernels.conv(torch.ones(4, 16, size, size).contiguous(memory_format=torch.channels_last), weight, shape)
        triton_launch.start_compiling()
        kernels.conv(torch.ones(4, 16, 4, 4, dtype=torch.bfloat16), weight.bfloat16(), shape)
    found = {"forks": len(forks), "cached before they are loaded": min(loaded), "loaded": len(loaded)}

    # Whoever starts this may have it ignored: then nobody can wait for a process.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    triton_launch._fork = lambda *_: os._exit(1) if (child := os.fork()) == 0 else child
    with triton_launch.compiled_ahead():
        TritonKernels("tf32").conv(torch.ones(4, 16, 4, 4), weight, shape)
    found["after a fork that failed"] = len(list(cache.rglob("*.cubin")))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def refused(*_):
        raise BlockingIOError

    triton_launch._fork = refused
    with triton_launch.compiled_ahead():
        TritonKernels("tf32").conv(torch.ones(4, 16, 4, 4, dtype=torch.bfloat16), weight.bfloat16(), shape)
    found["without a fork"] = len(list(cache.rglob("*.cubin")))

    triton_launch._fork = lambda *_: time.sleep(60) if (child := os.fork()) == 0 else child
    triton_launch.LONGEST = 0.1
    began = time.monotonic()
    with triton_launch.compiled_ahead():
        kernels.conv(torch.ones(4, 16, 4, 4, dtype=torch.float16), weight.half(), shape)
    found["gave up"] = time.monotonic() - began < 30

    try:
        with triton_launch.compiled_ahead():
            kernels.conv(torch.ones(4, 16, 4, 4), weight, shape)
            triton_launch.start_compiling()
            raise KeyError("stopped")
    except KeyError:
        try:
            found["forks left"] = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            found["forks left"] = None
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
