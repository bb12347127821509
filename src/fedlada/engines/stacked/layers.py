"""The layers that have a stacked form, each with an explicit backward pass; convolutions are in their own file."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedlada.engines.stacked.bank import Bank, StackedLayer, Use
from fedlada.engines.stacked.convolutions import StackedConv, StackedConvTranspose
from fedlada.engines.stacked.kernels import Affine, NormShape
from fedlada.models.layers import GroupNorm


class StackedLinear(StackedLayer):
    """A batched matrix product."""

    def __init__(self, bank: Bank, names: dict[str, str], linear: nn.Linear) -> None:
        super().__init__(bank, names)
        self.out_features = linear.out_features

    def run(self, x: Tensor, add: Tensor | None, use: Use) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = self.rows(), self.rows_of_bias()
        own = x.reshape(len(weight), -1, x.shape[-1])
        y = torch.bmm(own, weight.mT) if bias is None else torch.baddbmm(bias[:, None], own, weight.mT)
        # Not a view, so that the next layer may change it in place (ReLU often does).
        return torch.ops.aten._unsafe_view(y, (*x.shape[:-1], self.out_features)), (x,)

    def run_back(
        self, dy: Tensor, saved: tuple[Tensor, ...], use: Use, need_input: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        (x,) = saved
        weight = self.rows()
        own_dy = dy.reshape(len(weight), -1, self.out_features)
        own_x = x.reshape(len(weight), -1, x.shape[-1])
        self.write("weight", torch.bmm(own_dy.mT, own_x))
        if "bias" in self.names:
            self.write("bias", own_dy.sum(dim=1))
        return (torch.bmm(own_dy, weight).view_as(x) if need_input else None), None


class StackedLayerNorm(StackedLayer):
    """Normalised over the last axes, then each client's scale and shift."""

    def __init__(self, bank: Bank, names: dict[str, str], norm: nn.LayerNorm) -> None:
        super().__init__(bank, names)
        self.normalized_shape = norm.normalized_shape
        self.eps = norm.eps

    def run(self, x: Tensor, add: Tensor | None, use: Use) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight, bias = self.rows(), self.rows_of_bias()
        normed, mean, rstd = torch.native_layer_norm(x, self.normalized_shape, None, None, self.eps)
        own = normed.reshape(len(weight), -1, *self.normalized_shape)
        y = own * weight[:, None] + (0 if bias is None else bias[:, None])
        return torch.ops.aten._unsafe_view(y, x.shape), (x, normed, mean, rstd)

    def run_back(
        self, dy: Tensor, saved: tuple[Tensor, ...], use: Use, need_input: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        x, normed, mean, rstd = saved
        weight = self.rows()
        own_dy, own = (part.reshape(len(weight), -1, *self.normalized_shape) for part in (dy, normed))
        self.write("weight", (own_dy * own).sum(dim=1))
        if "bias" in self.names:
            self.write("bias", own_dy.sum(dim=1))
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
        """Whether the stacked form supports this layer's settings."""
        return embedding.max_norm is None and not embedding.scale_grad_by_freq and not embedding.sparse

    def run(self, x: Tensor, add: Tensor | None, use: Use) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight = self.rows()
        return weight[self._client(x), x], (x,)

    def run_back(
        self, dy: Tensor, saved: tuple[Tensor, ...], use: Use, need_input: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        (x,) = saved
        if self.padding_idx is not None:
            dy = dy * (x != self.padding_idx).unsqueeze(-1)
        # In bf16 a sum stops growing after a few hundred terms, and a token may occur thousands of times.
        wide = torch.promote_types(dy.dtype, torch.float32)
        total = torch.zeros(self.rows().shape, dtype=wide, device=dy.device)
        self.write("weight", total.index_put_((self._client(x), x), dy.to(wide), accumulate=True))
        return None, None

    def _client(self, x: Tensor) -> Tensor:
        """The number of the client that each index belongs to."""
        weight = self.rows()
        numbers = torch.arange(len(weight), device=x.device).repeat_interleave(len(x) // len(weight))
        return numbers.view(-1, *([1] * (x.ndim - 1))).expand_as(x)


class StackedGroupNorm(StackedLayer):
    """GroupNorm with each client's scale and shift, a shortcut and ReLU where the layer has them."""

    def __init__(self, bank: Bank, names: dict[str, str], norm: nn.GroupNorm) -> None:
        super().__init__(bank, names)
        self.num_groups = norm.num_groups
        self.eps = norm.eps

    def run(self, x: Tensor, add: Tensor | None, use: Use) -> tuple[Tensor, tuple[Tensor, ...]]:
        if add is not None and add.shape != x.shape:
            raise ValueError(f"a shortcut of shape {tuple(add.shape)} does not fit {tuple(x.shape)}")
        weight, bias = self.rows(), self.rows("bias")
        affine = Affine(weight, bias, weight, bias)  # no gradient is written here
        y, saved = self.bank.kernels.group_norm(x, add, affine, self._shape(use))
        # Only ReLU's gradient reads the output; without ReLU the next layer may change it in place.
        return y, (x, y if use.relu else x, *saved)

    def run_back(
        self, dy: Tensor, saved: tuple[Tensor, ...], use: Use, need_input: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        x, y, *rest = saved
        with self.grad() as weight_grad, self.grad("bias") as bias_grad:
            affine = Affine(self.rows(), self.rows("bias"), weight_grad, bias_grad)
            return self.bank.kernels.group_norm_grad(dy, x, y, rest, affine, self._shape(use))

    def _shape(self, use: Use) -> NormShape:
        return NormShape(self.num_groups, self.eps, use.adds, use.relu)


STACKED: dict[type[nn.Module], type[StackedLayer]] = {
    nn.Conv1d: StackedConv,
    nn.Conv2d: StackedConv,
    nn.ConvTranspose1d: StackedConvTranspose,
    nn.ConvTranspose2d: StackedConvTranspose,
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
