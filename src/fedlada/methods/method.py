"""A federated method: a chain of local transforms, one server optimizer and one combiner."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from fedlada.methods.blame import blamed
from fedlada.methods.combine import Combiner, Mean, as_combiner
from fedlada.methods.forms import in_form_of
from fedlada.methods.local import LocalTransform
from fedlada.methods.personal import Personal
from fedlada.methods.server import ServerOptimizer
from fedlada.methods.state import (
    Broadcast,
    ClientRound,
    GradientAt,
    Kept,
    Local,
    PerTransform,
    Round,
    Scalar,
    Server,
    Step,
    Upload,
    Vectors,
    all_finite,
    held_by,
    named_tensors,
)
from fedlada.methods.tensor_fields import cut, lengths, map_tensor_fields, suited

DRY_RUN_SIZES = (2, 4096)
"""Model sizes tried, smallest first, when inferring which vectors a method sends."""


@dataclass(frozen=True)
class DryRun:
    """Vectors that a method sends and holds after one step of one client, on a model of `num_params` parameters."""

    num_params: int
    broadcast: Broadcast
    local: Local
    upload: Upload
    gradients: int
    """Gradients that the step needed."""


@dataclass(frozen=True, kw_only=True)
class FederatedMethod:
    """A method is its parts; the object is the configuration. Every engine makes the same calls.

    `init` once on the server; then in each round `begin` on each client, `step` K times, `finish`; then `combine` and
    `aggregate` on the server. All are pure functions of their arguments.
    """

    name: str
    local: tuple[LocalTransform, ...]
    server: ServerOptimizer
    combiner: Combiner = Mean()  # noqa: RUF009 (frozen)
    personal: Personal | None = None
    """Parameters that stay with their client; a run's `personal=` says which."""

    def __post_init__(self) -> None:
        if isinstance(self.local, LocalTransform):
            raise ValueError(f"local must be a tuple of transforms in the method {self.name!r}: add a comma")
        object.__setattr__(self, "local", tuple(self.local))
        for part in self.local:
            if not isinstance(part, LocalTransform):
                raise ValueError(f"local must hold LocalTransforms, got {_given(part)} in the method {self.name!r}")
        if not isinstance(self.server, ServerOptimizer):
            raise ValueError(f"server must be a ServerOptimizer, got {_given(self.server)} in the method {self.name!r}")
        if not isinstance(self.combiner, Combiner):
            raise ValueError(f"combiner must be a Combiner, got {_given(self.combiner)} in the method {self.name!r}")

    def init(self, params: Tensor) -> Server:
        """The server before the first round, with x^0 = `params`."""
        return Server(
            params=params,
            shared=tuple(part.init_shared(params) for part in self.local),
            optimizer=self.server.init(params),
        )

    def init_kept(self, params: Tensor) -> Kept:
        """A client's initial private state; with personal parameters, these come last."""
        memory = tuple(part.init_kept(params) for part in self.local)
        if self.personal is None:
            return Kept(memory)
        return Kept((*memory, self.personal.memory(params, tuple(part.init_shared(params) for part in self.local))))

    def begin(self, broadcast: Broadcast, kept: Kept, *, lr: Scalar) -> Local:
        """A client that has received the broadcast; `local.params` is x_{i,0}."""
        memories = kept.memory
        if self.personal is not None:
            memories = kept.memory[:-1]
            broadcast = self.personal.received(broadcast, kept.memory[-1])
        return Local(
            params=broadcast.params,
            anchor=broadcast.params,
            lr=lr,
            states=tuple(
                part.begin(shared, memory, broadcast.params)
                for part, shared, memory in zip(self.local, broadcast.shared, memories, strict=True)
            ),
            shared=broadcast.shared,
            kept=memories,
        )

    def step(self, local: Local, gradient_at: GradientAt) -> Local:
        """One local step; `gradient_at(point)` is this step's stochastic gradient at a point like `local.params`."""
        point, local = self.look(local, gradient_at)
        return self.move(local, gradient_at(point))

    def look(self, local: Local, gradient_at: GradientAt) -> tuple[Tensor, Local]:
        """The point at which this step's gradient is taken: the parameters, unless a transform moves it."""
        if not self.looks_ahead:
            return local.params, local
        point, states = local.params, []
        for index, part in enumerate(self.local):
            point, state = part.look(point, local.states[index], self._view(local, index), gradient_at)
            states.append(in_form_of(local.states[index], state, part, "look"))
        return point, replace(local, states=tuple(states))

    def move(self, local: Local, gradient: Tensor) -> Local:
        """Pass the gradient through the chain and subtract the result."""
        update, states = gradient, []
        for index, part in enumerate(self.local):
            update, state = part.apply(update, local.states[index], self._view(local, index))
            states.append(in_form_of(local.states[index], state, part, "apply"))
        return Local(
            params=_minus(local.params, local.lr, update),
            anchor=local.anchor,
            lr=local.lr,
            states=tuple(states),
            shared=local.shared,
            kept=local.kept,
        )

    def descend(self, params: list[Tensor], gradients: list[Tensor], lr: Scalar) -> None:
        """One local step of a method without transforms, to the bits of `step`, in the parameters' own memory.

        The vectors are given in parts. A negative zero among the gradients counts where a parameter is one too.
        """
        assert not self.local, "transforms work on whole vectors, and may hold them"
        if params[0].device.type == "cpu":
            # One pass over memory. The division keeps the product from being fused with the sum, to other bits.
            one = torch.ones((), dtype=params[0].dtype)
            torch._foreach_addcdiv_(params, gradients, [one] * len(params), value=-float(lr))
        else:
            torch._foreach_add_(params, torch._foreach_mul(gradients, -lr))

    @property
    def looks_ahead(self) -> bool:
        """Whether a transform takes the gradient at a point other than the parameters."""
        return any(type(part).look is not LocalTransform.look for part in self.local)

    def finish(self, local: Local, num_steps: Scalar) -> tuple[Upload, Kept]:
        """The client's upload after its `num_steps` steps, and its new private state."""
        done = ClientRound(delta=local.anchor - local.params, num_steps=num_steps, lr=local.lr)
        parts = [
            part.finish(local.states[index], done, self._view(local, index)) for index, part in enumerate(self.local)
        ]
        memory = tuple(
            in_form_of(old, new, part, "finish")
            for part, old, (_, new) in zip(self.local, local.kept, parts, strict=True)
        )
        upload = Upload(done.delta, tuple(extra for extra, _ in parts))
        if self.personal is None:
            return upload, Kept(memory)
        # For personal parameters a client is a federation of one, whose server adopts its update as it is.
        alone = Round(done.delta, num_steps, local.lr, participation=1.0)
        own = self.personal.memory(local.params, self._merged(local.shared, upload.extra, alone))
        memory = tuple(
            self.personal.unpaired(old, new, part.paired)
            for part, old, new in zip(self.local, local.kept, memory, strict=True)
        )
        return self.personal.without(upload, [part.positive for part in self.local]), Kept((*memory, own))

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        """One upload from those of the cohort, in the order of the clients' numbers; by default their weighted mean."""
        return self.combiner.combine(uploads, weights)

    def with_combiner(self, combiner: Combiner | str | None) -> FederatedMethod:
        """The same method with another combiner than the mean; None leaves it as it is."""
        if combiner is None:
            return self
        own = as_combiner(combiner)
        if not isinstance(self.combiner, Mean) and own != self.combiner:
            raise ValueError(f"{self.name} has a combiner of its own, {self.combiner!r}: leave combiner out")
        return replace(self, combiner=own)

    def aggregate(
        self, server: Server, combined: Upload, *, lr: Scalar, num_steps: Scalar, participation: float
    ) -> Server:
        """The server after a round, from the combined upload.

        `lr` is the clients' rate of this round, `num_steps` their mean number of steps, `participation` the active
        share of all clients' weight.
        """
        round = Round(delta=combined.delta, num_steps=num_steps, lr=lr, participation=participation)
        params, optimizer = self.server.step(server.params, combined.delta, server.optimizer, round)
        optimizer = in_form_of(server.optimizer, optimizer, self.server, "step")
        after = Server(params, self._merged(server.shared, combined.extra, round), optimizer)
        if isinstance(lr, float) and lr == 0 and not all_finite(after):
            raise ValueError(f"{self.name} divides by the clients' rate, which was 0 in this round: skip the round")
        return after if self.personal is None else self.personal.unmoved(server, after)

    def _merged(self, shared: PerTransform, extra: PerTransform, round: Round) -> PerTransform:
        return tuple(
            in_form_of(old, part.merge(old, own, round), part, "merge")
            for part, old, own in zip(self.local, shared, extra, strict=True)
        )

    def own_params(self, params: Tensor, kept: Kept | None) -> Tensor:
        """A client's model: the given parameters, with its own personal ones in place."""
        if self.personal is None or kept is None:
            return params
        return self.personal.joined(params, kept.memory[len(self.local)]["params"].to(params.device))

    def other_models(self, server: Server) -> Vectors:
        """The models that the server optimizer has besides the global one, by name."""
        return self.server.other_models(server.params, server.optimizer)

    @property
    def may_draw(self) -> bool:
        """Whether a part is a user's own, which may draw from Python's and NumPy's generators; ours use torch's."""
        parts = (self, *self.local, self.server, self.combiner)
        return not all(type(part).__module__.startswith("fedlada.") for part in parts)

    def num_vectors(self) -> tuple[int, int]:
        """Vectors of the model's size sent down and up per client and round."""
        tried = self.dry_run
        down, up = ([one.numel() for _, one in named_tensors(state)] for state in (tried.broadcast, tried.upload))
        return down.count(tried.num_params), up.count(tried.num_params)

    @property
    def gradients_per_step(self) -> int:
        """Gradients that a local step computes on its batch: two for SAM."""
        return self.dry_run.gradients

    @property
    def keeps_memory(self) -> bool:
        """Whether clients keep private state between rounds."""
        return self.personal is not None or any(self.dry_run.local.kept)

    @property
    def num_memories(self) -> int:
        """Number of dicts of vectors in a client's private state."""
        return len(self.local) + (self.personal is not None)

    @cached_property
    def dry_run(self) -> DryRun:
        """One step of one client on the smallest model that works; tensors held by the parts are cut to its size."""
        problem: Exception | None = None
        for size in DRY_RUN_SIZES:
            params = torch.ones(size)
            here = self.with_tensor_fields(partial(suited, like=params))
            for whole in (size, *self._lengths):
                try:
                    return here.with_tensor_fields(partial(cut, size=size, whole=whole))._dry_run_on(params)
                except Exception as error:
                    problem = problem or error
        assert problem is not None
        for part in self.local:
            for name, value in held_by(part).items():
                if hasattr(value, "__array_interface__") or (isinstance(value, (list, tuple)) and len(value) > 1):
                    kind = type(value).__name__
                    raise ValueError(
                        f"{type(part).__name__}.{name} is of type {kind}, and a step with it failed: {problem}; "
                        "if it has a number for each parameter, make it a tensor: torch.as_tensor(...)"
                    ) from problem
        raise ValueError(f"the method {self.name!r} cannot take a first step: {blamed(problem)}") from problem

    def _dry_run_on(self, params: Tensor) -> DryRun:
        broadcast = self.init(params).broadcast
        points: list[Tensor] = []

        def gradient_at(point: Tensor) -> Tensor:
            points.append(point)
            return params

        local = self.step(self.begin(broadcast, self.init_kept(params), lr=1.0), gradient_at)
        upload, _ = self.finish(local, 1)
        self._merged(broadcast.shared, upload.extra, Round(upload.delta, 1, 1.0, participation=0.5))
        return DryRun(params.numel(), broadcast, local, upload, len(points))

    def suited_to(self, params: Tensor) -> FederatedMethod:
        """The same method with the tensors of its parts, such as masks, on the device and in the dtype of `params`.

        Tensors that do not fit a model of this size are refused.
        """
        if not self._lengths:
            return self
        own = self.with_tensor_fields(partial(suited, like=params))
        try:
            own._dry_run_on(params)
        except Exception as error:
            sizes = " and ".join(map(str, self._lengths))
            raise ValueError(
                f"the method {self.name!r} holds tensors of length {sizes} and cannot take a step of a model of "
                f"{params.numel()} parameters: {blamed(error)}"
            ) from error
        return own

    def with_tensor_fields(self, function: Callable[[Tensor], Tensor]) -> FederatedMethod:
        """The same method with `function` applied to the tensors that its parts hold."""
        local = tuple(map_tensor_fields(function, part) for part in self.local)
        server, combiner = map_tensor_fields(function, self.server), map_tensor_fields(function, self.combiner)
        personal = None if self.personal is None else map_tensor_fields(function, self.personal)
        parts, own = (*local, server, combiner, personal), (*self.local, self.server, self.combiner, self.personal)
        if all(map(operator.is_, parts, own)):
            return self
        return replace(self, local=local, server=server, combiner=combiner, personal=personal)

    @property
    def _lengths(self) -> list[int]:
        personal = () if self.personal is None else (self.personal,)
        return lengths((*self.local, self.server, self.combiner, *personal))

    @staticmethod
    def _view(local: Local, index: int) -> Step:
        return Step(local.params, local.anchor, local.shared[index], local.kept[index])


def _minus(params: Tensor, lr: Scalar, update: Tensor) -> Tensor:
    """x - lr * update, to the same bits; the product's memory becomes the result's, which is faster on a CPU."""
    product = update * -lr
    fits = product.shape == params.shape and product.dtype == params.dtype
    return product.add_(params) if fits else params + product


def _given(part: object) -> str:
    return f"the class {part.__name__} (make one: {part.__name__}())" if isinstance(part, type) else repr(part)
