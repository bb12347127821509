"""A model as one flat vector; no other file depends on how an `nn.Module` stores its parameters."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained and sent, each once (tied weights are one parameter), by name."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise ValueError("the model has no trainable parameters: nothing has requires_grad=True")
    dtypes = {parameter.dtype for parameter in found.values()}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise ValueError(f"trainable parameters must all be float32 or all float64, got {names}")
    return found


def untrained_digest(model: nn.Module) -> str:
    """A digest of frozen parameters and buffers, which are not sent."""
    frozen = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]
    digest = hashlib.sha256()
    for name, tensor in (*frozen, *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def trained_digest(model: nn.Module) -> str:
    """A digest of the names, shapes and dtypes of the trained parameters, in their order: those of one vector."""
    parameters = ((name.replace("_orig_mod.", ""), one) for name, one in trainable(model).items())
    told = "".join(f"{name} {one.dtype} {tuple(one.shape)};" for name, one in parameters)
    return hashlib.sha256(told.encode()).hexdigest()


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """One vector `[P]` of all tensors, in their order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Iterable[Tensor]) -> list[Tensor]:
    """Views into a vector `[P]`, shaped like the given tensors."""
    shapes = [tensor.shape for tensor in like]
    sizes = [math.prod(shape) for shape in shapes]
    if vector.shape != (sum(sizes),):
        raise ValueError(f"expected a vector of {sum(sizes)} parameters, got shape {tuple(vector.shape)}")
    return [part.view(shape) for part, shape in zip(torch.split(vector, sizes), shapes, strict=True)]


