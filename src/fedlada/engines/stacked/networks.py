"""The gradients of all clients in one pass: the stacked form of a model."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_leaves, tree_map

from fedlada.engines.attention import masks_as_given
from fedlada.engines.dropout import CounterDropout
from fedlada.engines.masks import Elements
from fedlada.engines.quiet import quiet_vmap
from fedlada.engines.stacked.bank import Bank, StackedLayer
from fedlada.engines.stacked.convolutions import CONVOLUTIONS
from fedlada.engines.stacked.fused import Example, Function, fused, why_not_recorded
from fedlada.engines.stacked.kernels import Kernels, by_client
from fedlada.engines.stacked.layers import stacked_layer
from fedlada.engines.stacked.layout import Layout
from fedlada.engines.stacked.losses import ClientLosses
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.engines.stacked.rules import ViewsOfAnyLayout, VmapRules
from fedlada.models.call import arguments, call, scores


class Network(ABC):
    """Computes `[C, P]` gradients; `bind` says where parameters are read and gradients written."""

    module: nn.Module
    layout: Layout
    form: str
    """A short description for the log."""
    passed_over: Sequence[str] = ()
    """Why forms that would be faster were not taken."""
    elements: Elements | None = None
    """The source of dropout masks, if the model has dropout."""
    in_check = False

    @abstractmethod
    def bind(self, weights: Tensor, grads: Tensor) -> None:
        """Rows `[C, P]` in the precision of the computation."""

    @abstractmethod
    def release(self) -> None:
        """Release the rows."""

    @abstractmethod
    def backward(self, x: Any, y: Tensor, weights: Tensor, keys: Tensor | None = None) -> Tensor:
        """Write the gradients of the clients' losses and return the losses `[C]`.

        x and y are `[C * B, ...]`; `weights` `[C, B]` are those of the samples in their client's mean; `keys` `[C]` are
        those of dropout.
        """

    def _dropout(self, keys: Tensor | None, num_samples: int | None = None) -> AbstractContextManager[Any]:
        if self.elements is None or keys is None:
            return nullcontext()
        return CounterDropout(keys, self.elements, num_samples=num_samples, in_check=self.in_check)


class LayeredNetwork(Network):
    """The model with its layers replaced by stacked ones; all else runs on the joint batch as it is."""

    def __init__(self, model: nn.Module, losses: ClientLosses, kernels: Kernels) -> None:
        parameters = _trained(model)
        owners = {id(parameter): name for name, parameter in parameters.items()}
        channels_last = {
            owners[id(module.weight)]
            for module in model.modules()
            if isinstance(module, CONVOLUTIONS) and id(module.weight) in owners
        }
        self.layout = Layout(parameters, channels_last)
        self.bank = Bank(self.layout, kernels, next(iter(parameters.values())).device)
        self.losses = losses
        self.layers: list[StackedLayer] = []
        self.module = self._converted(model, owners)
        self.form = f"layer by layer ({len(self.layers)} stacked layers, {type(kernels).__name__})"

    def _converted(self, model: nn.Module, owners: dict[int, str]) -> nn.Module:
        """A copy of the model's structure that shares frozen parameters with the original."""
        converted: dict[int, nn.Module] = {}

        def convert(module: nn.Module) -> nn.Module:
            if id(module) not in converted:
                layer = self._layer(module, owners)
                converted[id(module)] = self._plain(module, copied) if layer is None else layer.train(module.training)
            return converted[id(module)]

        def copied(module: nn.Module) -> nn.Module:
            result = copy.copy(module)
            result._modules = {name: one if one is None else convert(one) for name, one in module._modules.items()}
            return result

        return convert(model)

    def _plain(self, module: nn.Module, copied: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """A module without parameters: a kernel of ours, where there is one, or as it is."""
        pool = self.bank.kernels.max_pool(module) if type(module) is nn.MaxPool2d else None
        return pool or copied(module)

    def _layer(self, module: nn.Module, owners: dict[int, str]) -> StackedLayer | None:
        """The stacked form of a module that has trained parameters of its own."""
        own = {name: one for name, one in module._parameters.items() if one is not None}
        names = {name: owners[id(one)] for name, one in own.items() if id(one) in owners}
        if not names:
            return None
        if len(names) < len(own):
            raise NotStackable("a layer is frozen in part")
        layer = stacked_layer(module, self.bank, names)
        if layer is None or module._modules:
            raise NotStackable(f"{type(module).__name__} has no stacked form")
        for name, parameter in names.items():
            is_kernel = isinstance(module, CONVOLUTIONS) and name == "weight"
            if self.layout.places[parameter].channels_last != is_kernel:
                raise NotStackable("a convolution shares its weight with a layer that is no convolution")
        self.layers.append(layer)
        return layer

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        self.bank.bind(weights, grads)

    def release(self) -> None:
        self.bank.views = {}

    def backward(self, x: Any, y: Tensor, weights: Tensor, keys: Tensor | None = None) -> Tensor:
        self.bank.begin(weights.numel())
        with self._dropout(keys, weights.numel()), ViewsOfAnyLayout(), masks_as_given():
            output = call(self.module, x)
        losses = self.losses(_wide(output), y, weights)
        try:
            torch.autograd.backward(losses.sum())
        finally:
            self.bank.kernels.finish()
        return losses.detach()


class VmappedNetwork(Network):
    """torch.func.vmap over the clients: for any model that it can transform."""

    def __init__(self, model: nn.Module, losses: ClientLosses) -> None:
        self.module = model
        self.layout = Layout(_trained(model), set())
        self.losses = losses
        self.form = "by torch.func.vmap"
        self.example: Example | None = None
        self.fast: dict[Any, Function] = {}

    def compile(self, example: Example, reason: str) -> None:
        """Compile the gradient when it is first computed, unless there is a reason against it."""
        self.example = None if reason else example
        self.form += f", its gradient not compiled ({reason})" if reason else ", its gradient to be compiled"

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        self.weights = {name: self.layout.view(weights, name) for name in self.layout.names}
        self.grads = {name: self.layout.view(grads, name) for name in self.layout.names}

    def release(self) -> None:
        self.weights, self.grads, self.fast = {}, {}, {}

    def backward(self, x: Any, y: Tensor, weights: Tensor, keys: Tensor | None = None) -> Tensor:
        given = self._arguments(x, y, weights, keys)
        with quiet_vmap():
            grads, losses = self._function(given)(*given)
        for name, grad in grads.items():
            self.grads[name].copy_(grad)
        return losses.detach()

    def _arguments(self, x: Any, y: Tensor, weights: Tensor, keys: Tensor | None) -> tuple[Any, ...]:
        own_x, own_y = tree_map(lambda part: by_client(part, len(weights)), (x, y))
        return self.weights, own_x, own_y, weights, keys

    def why_not_recorded(self, example: Example, x: Any, y: Tensor, weights: Tensor, keys: Tensor) -> str:
        """Why the gradient of such samples cannot be recorded as a graph; nothing if it can."""
        with quiet_vmap():
            return why_not_recorded(self._of_clients, example, self._arguments(x, y, weights, keys))

    def _function(self, given: tuple[Any, ...]) -> Function:
        """Gradients and losses of all clients, compiled for arguments like these where that was asked for."""
        if self.example is None:
            return self._of_clients
        tensors = (part for part in tree_leaves(given) if isinstance(part, Tensor))
        kind = tuple((part.shape, part.stride(), part.dtype) for part in tensors)
        if kind not in self.fast:
            self.fast[kind] = fused(self._of_clients, self.example, given)
        return self.fast[kind]

    def _of_clients(
        self, weights: dict[str, Tensor], x: Any, y: Tensor, sample_weights: Tensor, keys: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        in_dims = (0, 0, 0, 0, None if keys is None else 0)
        # A model that draws random numbers itself is never stacked, so "error" would reveal a bug.
        each = vmap(grad_and_value(self._loss), in_dims, randomness="error")
        found: tuple[dict[str, Tensor], Tensor] = each(weights, x, y, sample_weights, keys)
        return found

    def _loss(
        self, parameters: dict[str, Tensor], x: Any, y: Tensor, sample_weights: Tensor, keys: Tensor | None
    ) -> Tensor:
        """The loss of one client."""
        with self._dropout(keys), VmapRules(), masks_as_given():
            output = scores(functional_call(self.module, parameters, *arguments(self.module, x)))
        return self.losses(_wide(output), y, sample_weights[None])[0]


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters, which may be in the precision of the computation."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _wide(output: Tensor) -> Tensor:
    """Losses are computed at least in float32."""
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
