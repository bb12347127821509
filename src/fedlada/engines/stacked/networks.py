"""The gradients of all clients in one pass: the stacked form of a model."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedlada.engines.stacked.kernels import Kernels, by_client
from fedlada.engines.stacked.layers import Bank, StackedLayer, stacked_layer
from fedlada.engines.stacked.layout import Layout
from fedlada.engines.stacked.losses import ClientLosses


class Network(ABC):
    """Computes `[C, P]` gradients; `bind` says where parameters are read and gradients written."""

    layout: Layout
    form: str
    """In a few words, for the log."""
    passed_over: Sequence[str] = ()
    """Why forms that would be faster were not taken."""

    @abstractmethod
    def bind(self, weights: Tensor, grads: Tensor) -> None:
        """Rows `[C, P]` in the precision of the computation."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the rows."""

    @abstractmethod
    def backward(self, x: Any, y: Tensor, weights: Tensor) -> Tensor:
        """Write the gradients of the clients' losses and return the losses `[C]`.

        x and y are `[C * B, ...]`; `weights` `[C, B]` are those of the samples in their client's mean.
        """


class LayeredNetwork(Network):
    """The model with its layers replaced by stacked ones; all else runs on the joint batch as it is."""

    def __init__(self, model: nn.Module, losses: ClientLosses, kernels: Kernels) -> None:
        parameters = _trained(model)
        owners = {id(parameter): name for name, parameter in parameters.items()}
        channels_last = {
            owners[id(module.weight)]
            for module in model.modules()
            if isinstance(module, nn.Conv2d) and id(module.weight) in owners
        }
        self.layout = Layout(parameters, channels_last)
        self.bank = Bank(self.layout, kernels, next(iter(parameters.values())).device)
        self.losses = losses
        self.layers: list[StackedLayer] = []
        self.module = self._converted(model, owners)
        self.form = f"layer by layer ({len(self.layers)} stacked layers, {type(kernels).__name__})"

    def _converted(self, model: nn.Module, owners: dict[int, str]) -> nn.Module:
        """A copy of the model's structure; what is frozen stays shared with the original."""
        seen: set[str] = set()

        def convert(module: nn.Module) -> nn.Module:
            own = {name: one for name, one in module._parameters.items() if one is not None}
            names = {name: owners[id(one)] for name, one in own.items() if id(one) in owners}
            if names:
                if len(names) < len(own):
                    raise NotStackable("a layer is frozen in part")
                layer = stacked_layer(module, self.bank, names)
                if layer is None or module._modules:
                    raise NotStackable(f"{type(module).__name__} has no stacked form")
                if seen & set(names.values()):
                    raise NotStackable("layers share their parameters")
                seen.update(names.values())
                self.layers.append(layer)
                return layer.train(module.training)
            result = copy.copy(module)
            result._modules = dict(module._modules)
            for name, child in module._modules.items():
                if child is not None:
                    result._modules[name] = converted.setdefault(id(child), convert(child))
            return result

        converted: dict[int, nn.Module] = {}
        return convert(model)

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        self.bank.bind(weights, grads)

    def release(self) -> None:
        self.bank.views = {}

    def backward(self, x: Any, y: Tensor, weights: Tensor) -> Tensor:
        losses = self.losses(_wide(self.module(x)), y, weights)
        torch.autograd.backward(losses.sum())
        return losses.detach()


class VmappedNetwork(Network):
    """torch.func over the clients: for any model that it can transform."""

    def __init__(self, model: nn.Module, losses: ClientLosses) -> None:
        self.module = model
        self.layout = Layout(_trained(model), set())
        self.losses = losses
        self.form = "by torch.func.vmap"

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        self.weights = {name: self.layout.view(weights, name) for name in self.layout.names}
        self.grads = {name: self.layout.view(grads, name) for name in self.layout.names}

    def release(self) -> None:
        self.weights, self.grads = {}, {}

    def backward(self, x: Any, y: Tensor, weights: Tensor) -> Tensor:
        def loss(parameters: dict[str, Tensor], x: Any, y: Tensor, weights: Tensor) -> Tensor:
            output = _wide(functional_call(self.module, parameters, (x,)))
            return self.losses(output, y, weights[None])[0]

        clients = len(weights)
        own_x, own_y = (by_client(part, clients) for part in (x, y))
        # A model that draws random numbers is not stacked at all, so "error" names a mistake.
        grads, losses = vmap(grad_and_value(loss), randomness="error")(self.weights, own_x, own_y, weights)
        for name, grad in grads.items():
            self.grads[name].copy_(grad)
        result: Tensor = losses.detach()
        return result


class NotStackable(ValueError):
    """Why a model cannot be stacked, or not in this form."""


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained, whatever its precision: here it may be that of the computation."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _wide(output: Tensor) -> Tensor:
    """Losses are computed in float32 at least."""
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
