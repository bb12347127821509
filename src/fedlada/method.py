"""A federated method: a chain of local transforms and one server optimizer, run by five calls."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from fedlada.held import cut, lengths, map_held, suited
from fedlada.local import LocalTransform
from fedlada.server import ServerOptimizer
from fedlada.state import (
    Broadcast,
    Kept,
    Local,
    Round,
    Run,
    Scalar,
    Server,
    Step,
    Upload,
    Vectors,
    all_finite,
    map_tensors,
    named_tensors,
)

REHEARSED = (2, 4096)
"""The parameters of the models on which a method is rehearsed, one after another until it can take a step: a part of a
user's may want the hundred largest, or hold positions. What has another size is not of the model's."""


@dataclass(frozen=True)
class Rehearsal:
    """What a method sends and holds on a model of `num_params` parameters, after one step of one client."""

    num_params: int
    broadcast: Broadcast
    local: Local
    upload: Upload


@dataclass(frozen=True, kw_only=True)
class FederatedMethod:
    """A method is its parts; the object is the configuration. Every engine makes the same five calls.

    `init` once on the server; then in each round `begin` on each client, `step` K times, `finish`; and `aggregate`
    on the server with the mean of the uploads. All are pure functions of their arguments.
    """

    name: str
    local: tuple[LocalTransform, ...]
    server: ServerOptimizer

    def __post_init__(self) -> None:
        if isinstance(self.local, LocalTransform):
            raise ValueError(f"local must be a tuple of transforms in the method {self.name!r}: add a comma")
        object.__setattr__(self, "local", tuple(self.local))
        for part in self.local:
            if not isinstance(part, LocalTransform):
                raise ValueError(f"local must hold LocalTransforms, got {part!r} in the method {self.name!r}")
        if not isinstance(self.server, ServerOptimizer):
            raise ValueError(f"server must be a ServerOptimizer, got {self.server!r} in the method {self.name!r}")

    def init(self, params: Tensor) -> Server:
        """The server before the first round, with x^0 = `params`."""
        return Server(
            params=params,
            shared=tuple(part.init_shared(params) for part in self.local),
            optimizer=self.server.init(params),
        )

    def init_kept(self, params: Tensor) -> Kept:
        """A client's first private memory."""
        return Kept(tuple(part.init_kept(params) for part in self.local))

    def begin(self, broadcast: Broadcast, kept: Kept, *, lr: Scalar) -> Local:
        """A client that has received the broadcast; `local.params` is x_{i,0}."""
        return Local(
            params=broadcast.params,
            anchor=broadcast.params,
            lr=lr,
            states=tuple(
                part.begin(shared, broadcast.params) for part, shared in zip(self.local, broadcast.shared, strict=True)
            ),
            shared=broadcast.shared,
            kept=kept.memory,
        )

    def step(self, local: Local, grad: Tensor) -> Local:
        """One local step: the gradient goes through the chain, and what comes out is subtracted."""
        update, states = grad, []
        for index, part in enumerate(self.local):
            update, state = part.apply(update, local.states[index], self._view(local, index))
            states.append(state)
        return Local(
            params=local.params - local.lr * update,
            anchor=local.anchor,
            lr=local.lr,
            states=tuple(states),
            shared=local.shared,
            kept=local.kept,
        )

    def finish(self, local: Local, num_steps: Scalar) -> tuple[Upload, Kept]:
        """What the client uploads after its `num_steps` steps, and its new private memory."""
        run = Run(delta=local.anchor - local.params, num_steps=num_steps, lr=local.lr)
        parts = [
            part.finish(local.states[index], run, self._view(local, index)) for index, part in enumerate(self.local)
        ]
        memory = tuple(_in_order_of(old, new) for old, (_, new) in zip(local.kept, parts, strict=True))
        return Upload(run.delta, tuple(extra for extra, _ in parts)), Kept(memory)

    def aggregate(self, server: Server, mean: Upload, *, lr: Scalar, num_steps: Scalar, participation: float) -> Server:
        """The server after a round, from the mean upload.

        `lr` is the clients' rate of this round, `num_steps` their mean number of steps, `participation` the active
        share of all clients' weight.
        """
        params, optimizer = self.server.step(server.params, mean.delta, server.optimizer)
        round = Round(delta=mean.delta, num_steps=num_steps, lr=lr, participation=participation)
        shared = tuple(
            _in_order_of(old, part.merge(old, extra, round))
            for part, old, extra in zip(self.local, server.shared, mean.extra, strict=True)
        )
        after = Server(params=params, shared=shared, optimizer=optimizer)
        if isinstance(lr, float) and lr == 0 and not all_finite(after):
            raise ValueError(
                f"{self.name} divides by the clients' rate, which was 0 in this round: leave the round out"
            )
        return after

    def num_vectors(self) -> tuple[int, int]:
        """How many vectors of the model's size travel down and up for each client and round."""
        tried = self.rehearsal
        return len(list(named_tensors(tried.broadcast))), len(list(named_tensors(tried.upload)))

    @property
    def keeps_memory(self) -> bool:
        """Whether clients must remember something between rounds."""
        return any(self.rehearsal.local.kept)

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """One step of one client on the smallest model; what the parts hold is cut to it where it does not fit."""
        problem: Exception | None = None
        for size in REHEARSED:
            probe = torch.ones(size)
            here = self.with_held(partial(suited, like=probe))
            for whole in (size, *self._lengths):
                try:
                    return here.with_held(partial(cut, size=size, whole=whole))._rehearsed(probe)
                except Exception as error:
                    problem = problem or error
        assert problem is not None
        raise problem

    def _rehearsed(self, probe: Tensor) -> Rehearsal:
        broadcast = self.init(probe).broadcast
        local = self.step(self.begin(broadcast, self.init_kept(probe), lr=1.0), probe)
        return Rehearsal(probe.numel(), broadcast, local, self.finish(local, 1)[0])

    def suited_to(self, params: Tensor) -> FederatedMethod:
        """The same method with what its parts hold, such as a mask, on the device and in the precision of these.

        What does not fit a model of so many parameters is refused.
        """
        if not self._lengths:
            return self
        own = self.with_held(partial(suited, like=params))
        try:
            own._rehearsed(params)
        except Exception as error:
            sizes = " and ".join(map(str, self._lengths))
            raise ValueError(
                f"the method {self.name!r} holds tensors of length {sizes} and cannot take a step of a model of "
                f"{params.numel()} parameters: {error}"
            ) from error
        return own

    def with_held(self, function: Callable[[Tensor], Tensor]) -> FederatedMethod:
        """The same method with `function` applied to the tensors that its parts hold."""
        local = tuple(map_held(function, part) for part in self.local)
        server = map_held(function, self.server)
        is_same = server is self.server and all(map(operator.is_, local, self.local))
        return self if is_same else replace(self, local=local, server=server)

    @property
    def _lengths(self) -> list[int]:
        return lengths((*self.local, self.server))

    @staticmethod
    def _view(local: Local, index: int) -> Step:
        return Step(local.params, local.anchor, local.shared[index], local.kept[index])


