"""Layers whose parameters are those of many clients. Their input is one batch `[C * B, ...]`, client after client.

What stands between them in a user's model (activations, pooling, shortcuts) treats every sample by itself and needs no
change. A layer writes the gradient of its parameters straight into its place in the gradient `[C, P]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from fedlada.engines.stacked.kernels import Affine, ConvShape, Kernels, NormShape, by_client
from fedlada.engines.stacked.layout import Layout
from fedlada.models.layers import GroupNorm


class Bank:
    """All clients' parameters and gradients, `[C, P]` each, and views of them by name."""

    def __init__(self, layout: Layout, kernels: Kernels, device: torch.device) -> None:
        self.layout = layout
        self.kernels = kernels
        # What autograd follows instead of the parameters: it makes every layer's backward pass run.
        self.tape = torch.zeros((), device=device, requires_grad=True)
        self.views: dict[str, tuple[Tensor, Tensor]] = {}

    def bind(self, weights: Tensor, grads: Tensor) -> None:
        """Take these rows as the parameters, and write gradients into those."""
        self.views = {
            name: (self.layout.view(weights, name), self.layout.view(grads, name)) for name in self.layout.names
        }


class StackedLayer(nn.Module, ABC):
    """One layer of all clients; `num_calls` tells whether the model uses it once, as it must."""

    def __init__(self, bank: Bank, names: dict[str, str]) -> None:
        super().__init__()
        self.bank = bank
        self.names = names
        self.num_calls = 0

    def weight(self, name: str = "weight") -> Tensor | None:
        """The parameter `[C, ...]` of that name, if there is one."""
        return self.bank.views[self.names[name]][0] if name in self.names else None

    def grad(self, name: str = "weight") -> Tensor:
        """Where its gradient goes."""
        return self.bank.views[self.names[name]][1]

    @abstractmethod
    def run(self, x: Tensor, add: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and what the gradient needs; only a norm adds something."""

    @abstractmethod
    def run_back(self, dy: Tensor, saved: tuple[Tensor, ...], need_input: bool) -> tuple[Tensor | None, Tensor | None]:
        """Write the parameters' gradients; returns those of the input and of what was added."""

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """The layer, seen by autograd."""
        self.num_calls += 1
        result: Tensor = _Layer.apply(  # type: ignore[no-untyped-call]
            self.bank.tape, self, x, add
        )
        return result


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _tape: Tensor, layer: StackedLayer, x: Tensor, add: Tensor | None) -> Tensor:
        y, saved = layer.run(x, add)
        ctx.layer = layer
        ctx.save_for_backward(*saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        return None, None, *ctx.layer.run_back(dy, ctx.saved_tensors, ctx.needs_input_grad[2])


class StackedConv2d(StackedLayer):
    """A convolution of each client's images with its own weights."""

    def __init__(self, bank: Bank, names: dict[str, str], conv: nn.Conv2d) -> None:
        super().__init__(bank, names)
        padding = conv.padding
        assert not isinstance(padding, str)
        self.shape = ConvShape(conv.stride, padding, conv.dilation, conv.groups)  # type: ignore[arg-type]

    @staticmethod
    def supports(conv: nn.Conv2d) -> bool:
        """Whether this form can do it."""
        return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)

    def run(self, x: Tensor, add: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = x.contiguous(memory_format=torch.channels_last)
        weight, bias = self.weight(), self.weight("bias")
        assert weight is not None
        y = self.bank.kernels.conv(x, weight, self.shape)
        if bias is not None:
            y = y + bias.repeat_interleave(len(y) // len(bias), dim=0)[:, :, None, None]
        return y, (x,)

    def run_back(self, dy: Tensor, saved: tuple[Tensor, ...], need_input: bool) -> tuple[Tensor | None, Tensor | None]:
        (x,) = saved
        dy = dy.contiguous(memory_format=torch.channels_last)
        weight = self.weight()
        assert weight is not None
        if "bias" in self.names:
            self.grad("bias").copy_(by_client(dy, len(weight)).sum(dim=(1, 3, 4)))
        self.bank.kernels.conv_weight_grad(dy, x, self.grad(), self.shape)
        return (self.bank.kernels.conv_input_grad(dy, x, weight, self.shape) if need_input else None), None


class StackedLinear(StackedLayer):
    """A batched matrix product."""

    def __init__(self, bank: Bank, names: dict[str, str], linear: nn.Linear) -> None:
        super().__init__(bank, names)
        self.out_features = linear.out_features

    def run(self, x: Tensor, add: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = self.weight(), self.weight("bias")
        assert weight is not None
        own = x.reshape(len(weight), -1, x.shape[-1])
        y = torch.bmm(own, weight.mT) if bias is None else torch.baddbmm(bias[:, None], own, weight.mT)
        # Not a view, so that what follows may change it in place (ReLU often does).
        return torch.ops.aten._unsafe_view(y, (*x.shape[:-1], self.out_features)), (x,)

    def run_back(self, dy: Tensor, saved: tuple[Tensor, ...], need_input: bool) -> tuple[Tensor | None, Tensor | None]:
        (x,) = saved
        weight = self.weight()
        assert weight is not None
        own_dy = dy.reshape(len(weight), -1, self.out_features)
        own_x = x.reshape(len(weight), -1, x.shape[-1])
        self.grad().copy_(torch.bmm(own_dy.mT, own_x))
        if "bias" in self.names:
            self.grad("bias").copy_(own_dy.sum(dim=1))
        return (torch.bmm(own_dy, weight).view_as(x) if need_input else None), None


class StackedLayerNorm(StackedLayer):
    """Normalised over the last axes, then each client's scale and shift."""

    def __init__(self, bank: Bank, names: dict[str, str], norm: nn.LayerNorm) -> None:
        super().__init__(bank, names)
        self.normalized_shape = norm.normalized_shape
        self.eps = norm.eps

    def run(self, x: Tensor, add: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = self.weight(), self.weight("bias")
        assert weight is not None
        normed, mean, rstd = torch.native_layer_norm(x, self.normalized_shape, None, None, self.eps)
        own = normed.reshape(len(weight), -1, *self.normalized_shape)
        y = own * weight[:, None] + (0 if bias is None else bias[:, None])
        return torch.ops.aten._unsafe_view(y, x.shape), (x, normed, mean, rstd)

    def run_back(self, dy: Tensor, saved: tuple[Tensor, ...], need_input: bool) -> tuple[Tensor | None, Tensor | None]:
        x, normed, mean, rstd = saved
        weight = self.weight()
        assert weight is not None
        own_dy, own = (part.reshape(len(weight), -1, *self.normalized_shape) for part in (dy, normed))
        self.grad().copy_((own_dy * own).sum(dim=1))
        if "bias" in self.names:
            self.grad("bias").copy_(own_dy.sum(dim=1))
        if not need_input:
            return None, None
        scaled = (own_dy * weight[:, None]).view_as(x)
        dx: Tensor = torch.ops.aten.native_layer_norm_backward(
            scaled, x, self.normalized_shape, mean, rstd, None, None, (True, False, False)
        )[0]
        return dx, None


class StackedEmbedding(StackedLayer):
    """A table for each client."""

    def __init__(self, bank: Bank, names: dict[str, str], embedding: nn.Embedding) -> None:
        super().__init__(bank, names)
        self.padding_idx = embedding.padding_idx

    @staticmethod
    def supports(embedding: nn.Embedding) -> bool:
        """Whether this form can do it."""
        return embedding.max_norm is None and not embedding.scale_grad_by_freq and not embedding.sparse

    def run(self, x: Tensor, add: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight = self.weight()
        assert weight is not None
        return weight[self._client(x), x], (x,)

    def run_back(self, dy: Tensor, saved: tuple[Tensor, ...], need_input: bool) -> tuple[Tensor | None, Tensor | None]:
        (x,) = saved
        grad = self.grad()
        if self.padding_idx is not None:
            dy = dy * (x != self.padding_idx).unsqueeze(-1)
        total = torch.zeros_like(grad, memory_format=torch.contiguous_format)
        grad.copy_(total.index_put_((self._client(x), x), dy, accumulate=True))
        return None, None

    def _client(self, x: Tensor) -> Tensor:
        """The number of the client that each index belongs to."""
        weight = self.weight()
        assert weight is not None
        numbers = torch.arange(len(weight), device=x.device).repeat_interleave(len(x) // len(weight))
        return numbers.view(-1, *([1] * (x.ndim - 1))).expand_as(x)


class StackedGroupNorm(StackedLayer):
    """GroupNorm with each client's scale and shift, a shortcut and ReLU where the layer has them."""

    def __init__(self, bank: Bank, names: dict[str, str], norm: nn.GroupNorm) -> None:
        super().__init__(bank, names)
        self.num_groups = norm.num_groups
        self.eps = norm.eps
        self.relu = False

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        self.relu = relu  # the layer is called once, so this still holds when its gradient is computed
        return super().forward(x, add)

    def run(self, x: Tensor, add: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        if add is not None and add.shape != x.shape:
            raise ValueError(f"a shortcut of shape {tuple(add.shape)} does not fit {tuple(x.shape)}")
        self.shape = NormShape(self.num_groups, self.eps, add is not None, self.relu)
        y, saved = self.bank.kernels.group_norm(x, add, self._affine(), self.shape)
        # Only ReLU's gradient looks at the output; else what follows may change it in place.
        return y, (x, y if self.relu else x, *saved)

    def run_back(self, dy: Tensor, saved: tuple[Tensor, ...], need_input: bool) -> tuple[Tensor | None, Tensor | None]:
        x, y, *rest = saved
        return self.bank.kernels.group_norm_grad(dy, x, y, rest, self._affine(), self.shape)

    def _affine(self) -> Affine:
        weight, bias = self.weight(), self.weight("bias")
        assert weight is not None
        assert bias is not None
        return Affine(weight, bias, self.grad(), self.grad("bias"))


STACKED: dict[type[nn.Module], type[StackedLayer]] = {
    nn.Conv2d: StackedConv2d,
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
    nn.Embedding: StackedEmbedding,
    nn.GroupNorm: StackedGroupNorm,
    GroupNorm: StackedGroupNorm,
}
"""The layers that have a stacked form; of exactly these types, because a subclass may do anything."""


def stacked_layer(module: nn.Module, bank: Bank, names: dict[str, str]) -> StackedLayer | None:
    """The stacked form of a layer with these parameters, if there is one."""
    kind = STACKED.get(type(module))
    if kind is None or not getattr(kind, "supports", lambda _: True)(module):
        return None
    return kind(bank, names, module)  # type: ignore[call-arg]
