"""The sequential engine, one client at a time: the reference for all others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.check_fit import check_fit
from fedlada.engines.cpu_kernels import fast_cpu_kernels
from fedlada.engines.cpu_layout import Forward, forward_for
from fedlada.engines.cpu_memory import freed_memory_kept
from fedlada.engines.deterministic import same_bits_every_time
from fedlada.engines.dropout import MakeMode, dropout_of_steps, elements_if_dropped
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import AS_USUAL, EvaluationOptions, Loss, Metric, evaluate
from fedlada.engines.quiet import quiet_recurrent
from fedlada.engines.tally import Answer, Answers, answer_of
from fedlada.engines.untrained import Untrained
from fedlada.engines.writes import Writes
from fedlada.federation.plan import Assignment, RoundPlan
from fedlada.federation.randomness import seed_generators, seed_python
from fedlada.methods.method import FederatedMethod
from fedlada.methods.random_state import python_randomness_restored, randomness_restored
from fedlada.methods.state import Broadcast, Kept, Local, map_tensors, named_tensors
from fedlada.models.call import call
from fedlada.models.flat import FlatModel, has_negative_zeros, model_with


class SequentialEngine(Engine):
    """Runs on any device, in float32 or float64, and holds one client at a time."""

    kind = "sequential"

    def __init__(
        self,
        model: nn.Module,
        method: FederatedMethod,
        samples: Samples,
        loss: Loss | None,
        *,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.samples = samples
        self.device = device
        self.template = model
        self.flat = FlatModel(model, device, dtype)
        self.method = method.suited_to(self.flat.vector)
        with quiet_recurrent(self.flat.module), randomness_restored() as drawn:
            self.loss = check_fit(self.flat, samples, loss, "training")
            x, _ = samples.batch(np.arange(min(2, len(samples))))
            with Writes(self.flat.vector) as writes:
                self.elements = elements_if_dropped(self.flat, x)
            self.forward = forward_for(self.flat.module, x)
            self.seeds_python = not isinstance(samples, ArraySamples) or method.may_draw or drawn()
            """Whether a user's code may draw from the generators of Python and NumPy, which takes time to seed."""
        self.writes = writes.found
        """Whether the model writes to its own parameters, as an embedding with `max_norm` does."""
        # The model's own memory can hold a client's parameters if nobody else reads or writes them.
        self.in_place = type(self.method) is FederatedMethod and not self.method.local and not self.writes
        self.signed_zeros = False
        """Whether zeros in gradients may be negative, as autograd gives them: no parameter of the client is one."""
        self.looked_at: Tensor | None = None
        """The parameters of which that was found: those of all clients of a round, most often."""
        self.untrained = Untrained(self.flat.module)
        self.why = f"one client after another on {device.type}"

    def initial_params(self) -> Tensor:
        return self.flat.vector.clone()

    def data_digest(self) -> str:
        return self.samples.digest()

    def check_test(self, samples: Samples, what: str = "test") -> None:
        with quiet_recurrent(self.flat.module):
            check_fit(self.flat, samples, self.loss, what)

    def evaluate(
        self,
        params: Tensor,
        samples: Samples,
        metrics: Mapping[str, Metric],
        options: EvaluationOptions = AS_USUAL,
    ) -> dict[str, float]:
        self.flat.load(params)
        with self._kernels(), quiet_recurrent(self.flat.module):
            return evaluate(self.flat.module, samples, self.loss, metrics=metrics, batch_size=options.eval_batch_size)

    def model(self, params: Tensor) -> nn.Module:
        return model_with(self.template, params)

    def answers(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> Answers:
        self.looked_at = None
        with (
            self._own_random_numbers(),
            same_bits_every_time(self.device),
            self._kernels(),
            freed_memory_kept(self.device),
        ):
            for work in plan.assignments:
                memory = kept.get(work.client)
                if not memory:
                    self._seed(work)
                    memory = self.method.init_kept(broadcast.params)
                here = map_tensors(lambda vector: vector.to(self.device), memory)  # a resumed state is on the host
                try:
                    answer = self.train_client(broadcast, here, work, lr=plan.lr)
                except Exception as error:
                    error.add_note(f"in round {plan.round}, while client {work.client} was trained")
                    raise
                yield answer

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        with (
            torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            python_randomness_restored() if self.seeds_python else nullcontext(),
        ):
            yield

    def _kernels(self) -> AbstractContextManager[None]:
        return fast_cpu_kernels(self.device, self.flat.vector.numel())

    def _seed(self, work: Assignment) -> None:
        seed_generators(work.seed, self.device)
        if self.seeds_python:
            seed_python(work.seed)

    def train_client(self, broadcast: Broadcast, kept: Kept, work: Assignment, *, lr: float) -> Answer:
        """One client's round, as in the pseudocode."""
        self.flat.train()
        self._seed(work)
        losses = torch.zeros((), device=self.device, dtype=torch.float64)
        before = _versions(broadcast, kept)
        local = self.method.begin(broadcast, kept, lr=lr)
        if self.writes:
            local = replace(local, params=local.params.clone())
        dropouts = dropout_of_steps(self.elements, work, self.device)
        with quiet_recurrent(self.flat.module):
            for batch, words, dropout in zip(work.batches, work.words, dropouts, strict=True):
                gradient_at = BatchGradient(
                    self.flat, self.loss, *self.samples.batch(batch, words), dropout, self.forward, writes=self.writes
                )
                local = self._step(local, gradient_at)
                losses += gradient_at.first_loss
        self.untrained.check()
        upload, new_kept = self.method.finish(local, work.num_steps)
        self._refuse_writes(before, _versions(broadcast, kept))
        return answer_of(work, upload, new_kept, float(losses) / work.num_steps)

    def _refuse_writes(self, before: dict[str, int], after: dict[str, int]) -> None:
        """Refuse a method that wrote to what a client was given."""
        if changed := [name for name, version in after.items() if version != before[name]]:
            raise ValueError(
                f"a transform of {self.method.name} changes the vector {changed[0]}, which other clients use too, in "
                "place: hooks return new tensors"
            )

    def _step(self, local: Local, gradient_at: BatchGradient) -> Local:
        if not self.in_place:
            return self.method.step(local, gradient_at)
        if local.params is not self.flat.vector and local.params is not self.looked_at:
            # A client's first step; steps make no negative zeros.
            self.signed_zeros, self.looked_at = not has_negative_zeros(local.params), local.params
        params, gradients = self.flat.parts_of(gradient_at.loss_at(local.params), signed_zeros=self.signed_zeros)
        if params:
            self.method.descend(params, gradients, local.lr)
        return replace(local, params=self.flat.vector)


def _versions(*states: Broadcast | Kept) -> dict[str, int]:
    """How often each vector was written to."""
    return {name: one._version for state in states for name, one in named_tensors(state) if not one.is_inference()}


class BatchGradient:
    """A step's stochastic gradient as a function of the point: the same batch and the same random numbers each time."""

    def __init__(
        self,
        flat: FlatModel,
        loss: Loss,
        x: Any,
        y: Any,
        dropout: MakeMode,
        forward: Forward = call,
        *,
        writes: bool = False,
    ) -> None:
        self.flat, self.loss, self.x, self.y, self.dropout, self.forward = flat, loss, x, y, dropout, forward
        self.writes = writes
        self.first_loss: Tensor | float = math.nan
        self._random_states: list[Tensor] | None = None

    def __call__(self, point: Tensor) -> Tensor:
        gradient = self.flat.gradient_of(self.loss_at(point))
        if self.writes:
            point.copy_(self.flat.vector)  # what the forward pass wrote stays, as in a loop by hand
        return gradient

    def loss_at(self, point: Tensor) -> Tensor:
        """The loss of the batch at that point, with the graph that gives its gradient."""
        self.flat.load(point)
        with self._same_random_numbers():
            with self.dropout():
                output = self.forward(self.flat.module, self.x)
            loss = self.loss(output, self.y)
        if isinstance(self.first_loss, float):
            self.first_loss = loss.detach()
        return loss

    @contextmanager
    def _same_random_numbers(self) -> Iterator[None]:
        """Repeat the model's random numbers for each point of a step; a transform's own stream continues."""
        if self._random_states is None:
            self._random_states = self._states()
            yield
            return
        before = self._states()
        self._set_states(self._random_states)
        yield
        self._set_states(before)

    def _states(self) -> list[Tensor]:
        device = self.flat.vector.device
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    def _set_states(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for state in states[1:]:
            torch.cuda.set_rng_state(state, self.flat.vector.device)
