"""C clients at once: their state `[C, P]`, and one local step of all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.stacked.capture import captured
from fedlada.engines.stacked.compiling import compiled
from fedlada.engines.stacked.feed import Feed, fetch_batch, floats_as, taken
from fedlada.engines.stacked.look import Look, moved_states, write
from fedlada.engines.stacked.memory import Memories
from fedlada.engines.stacked.networks import Network
from fedlada.federation.plan import Assignment
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Kept, Local, Upload, map_tensors, named_tensors
from fedlada.methods.testing.observed import shares_memory


class Stack:
    """Places for C clients with batches of B samples; the buffers stay, so that a CUDA graph can be replayed."""

    def __init__(
        self,
        network: Network,
        method: FederatedMethod,
        samples: Samples,
        *,
        places: int,
        batch_size: int,
        like: Tensor,
        compute: torch.dtype,
        memories: Memories,
        compiles: bool = False,
    ) -> None:
        self.network, self.samples = network, samples
        self.method = method.with_tensor_fields(network.layout.inward)
        self.memories = memories
        self.places, self.batch_size = places, batch_size
        self.like, self.compute, self.compiles = like, compute, compiles
        rows = network.layout.rows
        self.grads = rows(places, like, compute)
        self.params = rows(places, like)
        # In full precision the model reads the parameters themselves, else a copy that each step refreshes; where the
        # method looks ahead, the copy is moved to where it looks.
        reads_params = compute == like.dtype and not method.looks_ahead
        self.weights = self.params if reads_params else rows(places, like, compute)
        self.lr = torch.zeros((), device=like.device, dtype=like.dtype)
        self.local: Local | None = None
        self.step_number = torch.zeros(1, device=like.device, dtype=torch.int64)
        self.losses = torch.zeros(places, device=like.device, dtype=torch.float64)
        self.rows: Tensor | None = None
        self.uses_graphs = like.is_cuda and isinstance(samples, ArraySamples)
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.take = taken(samples, compute, compiles=compiles) if isinstance(samples, ArraySamples) else None
        needs_copies = shares_memory(self.method)
        self.update = method_update(self.method, needs_copies=needs_copies)
        if compiles and not needs_copies:  # the compiler would drop such a copy
            self.update = compiled(self.update, "the update")
        self.look = Look(self.method, compiles=compiles and not needs_copies, needs_copies=needs_copies)

    def run(
        self, broadcast: Broadcast, kept: Sequence[Kept], work: Sequence[Assignment], lr: float, feed: Feed
    ) -> None:
        """A whole round of these clients; afterwards `finish` has their results. On a GPU it is only launched."""
        self.start(broadcast, kept, feed, lr)
        if not self.uses_graphs:
            for number in range(len(feed.rows)):
                self.step(masked=not feed.is_even, number=number, work=work)
            return
        if feed.is_even not in self.graphs:
            try:
                self.graphs[feed.is_even] = self._captured(masked=not feed.is_even)
            except RuntimeError as error:
                self.uses_graphs = False
                warnings.warn(f"a step cannot be captured as a graph and runs slower without: {error}", stacklevel=2)
                self.run(broadcast, kept, work, lr, feed)
                return
            self.start(broadcast, kept, feed, lr)  # the warm-up has moved every client
        for _ in range(len(feed.rows)):
            self.graphs[feed.is_even].replay()

    def _captured(self, *, masked: bool) -> torch.cuda.CUDAGraph:
        def first_step() -> None:
            self.step_number.zero_()  # a client may have no second step
            self.step(masked=masked)

        return captured(lambda: self.step(masked=masked), first_step, repeats=2, compiles=self.compiles)

    def start(self, broadcast: Broadcast, kept: Sequence[Kept], feed: Feed, lr: float) -> None:
        """Begin the round of every client."""
        self.lr.fill_(lr)
        self.step_number.zero_()
        self.losses.zero_()
        self._load(feed)
        layout = self.network.layout
        inward = map_tensors(layout.inward, broadcast)
        each = map_tensors(lambda vector: vector.expand(self.places, *vector.shape), inward)
        fresh = self.method.begin(each, self.memories.load(kept, self.places), lr=self.lr)
        if self.local is None:
            self.local = self._allocate(fresh)
        for (_, place), (_, value) in zip(named_tensors(self.local), named_tensors(fresh), strict=True):
            if place.ndim and place.stride(0) == 0:  # stored once for all clients
                place[0].copy_(value[0])
            elif place is not self.lr:
                place.copy_(value)
        if self.weights is not self.params:
            self.weights.copy_(self.params)
        self.network.bind(self.weights, self.grads)

    def _load(self, feed: Feed) -> None:
        """Copy the round's work to the device, into buffers at fixed addresses."""
        if self.rows is None or len(self.rows) < len(feed.rows):
            device, shape = self.like.device, feed.rows.shape
            self.graphs = {}
            self.rows, self.draws = (torch.zeros(shape, device=device, dtype=torch.int64) for _ in range(2))
            self.sample_weights = torch.zeros(
                shape, device=device, dtype=torch.promote_types(self.compute, torch.float32)
            )
            self.keys = torch.zeros(shape[:2], device=device, dtype=torch.int64)
            self.num_steps = torch.zeros(self.places, device=device, dtype=torch.int64)
        pairs = (
            (self.rows, feed.rows),
            (self.draws, feed.draws),
            (self.sample_weights, feed.weights),
            (self.keys, feed.keys),
        )
        for place, values in pairs:
            place[: len(values)].copy_(torch.from_numpy(values))
        self.num_steps.copy_(torch.from_numpy(feed.num_steps))
        assert feed.rows.shape[1:] == (self.places, self.batch_size)
        self.feed = feed

    def _allocate(self, fresh: Local) -> Local:
        """Buffers like a fresh local state; values that all clients share are stored once."""

        def buffer(value: Tensor) -> Tensor:
            if value is self.lr:
                return value
            if value.ndim == 2 and value.shape[1] == self.network.layout.width:
                return self.network.layout.rows(self.places, value)
            return torch.empty(value.shape, device=value.device, dtype=value.dtype)

        def shared(value: Tensor) -> Tensor:
            if self.method.personal is not None:  # partly per client
                return buffer(value)
            return torch.empty(value.shape[1:], device=value.device, dtype=value.dtype).expand(value.shape)

        return Local(
            params=self.params,
            anchor=shared(fresh.anchor),
            lr=self.lr,
            states=tuple({name: buffer(value) for name, value in one.items()} for one in fresh.states),
            shared=tuple({name: shared(value) for name, value in one.items()} for one in fresh.shared),
            kept=tuple({name: buffer(value) for name, value in one.items()} for one in fresh.kept),
        )

    def step(self, *, masked: bool, number: int = 0, work: Sequence[Assignment] = ()) -> None:
        """One local step of all clients; `number` and `work` are for samples that the host must read."""
        assert self.rows is not None
        if self.take is not None:
            rows, draws, weights = (
                one.index_select(0, self.step_number)[0] for one in (self.rows, self.draws, self.sample_weights)
            )
            x, y = self.take(rows.flatten(), draws.flatten())
        else:
            x, y = fetch_batch(self.samples, self.feed, number, work)
            x, weights = floats_as(x, self.compute), self.sample_weights[number]
        active = self.step_number < self.num_steps
        keys = None if self.network.elements is None else self.keys.index_select(0, self.step_number)[0]
        assert self.local is not None
        by_row = active[:, None] if masked else None
        if self.method.looks_ahead:
            losses = self.look(
                self.local, self.weights, self.grads, by_row, lambda: self.network.backward(x, y, weights, keys)
            )
        else:
            losses = self.network.backward(x, y, weights, keys)
        self.losses += torch.where(active, losses.double(), torch.zeros_like(self.losses))
        self.update(self.local, self.grads, self.weights, by_row)
        self.step_number += 1

    def finish(self) -> tuple[Upload, Kept]:
        """The clients' uploads and memories, stacked, in the engine's order of the parameters."""
        assert self.local is not None
        # A place without a client has made no steps and must not divide by zero.
        upload, kept = self.method.finish(self.local, self.num_steps.clamp(min=1)[:, None].to(self.params.dtype))
        cut = self.network.layout.without_padding
        return map_tensors(cut, upload), map_tensors(cut, kept)


Update = Callable[[Local, Tensor, Tensor, Tensor | None], None]


def method_update(method: FederatedMethod, *, needs_copies: bool = False) -> Update:
    """The method's move on all clients at once, written back into their buffers: compiled, one pass over memory.

    With `needs_copies` a new state may be a view of an old one or of the parameters, and is copied before those are
    overwritten.
    """

    def update(local: Local, grads: Tensor, weights: Tensor, active: Tensor | None) -> None:
        new = method.move(local, grads.to(local.params.dtype))
        params = new.params if active is None else torch.where(active, new.params, local.params)
        states = moved_states(local.states, new.states, active, needs_copies=needs_copies)
        if weights is not local.params:
            weights.copy_(params)
        write([(local.params, params), *states])

    return update
