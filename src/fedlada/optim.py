"""A method's local chain as a `torch.optim.Optimizer`, for custom training loops."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Kept, Local, PerTransform, Upload, all_finite, map_tensors
from fedlada.methods.validation import positive
from fedlada.models.flat import flatten, unflatten


class LocalOptimizer(torch.optim.Optimizer):
    """One client's optimizer: `begin` with the broadcast, `step` as usual, `finish` with the upload.

    Gradients are read from `.grad`, so clipping, accumulation, autocast and `GradScaler` work as with any optimizer,
    and schedulers set the rate through `param_groups`. A parameter without a gradient counts as one of zeros.
    Without a call of `begin` the first step starts a round of its own, from the parameters as they are.
    `method` is a `FederatedMethod`, the server's; the server joins the uploads by `method.combine(uploads)`.
    """

    def __init__(self, params: Iterable[nn.Parameter], method: FederatedMethod, lr: float) -> None:
        if not isinstance(method, FederatedMethod):
            example = "fedlada.suggested('fedlada')['method']"
            raise ValueError(f"method must be a FederatedMethod, as {example}, got {method!r}")
        positive("lr", float(lr) if isinstance(lr, Tensor) else lr)
        super().__init__(params, {"lr": lr})
        # A later change of requires_grad would otherwise change the vector's length in the middle of a round.
        group, given = self.param_groups[0], self.param_groups[0]["params"]
        self._frozen = [weakref.ref(p) for p in given if not p.requires_grad]
        if names := group.get("param_names"):
            group["param_names"] = [name for name, p in zip(names, given, strict=True) if p.requires_grad]
        group["params"] = [p for p in given if p.requires_grad]
        if not self.parameters:
            raise ValueError("there is nothing to train: no parameter has requires_grad=True")
        self.method = method.suited_to(self.vector)
        self.local: Local | None = None
        self.num_steps = 0
        self.sum_lr = 0.0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a second group: a method works on one vector."""
        if self.param_groups:
            raise ValueError("a federated method works on one vector: give one group of parameters")
        super().add_param_group(param_group)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that make up the vector, in order."""
        return list(self.param_groups[0]["params"])

    @property
    def vector(self) -> Tensor:
        """The parameters as one vector `[P]`, a copy."""
        return flatten(self.parameters)

    @property
    def mean_lr(self) -> float:
        """The mean learning rate of the steps since `begin`: this client's `lr` for the server."""
        return self.sum_lr / self.num_steps if self.num_steps else float(self.param_groups[0]["lr"])

    def begin(self, broadcast: Broadcast, kept: Kept | None = None) -> None:
        """Start a round from the broadcast; the model's parameters become x^t, personal ones those in `kept`."""
        self._refuse_unfrozen()
        name, usual = self.method.name, self.method.init(self.vector)
        if _names(broadcast.shared) != _names(usual.shared):
            raise ValueError(f"the broadcast is of another method than {name}: give that of a server of {name}")
        memory = self.method.init_kept(broadcast.params) if kept is None else kept
        if kept is not None and _names(kept.memory) != _names(self.method.init_kept(usual.params).memory):
            raise ValueError(f"kept is of another method than {name}: give what finish() returned for this client")
        self.local = self.method.begin(broadcast, memory, lr=self.param_groups[0]["lr"])
        self.num_steps, self.sum_lr = 0, 0.0
        self._write(self.local.params)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One local step with the gradients in `.grad`, or with those that `closure` computes.

        A method that looks ahead needs a closure, which clears the gradients, computes the loss, calls `backward` and
        returns the loss, as for `torch.optim.LBFGS`: it is called once for each point at which a gradient is needed.
        """
        if closure is None and self.method.looks_ahead:
            raise ValueError(
                f"{self.method.name} takes gradients at other points than the parameters: call step(closure) with a "
                "closure that clears the gradients, computes the loss, calls backward and returns the loss"
            )
        losses: list[Any] = []

        def gradient_at(point: Tensor) -> Tensor:
            if closure is not None:
                if losses or self.method.looks_ahead:
                    self._write(point)
                with torch.enable_grad():
                    losses.append(closure())
            return flatten(map(_gradient, self.parameters))

        self._refuse_unfrozen()
        if self.local is None:
            self.begin(self.method.init(self.vector).broadcast)
        assert self.local is not None
        lr = float(self.param_groups[0]["lr"])
        # Any other change to the parameters since the last step (a reset, an average) becomes part of the update.
        start = self.vector
        try:
            self.local = self.method.step(replace(self.local, params=start, lr=lr), gradient_at)
        except BaseException:
            self._write(start)  # not at the perturbed point
            raise
        self.num_steps += 1
        self.sum_lr += lr
        self._write(self.local.params)
        return losses[0] if losses else None

    def finish(self) -> tuple[Upload, Kept]:
        """This client's upload, and the private state to pass to its next `begin`."""
        if self.local is None or self.num_steps == 0:
            raise RuntimeError("finish() comes after begin() and at least one step()")
        done = replace(self.local, params=self.vector, lr=self.mean_lr)
        upload, kept = self.method.finish(done, self.num_steps)
        if self.mean_lr == 0 and not (all_finite(upload) and all_finite(kept)):
            raise RuntimeError(f"{self.method.name} divides by the rate, which was 0 in every step of this round")
        self.local = None
        return upload, kept

    def state_dict(self) -> dict[str, Any]:
        """The usual dictionary, including the unfinished round: plain tensors, dicts, tuples and numbers."""
        local = None if self.local is None else dict(vars(self.local))
        federated = {
            "method": self.method.name,
            "local": local,
            "num_steps": self.num_steps,
            "sum_lr": self.sum_lr,
        }
        return {**super().state_dict(), "federated": federated}

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("method", "local", "num_steps", "sum_lr")}
        frozen = [p for p in (one() for one in self._frozen) if p is not None]
        return {**super().__getstate__(), **own, "_frozen": frozen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Where the model is copied too, its frozen parameters are those here.
        frozen = {"_frozen": [weakref.ref(p) for p in state["_frozen"]]} if "_frozen" in state else {}
        super().__setstate__({**state, **frozen})

    def _refuse_unfrozen(self) -> None:
        """Refuse to leave out a parameter that is trained since this optimizer was made."""
        if any(p is not None and p.requires_grad for p in (frozen() for frozen in self._frozen)):
            raise ValueError(
                "a parameter that was frozen has requires_grad=True now, and this optimizer would not train it: make a "
                "new LocalOptimizer, and a new server if it is to be averaged too"
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`; the model's parameters are loaded with the model."""
        rest = dict(state_dict)
        federated = rest.pop("federated", None)
        self._refuse_another(federated)
        super().load_state_dict(rest)
        local, device = federated["local"], self.parameters[0].device
        self.local = None if local is None else map_tensors(lambda tensor: tensor.to(device), Local(**local))
        self.num_steps, self.sum_lr = federated["num_steps"], federated["sum_lr"]

    def _refuse_another(self, federated: Any) -> None:
        """Refuse the state of another optimizer, method or model, before anything changes."""
        if not isinstance(federated, dict):
            raise ValueError("the state_dict is not that of a LocalOptimizer: load one that its state_dict() returned")
        name, saved_by = self.method.name, federated.get("method", self.method.name)
        if saved_by != name:
            raise ValueError(
                f"the state_dict was saved with the method {saved_by}, and this optimizer has {name}: load one that "
                f"{name} saved"
            )
        if (local := federated["local"]) is None:
            return
        if (length := local["params"].numel()) != (own := self.vector.numel()):
            raise ValueError(
                f"the state_dict is of a model with {length} trained parameters, and this one has {own}: load it for "
                "the model that it was saved with"
            )
        usual = self.method.init(self.vector)
        begun = self.method.begin(usual.broadcast, self.method.init_kept(usual.params), lr=1.0)
        if any(_names(local[part]) != _names(getattr(begun, part)) for part in ("states", "shared", "kept")):
            raise ValueError(f"the state_dict was saved with other transforms than this {name} has: load its own")

    @torch.no_grad()
    def _write(self, vector: Tensor) -> None:
        for parameter, values in zip(self.parameters, unflatten(vector, self.parameters), strict=True):
            parameter.copy_(values)


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def _names(parts: PerTransform) -> list[set[str]]:
    """The names of each transform's vectors, which stay the same from round to round."""
    return [set(part) for part in parts]
