"""The choice of a model's stacked form, checked against the model's own gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fedlada.data.samples import ArraySamples, Samples
from fedlada.engines.classes import ignored_by
from fedlada.engines.default_loss import known_labels
from fedlada.engines.dropout import CounterDropout
from fedlada.engines.evaluation import Loss
from fedlada.engines.masks import Elements
from fedlada.engines.refusal import first_line
from fedlada.engines.stacked.feed import floats_as
from fedlada.engines.stacked.fused import Example
from fedlada.engines.stacked.kernels import Kernels, TorchKernels
from fedlada.engines.stacked.losses import MOST_SCORES, client_losses
from fedlada.engines.stacked.networks import LayeredNetwork, Network, VmappedNetwork
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.engines.stacked.numbers_read import NumbersRead
from fedlada.engines.writes import Writes
from fedlada.federation.randomness import Ints, bits, permutation
from fedlada.methods.random_state import python_randomness_restored, randomness_restored
from fedlada.models.call import call
from fedlada.models.flat import FlatModel, private_copy

CHECK_CLIENTS, CHECK_BATCH = 2, 3
MOST_TRIED = 32
"""Samples of which the outputs are compared with those of their parts."""
READ_TARGETS = 64
"""Targets that are tried of samples that have to be read."""


def choose_network(
    flat: FlatModel,
    samples: Samples,
    loss: Loss,
    compute: torch.dtype,
    kernels: Kernels | None = None,
    *,
    compiles: bool = False,
) -> tuple[Network, bool]:
    """The stacked form of a model, and whether it takes clients with short batches; `NotStackable` says why not.

    Each form is tested on real samples in float64 and plain torch, and rejected if its gradients differ from the
    model's own.
    """
    reference = _Reference(flat, samples, loss)
    try:
        losses, takes_short_batches = client_losses(
            loss,
            reference.output,
            reference.y[:CHECK_BATCH],
            _classes(samples),
            lambda: _targets(samples, reference.output),
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NotStackable(f"its loss cannot be tried in float64: {first_line(error)}") from None
    if takes_short_batches:
        takes_short_batches = not any(getattr(one, "scale_grad_by_freq", False) for one in flat.module.modules())
    forms: dict[str, Callable[[nn.Module, Kernels], Network]] = {
        "layer by layer": lambda module, kernels: LayeredNetwork(module, losses, kernels),
        "by torch.func.vmap": lambda module, _: VmappedNetwork(module, losses),
    }
    reasons: list[str] = []
    for name, form in forms.items():
        try:
            if name == "layer by layer" and reference.read:
                raise NotStackable(f"its forward pass reads numbers in Python ({reference.read}), for each client")
            reference.check(form(reference.flat.module, TorchKernels()), takes_short_batches)
            if takes_short_batches:
                reference.check_parts(samples)
            module = flat.module if compute == flat.vector.dtype else private_copy(flat.module, dtype=compute)
            reference.check_runs(form(module, TorchKernels()), compute)
            network = form(module, kernels or TorchKernels())
            network.elements = Elements() if reference.elements.made else None
            if compiles and isinstance(network, VmappedNetwork):
                network.compile(*reference.recorded(VmappedNetwork(reference.flat.module, losses), module, compute))
        except torch.OutOfMemoryError:
            raise  # no property of the model
        except Exception as error:  # a user's model can raise anything
            reasons.append(first_line(error))
            continue
        network.passed_over = reasons
        return network, takes_short_batches
    raise NotStackable("; ".join(f"{name} {reason}" for name, reason in zip(forms, reasons, strict=True)))


def _classes(samples: Samples) -> Tensor | None:
    """All classes that occur, if labels are classes and in memory."""
    if not isinstance(samples, ArraySamples) or samples.y.is_floating_point() or samples.y.ndim != 1:
        return None
    return torch.from_numpy(np.unique(samples.labels())).to(samples.y)


def _targets(samples: Samples, output: Tensor) -> Tensor:
    """Targets from all over the data: all of them, if they are in memory and not too many."""
    spread = permutation(bits(0, "trial"), len(samples))
    if isinstance(samples, ArraySamples):
        most = max(READ_TARGETS, MOST_SCORES * len(output) // max(1, output.numel()))
        y = samples.targets(torch.from_numpy(np.sort(spread[:most])).to(samples.y.device))
    else:
        _, y = samples.batch(spread[:READ_TARGETS])
    return y.double() if y.is_floating_point() else y


def _on_trial(samples: Samples, loss: Loss) -> Ints:
    """Samples from all over the data, since the first may be of one class; those with a target that counts."""
    spread = permutation(bits(0, "trial"), len(samples))
    are_numbers = isinstance(samples, ArraySamples) and samples.y.is_floating_point()
    if not are_numbers and (labels := known_labels(samples)) is not None:
        counts = (labels != ignored_by(loss)).reshape(len(labels), -1).any(axis=1)
        spread = spread[counts[spread]] if counts.any() else spread
    return spread[np.arange(CHECK_CLIENTS * CHECK_BATCH) % len(spread)]


class _Reference:
    """Reference gradients on a few real samples, of two clients with slightly different parameters, one by one."""

    def __init__(self, flat: FlatModel, samples: Samples, loss: Loss) -> None:
        self.flat = FlatModel(flat.module, flat.vector.device, torch.float64)
        self.loss = copy.deepcopy(loss).double() if isinstance(loss, nn.modules.loss._WeightedLoss) else loss
        with randomness_restored() as drawn:
            x, y = samples.batch(_on_trial(samples, loss))
            if drawn():
                raise NotStackable("its samples are drawn at random when they are read, which each client does alone")
        if not isinstance(y, Tensor) or not all(isinstance(one, Tensor) and one.ndim for one in tree_leaves(x)):
            raise NotStackable("its inputs are not tensors, or its targets not one tensor")
        self.x, self.y = floats_as((x, y), torch.float64)
        self.elements = Elements()
        self.keys = torch.tensor([1, 2], device=y.device)
        with (
            torch.random.fork_rng(devices=[y.device] if y.is_cuda else []),
            python_randomness_restored() as drawn,
        ):
            before = _generators(y.device)
            self.output = self._forward()
            pairs = zip(before, _generators(y.device), strict=True)
            if drawn() or any(not torch.equal(one, other) for one, other in pairs):
                raise NotStackable(
                    "it draws random numbers in its forward pass, other than dropout, which each client draws alone"
                )
        is_rows = isinstance(self.output, Tensor) and self.output.ndim > 0 and len(self.output) == CHECK_BATCH
        if not is_rows:
            raise NotStackable("its output is not one tensor with a row for each sample")

    def _forward(self) -> Any:
        watch = NumbersRead(self.flat.module)
        try:
            with self._dropout(0), watch, Writes(self.flat.vector) as writes:
                output = call(self.flat.module, self._inputs(slice(CHECK_BATCH)))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise NotStackable(f"it cannot be tried in float64: {first_line(error)}") from None
        if writes.found:
            raise NotStackable("its forward pass writes to its own parameters")
        self.read = watch.found
        """The call by which the forward pass reads a number in Python."""
        return output.detach() if isinstance(output, Tensor) else output

    def check_parts(self, samples: Samples) -> None:
        """Refuse a model whose outputs for a batch are not those for its parts; few samples may be too few to tell.

        A short batch is filled up, so that its samples are computed beside others.
        """
        if self.elements.made or len(samples) < 2:
            return  # masks depend on the place in the batch
        rows = permutation(bits(0, "parts"), len(samples))[:MOST_TRIED]
        with randomness_restored():
            x = floats_as(samples.batch(rows)[0], torch.float64)
        cut = max(1, len(rows) // 3)
        with torch.no_grad():
            try:
                whole, *parts = (
                    call(self.flat.module, tree_map(lambda one, part=part: one[part], x))
                    for part in (slice(None), slice(cut), slice(cut, None))
                )
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise NotStackable(f"it cannot be tried in float64: {first_line(error)}") from None
        if not torch.allclose(whole, torch.cat(parts), rtol=1e-7, atol=1e-9, equal_nan=True):
            raise NotStackable("its outputs for a batch are not those for its parts: a layer may mix samples")

    def _inputs(self, batch: slice) -> Any:
        return tree_map(lambda one: one[batch], self.x)

    def _dropout(self, client: int) -> CounterDropout:
        return CounterDropout(self.keys[client], self.elements, in_check=True)

    def check(self, network: Network, takes_short_batches: bool) -> None:
        """Refuse a form whose gradients are not the model's own."""
        layout, vector = network.layout, self.flat.vector.clone()
        # The clients differ, so that a form that reads another client's parameters is detected.
        clients = [vector, vector * 1.01]
        sizes = [CHECK_BATCH, CHECK_BATCH - 1 if takes_short_batches else CHECK_BATCH]
        weights = torch.stack([_weights(size, self.y.device) for size in sizes])
        rows, grads = layout.rows(CHECK_CLIENTS, vector), layout.rows(CHECK_CLIENTS, vector)
        rows.copy_(torch.stack([layout.inward(own) for own in clients]))
        network.bind(rows, grads)
        network.elements, network.in_check = self.elements, True
        try:
            losses = network.backward(self.x, self.y, weights, self.keys)
        except (NotStackable, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise NotStackable(f"it fails: {first_line(error)}") from None
        expected_losses, expected = self._one_by_one(clients, sizes)
        close = _close(layout.outward(grads), expected) and _close(losses[:, None], expected_losses[:, None])
        if not close:
            raise NotStackable("it does not give its own gradients: a layer may mix samples")

    def check_runs(self, network: Network, compute: torch.dtype) -> None:
        """Refuse a form that does not run in the precision of the computation."""
        layout = network.layout
        rows, grads = (layout.rows(CHECK_CLIENTS, self.flat.vector, compute) for _ in range(2))
        rows.copy_(layout.inward(self.flat.vector).expand_as(rows))
        network.bind(rows, grads)
        x = floats_as(self.x, compute)
        y = self.y.to(torch.promote_types(compute, torch.float32)) if self.y.is_floating_point() else self.y
        weights = torch.stack([_weights(CHECK_BATCH, self.y.device)] * CHECK_CLIENTS)
        network.elements = self.elements
        network.backward(x, y, weights.to(torch.promote_types(compute, torch.float32)), self.keys)

    def recorded(self, network: VmappedNetwork, module: nn.Module, compute: torch.dtype) -> tuple[Example, str]:
        """Samples to compile the gradient of a module with, and why it had better not be; of the network in float64."""
        rows = network.layout.rows(CHECK_CLIENTS, self.flat.vector)
        network.bind(rows, rows)
        network.elements, network.in_check = self.elements, True
        weights = torch.stack([_weights(CHECK_BATCH, self.y.device)] * CHECK_CLIENTS)
        reason = network.why_not_recorded(
            Example(_parameters(network.module), self.x, self.y), self.x, self.y, weights, self.keys
        )
        x, y = floats_as((self.x, self.y), compute)
        return Example(_parameters(module), x, y), reason

    def _one_by_one(self, clients: list[Tensor], sizes: list[int]) -> tuple[Tensor, Tensor]:
        before = self.flat.vector.clone()
        losses, grads = [], []
        for number, (own, size) in enumerate(zip(clients, sizes, strict=True)):
            self.flat.load(own)
            batch = slice(number * CHECK_BATCH, number * CHECK_BATCH + size)
            with self._dropout(number):
                output = call(self.flat.module, self._inputs(batch))
            loss = self.loss(output, self.y[batch])
            losses.append(loss.detach())
            grads.append(self.flat.gradient_of(loss))
        self.flat.load(before)
        return torch.stack(losses), torch.stack(grads)


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    """Copies: those of the module go on to change."""
    return {name: one.detach().clone() for name, one in module.named_parameters() if one.requires_grad}


def _generators(device: torch.device) -> list[Tensor]:
    """The state of the generators that a model may draw from."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _weights(size: int, device: torch.device) -> Tensor:
    return (torch.arange(CHECK_BATCH, device=device) < size).double() / size


def _close(found: Tensor, expected: Tensor) -> bool:
    """Whether the gradients of each client are equal up to rounding, in the norm."""
    difference = torch.linalg.vector_norm(found - expected, dim=1)
    return bool((difference <= 1e-8 * torch.linalg.vector_norm(expected, dim=1) + 1e-12).all())