def average(uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
    """The mean of the uploads in the order in which they are given; one after another, so that a generator will do.

    Without weights each counts 1/S, as in the paper. The order is part of the result: floating-point sums depend
    on it, so engines always give the uploads in the order of the clients' numbers.
    """
    total: Upload | None = None
    total_weight = 0.0
    index = -1
    for index, upload in enumerate(uploads):
        if weights is not None and index >= len(weights):
            raise ValueError(f"there are more uploads than the {len(weights)} weights")
        weight = 1.0 if weights is None else float(weights[index])
        if not 0 <= weight < math.inf:
            raise ValueError(f"weights must be finite and not negative, got {weight}")
        total_weight += weight
        if total is None:
            total = map_tensors(partial(torch.mul, other=weight), upload)
            continue
        for (_, sum_so_far), (_, tensor) in zip(named_tensors(total), named_tensors(upload), strict=True):
            sum_so_far.add_(tensor, alpha=weight)
    if weights is not None and len(weights) != index + 1:
        raise ValueError(f"there are {len(weights)} weights for {index + 1} uploads")
    if total is None or total_weight == 0:
        raise ValueError("there is no mean of no uploads: at least one with a positive weight is needed")
    return map_tensors(lambda tensor: tensor / total_weight, total)


def _in_order_of(old: Vectors, new: Vectors) -> Vectors:
    """Vectors are known by their names; stacks and messages go by their order too."""
    return {name: new[name] for name in old} if new.keys() == old.keys() else new
