"""The number of clients that fit in memory at once, and the storage of client states between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedlada.data.samples import Samples
from fedlada.engines.quiet import quiet_recurrent
from fedlada.engines.stacked.layout import Layout
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Kept, map_tensors, named_tensors
from fedlada.models.call import call
from fedlada.models.flat import FlatModel

SHARE_FOR_STACK = 0.7
"""Share of the free memory to use; the rest is for activations and other programs."""
UNKNOWN = 4 * 2**30
"""Assumed free where the system does not say."""
SHARE_FOR_MEMORIES = 0.25
"""Share of a GPU's memory for client states; beyond it they stay on the host."""


def free_bytes(device: torch.device) -> int:
    """Free bytes on a device, including blocks cached by this process."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return UNKNOWN  # not Linux


def bytes_per_client(method: FederatedMethod, like: Tensor, compute: torch.dtype) -> int:
    """The state of one place in a stack: its vectors, the copy and the gradient that the model computes with."""
    tried = method.dry_run
    states = sum(len(one) for one in (*tried.local.states, *tried.local.kept))
    if method.personal is not None:  # shared values are copied for each client
        states += 1 + sum(len(one) for one in tried.local.shared)
    # Parameters and states stay; begin and finish hold a second set of states or uploads for a moment.
    vectors = 1 + 2 * states + len(list(named_tensors(tried.upload))) + 2 * method.looks_ahead
    width = torch.empty(0, dtype=compute).element_size()
    return like.numel() * (vectors * like.element_size() + 2 * width)


def activation_bytes(flat: FlatModel, samples: Samples, batch_size: int) -> int:
    """Bytes that a client's batch holds between forward and backward pass, from the sizes of all layers' outputs."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    hooks = [module.register_forward_hook(count) for module in flat.module.modules()]
    x, _ = samples.batch(np.zeros(1, dtype=np.int64))
    flat.module.eval()  # this one sample must not change running statistics
    try:
        with torch.no_grad(), quiet_recurrent(flat.module):
            call(flat.module, x)
    finally:
        flat.train()
        for hook in hooks:
            hook.remove()
    # An upper estimate: containers count in addition to their layers, and gradients are as large as outputs.
    return 2 * total * batch_size


def places_that_fit(free: int, per_client: int, activations: int, wanted: int) -> int:
    """As many places as fit in memory, in chunks of equal size; at least one."""
    fitting = max(1, int(SHARE_FOR_STACK * free) // (per_client + activations))
    chunks = -(-wanted // fitting)
    return -(-wanted // chunks)


class Memories:
    """Client states between rounds: on the GPU if they fit, else in pinned host memory.

    Copies run on their own stream, in parallel with the computation, until `wait`.
    """

    def __init__(self, layout: Layout, like: Tensor) -> None:
        self.layout, self.like = layout, like
        self.stream = torch.cuda.Stream(like.device) if like.is_cuda else None  # type: ignore[no-untyped-call]
        self.on_host = False

    def plan(self, per_client: int, num_clients: int) -> None:
        """Decide where the states of this many clients are stored from now on."""
        if self.like.is_cuda and not self.on_host:
            _, total = torch.cuda.mem_get_info(self.like.device)
            self.on_host = per_client * num_clients > SHARE_FOR_MEMORIES * total

    def keep(self, stacked: Kept, place: int) -> Kept:
        """Store one client's state from the stack, in the model's order."""
        own = map_tensors(lambda rows: self.layout.outward(rows[place]).clone(), stacked)
        if not self.on_host or self.stream is None:
            return own
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return map_tensors(self._to_host, own)

    def _to_host(self, vector: Tensor) -> Tensor:
        host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        vector.record_stream(torch.cuda.current_stream())  # the memory is not reused before the copy is done
        return host.copy_(vector, non_blocking=True)

    def load(self, kept: Sequence[Kept], places: int) -> Kept:
        """The states of the stack's clients, `[C, P]`; a place without a client has zeros, which are never used."""
        here = self._fetched(kept)
        names = [list(memory) for memory in kept[0].memory]

        def stacked(part: int, name: str) -> Tensor:
            first = self.layout.inward(here[0].memory[part][name])
            whole = first.shape == (self.layout.width,)
            rows = self.layout.rows(places, first) if whole else first.new_zeros((places, *first.shape))
            for place, one in enumerate(here):
                rows[place].copy_(self.layout.inward(one.memory[part][name]))
            return rows

        return Kept(tuple({name: stacked(part, name) for name in own} for part, own in enumerate(names)))

    def _fetched(self, kept: Sequence[Kept]) -> list[Kept]:
        """All states on the device; those on the host are copied one after the other on the copy stream."""
        device = self.like.device
        if self.stream is None:
            return [map_tensors(lambda vector: vector.to(device), one) for one in kept]
        with torch.cuda.stream(self.stream):
            here = [map_tensors(lambda vector: vector.to(device, non_blocking=True), one) for one in kept]
        torch.cuda.current_stream().wait_stream(self.stream)
        for one in here:
            for _, vector in named_tensors(one):
                vector.record_stream(torch.cuda.current_stream())
        return here

    def wait(self) -> None:
        """Wait until all states are on the host."""
        if self.on_host and self.stream is not None:
            self.stream.synchronize()