def private_copy(model: nn.Module, device: torch.device | None = None, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy on the given device and in the given dtype (by default its own).

    Frozen parameters that need not move are shared with the original, so a large frozen model is held once.
    """
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    stays = all(p.device == (device or p.device) and p.dtype == (dtype or p.dtype) for p in frozen)
    # Moving a module moves its parameters in place: shared ones must not be among them.
    return copied(model, {id(p): p for p in frozen} if stays else {}).to(device=device, dtype=dtype)


def copied(model: nn.Module, shared: Mapping[int, Any] | None = None) -> nn.Module:
    """A copy, also of a model that has stored results of its forward pass, such as features: torch copies none."""
    stored = tree_leaves([vars(module) for module in model.modules()])
    results = {id(one): one.detach().clone() for one in stored if isinstance(one, Tensor) and not one.is_leaf}
    return copy.deepcopy(model, memo={**results, **(shared or {})})


def set_training(model: nn.Module) -> None:
    """Set training mode, except for frozen parts that the user put into evaluation mode."""
    if not model.training:
        parameters = list(model.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            return
    model.training = True
    for child in model.children():
        set_training(child)


def refuse_running_statistics(model: nn.Module) -> None:
    """Refuse BatchNorm in training mode, whose buffers no server averages, and name the alternatives."""
    for name, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            raise ValueError(
                f"the module {name!r} ({type(module).__name__}) keeps running statistics, which do not federate: "
                "convert the model with fedlada.models.group_norm(model), or keep pretrained statistics as they are by "
                "freezing that part: part.requires_grad_(False) and part.eval()"
            )


def refuse_torchscript(model: nn.Module) -> None:
    """Refuse TorchScript, whose parameters cannot become views of the vector: training would change nothing."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(one.requires_grad for one in module.parameters()):
            where = f"the module {name!r}" if name else "the model"
            raise ValueError(
                f"{where} is TorchScript, whose parameters cannot be trained here: give the nn.Module that it was made "
                "from, or freeze that before it is scripted, to keep it as it is"
            )


def refuse_hooks(model: nn.Module) -> None:
    """Refuse hooks on parameters: a copy is trained, which has none of them."""
    for name, one in trainable(model).items():
        if one._backward_hooks or getattr(one, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"the parameter {name!r} has a hook, which the copy that is trained would not have: change the "
                "gradient in a local transform (docs/own-method.md), or mask the parameter in forward"
            )


class FlatModel:
    """A private copy of a model whose trainable parameters are views of one vector: loading them is one copy."""

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> None:
        refuse_torchscript(model)
        refuse_hooks(model)
        self.given = model
        self.module = private_copy(model, device, dtype)
        self._frozen_in_eval = {name for name, one in self.module.named_modules() if not one.training}
        self.train()
        refuse_running_statistics(self.module)
        self.parameters = trainable(self.module)
        self.vector = flatten(self.parameters.values())
        self.places = unflatten(self.vector, self.parameters.values())
        for parameter, place in zip(self.parameters.values(), self.places, strict=True):
            parameter.data = place
        for module in self.module.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters = _stay  # type: ignore[method-assign]

    def train(self) -> None:
        """Put the model into training mode, after an evaluation too."""
        for name, module in self.module.named_modules():
            module.training = name not in self._frozen_in_eval
        set_training(self.module)

    def load(self, vector: Tensor) -> None:
        """Copy the parameters `[P]` into the model."""
        self.vector.copy_(vector)

    def gradient_of(self, loss: Tensor) -> Tensor:
        """The flat gradient of a loss computed with this model; a new vector, because a transform may keep it."""
        gradient = torch.empty_like(self.vector)
        places = unflatten(gradient, self.places)
        for place, own in zip(places, self.gradients_of(loss), strict=True):
            if own is None:
                place.zero_()
            else:
                torch.add(own, 0.0, out=place)  # not a copy: no zero is negative
        return gradient

    def parts_of(self, loss: Tensor, *, signed_zeros: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters that a loss depends on, in the memory of `vector`, and their gradients, to be read only.

        That is the same gradient as `gradient_of` gives, without a copy. With `signed_zeros` zeros may be negative.
        """
        found = [
            (place, own) for place, own in zip(self.places, self.gradients_of(loss), strict=True) if own is not None
        ]
        gradients = [own for _, own in found]
        # A user's function may give a view of a parameter, which changes while the gradients are read.
        if _address(self.vector) in map(_address, gradients):
            gradients = [one.clone() for one in gradients]
        if not signed_zeros:
            gradients = [one + 0.0 for one in gradients]
        return [place for place, _ in found], gradients

    def gradients_of(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of each parameter, None where the loss does not depend on it."""
        parameters = self.parameters.values()
        for parameter in parameters:
            parameter.grad = None  # so that a backward pass hands its tensors over and adds nothing to old ones
        loss.backward()  # type: ignore[no-untyped-call]
        return [None if parameter.grad is None else parameter.grad.to_dense() for parameter in parameters]


def has_negative_zeros(vector: Tensor) -> bool:
    """Whether a zero in it has a sign: as an integer, that is the least number."""
    words = vector.view(torch.int32 if vector.dtype == torch.float32 else torch.int64)
    return bool(words.min() == torch.iinfo(words.dtype).min)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _stay() -> None:
    """Do nothing: a recurrent layer must not move its parameters out of the vector."""


def model_with(model: nn.Module, vector: Tensor) -> nn.Module:
    """A copy of the user's model, on its own device, with these parameters and in their dtype."""
    result = in_dtype(copied(model), vector.dtype)
    parameters = trainable(result)
    with torch.no_grad():
        for parameter, values in zip(parameters.values(), unflatten(vector, parameters.values()), strict=True):
            parameter.copy_(values)
    return result


def in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model, cast in place if no trainable parameter has this dtype; others may have their own."""
    return model if any(one.dtype == dtype for one in trainable(model).values()) else model.to(dtype)


COMPILED = "_orig_mod"
"""The name by which `torch.compile` holds the module that it was given."""


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's `state_dict` as it is without `torch.compile` and `DataParallel`, which add to the names."""
    return {_plain(name, model): tensor for name, tensor in model.state_dict().items()}


def named_for(model: nn.Module, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `plain_state` by the model's own names; earlier versions stored those of a compiled module."""
    own = {_plain(name, model): name for name in model.state_dict()}
    plain = {name.replace(f"{COMPILED}.", ""): tensor for name, tensor in stored.items()}
    return {own.get(name, name): tensor for name, tensor in plain.items()}


def _plain(name: str, model: nn.Module) -> str:
    """A name in the `state_dict` without the parts that belong to wrappers."""
    first, dot, rest = name.partition(".")
    inner = model._modules.get(first) if dot else None
    if inner is None:
        return name
    is_wrapper = first == COMPILED or isinstance(model, nn.DataParallel)
    return _plain(rest, inner) if is_wrapper else f"{first}.{_plain(rest, inner)}"
