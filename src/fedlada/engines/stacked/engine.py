"""All clients of a cohort at once: one pass for all gradients, one for all updates."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.check_fit import check_fit
from fedlada.engines.deterministic import same_bits_every_time
from fedlada.engines.engine import Engine
from fedlada.engines.evaluation import AS_USUAL, EvaluationOptions, Loss, Metric, evaluate
from fedlada.engines.quiet import quiet_recurrent
from fedlada.engines.stacked.choice import choose_network
from fedlada.engines.stacked.evaluate import GraphedEvaluation
from fedlada.engines.stacked.feed import Feed
from fedlada.engines.stacked.kernels import Kernels
from fedlada.engines.stacked.memory import (
    Memories,
    activation_bytes,
    bytes_per_client,
    free_bytes,
    places_that_fit,
)
from fedlada.engines.stacked.networks import Network
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.engines.stacked.precision import resolve_precision
from fedlada.engines.stacked.stack import Stack
from fedlada.engines.tally import Answer, Answers
from fedlada.engines.untrained import Untrained
from fedlada.federation.plan import Assignment, RoundPlan
from fedlada.methods.method import FederatedMethod
from fedlada.methods.random_state import randomness_restored
from fedlada.methods.state import Broadcast, Kept, Upload, map_tensors, named_tensors, num_bytes
from fedlada.methods.testing.observed import depends_on_order, ignores_zeros, is_random, reads_numbers, untried
from fedlada.models.flat import FlatModel, model_with

WORTH_COMPILING = 2000
"""Local steps of a whole run below which compiling takes longer than it saves."""
WORTH_COMPILING_GRADIENTS = 20_000
"""The same for the gradient of a model that goes through vmap: compiling takes longer and gains less."""


class StackedEngine(Engine):
    """Holds the state of many clients as `[C, P]` and takes every local step for all of them together.

    Raises `NotStackable` where model, loss or data cannot be stacked.
    """

    kind = "stacked"

    def __init__(
        self,
        model: nn.Module,
        method: FederatedMethod,
        samples: Samples,
        loss: Loss | None,
        *,
        device: torch.device,
        dtype: torch.dtype | None = None,
        precision: str = "auto",
        num_steps: int | None = None,
        short_batches: bool = True,
        cohort_size: int | None = None,
        max_places: int | None = None,
        largest_batch: int = 0,
    ) -> None:
        self.samples = samples
        self.device = device
        self.template = model
        self.flat = FlatModel(model, device, dtype)
        self.method = method.suited_to(self.flat.vector)
        with quiet_recurrent(self.flat.module), randomness_restored():
            self.loss = check_fit(self.flat, samples, loss, "training")
        # Half a minute of compiling is not worth it for a short run; the choice depends on nothing else,
        # so that a run repeats.
        self.compiles = device.type == "cuda" and (num_steps is None or num_steps >= WORTH_COMPILING)
        self.compiles_gradients = self.compiles and (num_steps is None or num_steps >= WORTH_COMPILING_GRADIENTS)
        self.compute, kernels = resolve_precision(precision, self.flat.vector, compiles=self.compiles)
        with quiet_recurrent(self.flat.module):
            self.network, takes_short_batches = self._choose(kernels)
        if is_random(method):
            raise NotStackable(f"a transform of {method.name} draws random numbers, which each client draws alone")
        if short_batches and not takes_short_batches:
            raise NotStackable("its loss is not a mean over samples, and batches differ in size")
        if reader := reads_numbers(self.method, self.flat.vector):
            raise NotStackable(
                f"a transform of {method.name} ({reader}) reads numbers in Python, for each client alone"
            )
        if error := untried(method):
            raise NotStackable(f"a transform of {method.name} fails on a trial of stacked clients ({error})")
        layout = self.network.layout
        # Personal parameters are found by their numbers.
        if self.method.personal is not None or not ignores_zeros(self.method, self.flat.vector):
            layout.padding = 0
        if not layout.is_identity:
            why = depends_on_order(self.method, self.flat.vector, layout.inward, layout.outward)
            if why:
                way = "; declare elementwise = True if it does not matter" if why.startswith("may") else ""
                raise NotStackable(f"a transform of {method.name} {why} of the parameters, which stacking changes{way}")
        self.untrained = Untrained(self.network.module)
        self.memories = Memories(layout, self.flat.vector)
        self.cohort_size, self.max_places = cohort_size, max_places
        # A resumed run that met smaller batches first would compute with other padding.
        self.batch_size = largest_batch
        self.stacks: dict[tuple[int, int], Stack] = {}
        self.feeds: dict[tuple[int, int, int], Feed] = {}
        self.evaluations: dict[tuple[Samples, int], GraphedEvaluation] = {}
        self.evaluates_by_graph = True
        self.why = self._why()

    def _choose(self, kernels: Kernels) -> tuple[Network, bool]:
        """The stacked form in the requested precision, or in the model's own if it does not run in that."""
        own = self.flat.vector.dtype
        try:
            return self._network(self.compute, kernels)
        except NotStackable:
            if self.compute == own:
                raise
            self.compute = own
            return self._network(own, kernels)

    def _network(self, compute: torch.dtype, kernels: Kernels) -> tuple[Network, bool]:
        return choose_network(self.flat, self.samples, self.loss, compute, kernels, compiles=self.compiles_gradients)

    def _why(self) -> str:
        numbers = str(self.compute).removeprefix("torch.")
        what = f"all clients at once on {self.device.type}, {self.network.form}, in {numbers}"
        if self.network.passed_over:
            what += f" (not layer by layer: {self.network.passed_over[0]})"
        if self.compiles:
            return f"{what}; kernels are compiled once for this machine, which takes six seconds or more"
        return what

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
        measured = (
            self._graphed(samples, options.eval_batch_size) if self.device.type == "cuda" and not metrics else None
        )
        if measured is None:
            with quiet_recurrent(self.flat.module):
                measured = evaluate(
                    self.flat.module, samples, self.loss, metrics=metrics, batch_size=options.eval_batch_size
                )
        self.flat.train()  # frozen parts return to their own mode
        return measured

    def _graphed(self, samples: Samples, batch_size: int) -> dict[str, float] | None:
        """Evaluation as a CUDA graph; None where the samples or the model do not allow one."""
        if not isinstance(samples, ArraySamples) or not self.evaluates_by_graph:
            return None
        key = (samples, batch_size)
        if key not in self.evaluations:
            self.evaluations[key] = GraphedEvaluation(self.flat.module, samples, self.loss, batch_size)
        try:
            with quiet_recurrent(self.flat.module):
                return self.evaluations[key]()
        except RuntimeError as error:
            self.evaluates_by_graph = False
            warnings.warn(f"the evaluation cannot be captured as a graph and runs without: {error}", stacklevel=3)
            return None

    def model(self, params: Tensor) -> nn.Module:
        return model_with(self.template, params)

    def answers(self, broadcast: Broadcast, plan: RoundPlan, kept: Mapping[int, Kept]) -> Answers:
        if self.method.keeps_memory:
            per_client = num_bytes(self.method.init_kept(broadcast.params))
            self.memories.plan(per_client, len(kept) + len(plan.assignments))
        places = self._places(plan.assignments)
        with same_bits_every_time(self.device):
            for work in _chunks(plan.assignments, places):
                memories = [kept.get(one.client) or self.method.init_kept(broadcast.params) for one in work]
                yield from self._run_stack(places, broadcast, work, memories, plan.lr)
        self.memories.wait()

    def outward(self, upload: Upload) -> Upload:
        return map_tensors(self.network.layout.outward, upload)

    def prepare(self, plan: RoundPlan) -> None:
        """Prepare the next round's work while the GPU computes this one."""
        wanted = self._rounded(len(plan.assignments))
        places = min(wanted, self.max_places or wanted)
        if not any(known == places for known, _ in self.stacks):
            return  # how many fit is known only when the memory of this round is free
        self.feeds = {
            (work[0].seed, places, self.batch_size): self._feed(work, places, self.batch_size)
            for work in _chunks(plan.assignments, places)
            if _largest_batch(work) <= self.batch_size
        }

    def _feed(self, work: Sequence[Assignment], places: int, batch_size: int) -> Feed:
        return Feed.of(work, places, batch_size, has_dropout=self.network.elements is not None)

    def _run_stack(
        self, places: int, broadcast: Broadcast, work: Sequence[Assignment], kept: Sequence[Kept], lr: float
    ) -> Iterator[Answer]:
        """The local work of some clients."""
        stack = self._stack(places, work)
        key = (work[0].seed, places, stack.batch_size)
        feed = self.feeds.pop(key, None) or self._feed(work, places, stack.batch_size)
        stack.run(broadcast, kept, work, lr, feed)
        self.untrained.check()
        if self.while_waiting is not None:
            self.while_waiting()
        upload, new_kept = stack.finish()
        norms = torch.linalg.vector_norm(upload.delta, dim=1, dtype=torch.float64)
        # One transfer for all numbers: each would wait for the GPU.
        finite, squares, losses = torch.stack([_finite(upload, new_kept, places), norms**2, stack.losses]).tolist()
        for place, one in enumerate(work):
            own = map_tensors(lambda rows, place=place: rows[place], upload)  # type: ignore[misc]
            memory = self.memories.keep(new_kept, place) if self.method.keeps_memory else Kept(())
            yield Answer(one, own, memory, losses[place] / one.num_steps, squares[place], bool(finite[place]))

    def _stack(self, places: int, work: Sequence[Assignment]) -> Stack:
        """A stack with this many places and room for these batches; buffers are allocated once and kept."""
        if (largest := _largest_batch(work)) > self.batch_size:
            self.batch_size = largest
            self._drop_stacks()  # they have room for smaller batches
        key = (places, self.batch_size)
        if key not in self.stacks:
            if self.device.type != "cuda":
                self._drop_stacks()  # only a graph of a GPU is worth keeping for a cohort of that size
            per_client = bytes_per_client(self.method, self.flat.vector, self.compute)
            if 3 * places * per_client > free_bytes(self.device):
                self._drop_stacks()  # both sizes may not fit: the old one is freed first
            self.stacks[key] = Stack(
                self.network,
                self.method,
                self.samples,
                places=places,
                batch_size=self.batch_size,
                like=self.flat.vector,
                compute=self.compute,
                memories=self.memories,
                compiles=self.compiles,
            )
        return self.stacks[key]

    def _places(self, work: Sequence[Assignment]) -> int:
        """How many clients to take at once: all, if the memory has room for them."""
        wanted = self._rounded(len(work))
        if self.max_places is not None:
            return max(1, min(self.max_places, wanted))
        if not work or any(places == wanted for places, _ in self.stacks):
            return max(1, wanted)
        per_client = bytes_per_client(self.method, self.flat.vector, self.compute)
        activations = activation_bytes(self.flat, self.samples, max(self.batch_size, _largest_batch(work)))
        places = places_that_fit(free_bytes(self.device), per_client, activations, wanted)
        if places < wanted and self.stacks:  # stacks of other sizes hold memory too
            self._drop_stacks()
            places = places_that_fit(free_bytes(self.device), per_client, activations, wanted)
        if places < wanted:
            self.max_places = places
        return places

    def _drop_stacks(self) -> None:
        self.stacks = {}
        self.network.release()

    def _rounded(self, num_clients: int) -> int:
        """On a GPU another size is another graph, so places stay empty where sizes change from round to round."""
        if self.device.type != "cuda":
            return num_clients
        if self.cohort_size is not None and num_clients <= self.cohort_size:
            return self.cohort_size
        step = 1 if num_clients <= 4 else 2 if num_clients <= 16 else 4
        return -(-num_clients // step) * step


def _chunks(work: Sequence[Assignment], places: int) -> Iterator[Sequence[Assignment]]:
    for start in range(0, len(work), places):
        yield work[start : start + places]


def _largest_batch(work: Sequence[Assignment]) -> int:
    return max(len(batch) for one in work for batch in one.batches)


def _finite(upload: Upload, kept: Kept, places: int) -> Tensor:
    """For each place 1 if all its results are finite, else 0."""
    # The largest magnitude is NaN or infinite if any number is, and takes one pass without a copy.
    vectors = [vector for state in (upload, kept) for _, vector in named_tensors(state) if vector.is_floating_point()]
    rows = [vector.flatten(1) if vector.ndim > 2 else vector for vector in vectors]
    largest = [torch.linalg.vector_norm(one, ord=torch.inf, dim=-1) for one in rows]
    return torch.stack([one.expand(places) for one in largest]).isfinite().all(dim=0).double()
