"""A check of a combiner's contract."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from fedlada.methods.combine import Combiner
from fedlada.methods.local import LocalTransform
from fedlada.methods.method import FederatedMethod
from fedlada.methods.random_state import randomness_restored
from fedlada.methods.recipes import fedlada
from fedlada.methods.state import Upload, map_tensors, named_tensors
from fedlada.methods.tensor_fields import lengths, map_tensor_fields, suited
from fedlada.methods.testing.fields import changed_field, fields_of, refuse_generator

NUM_STEPS = (1, 2, 3, 4, 5)
"""Local steps of each client whose upload is combined."""
NUM_PARAMS = 6


class Wrong(ValueError):
    """A violation of the combiner's contract, not an error of its own."""


def check_form(method: FederatedMethod) -> None:
    """Refuse a method whose combiner returns anything but an upload, or changes what it was given.

    `simulate` calls it for a combiner of the user's own. An error of the combiner's own, such as for too few clients,
    is left to the run.
    """
    combiner, name = method.combiner, type(method.combiner).__name__
    if type(combiner).__module__.startswith("fedlada."):
        return
    _check_signature(name, combiner)
    refuse_generator(combiner)
    like = _params([combiner, *method.local])
    try:
        with randomness_restored() as drawn:
            uploads = list(_uploads(method, like))
            own = map_tensor_fields(partial(suited, like=like), copy.deepcopy(combiner))  # one may note what it sees
            result = _result_again(name, own, uploads, drawn)
            _check_in_float32(name, own, method, like)
            if not drawn():
                _check_linear(name, own, uploads, [1.0] * len(uploads), result)
    except Wrong:
        raise
    except Exception:
        return


def check_combiner(combiner: Combiner, method: FederatedMethod | None = None, *, averages: bool = True) -> None:
    """Refuse a combiner that violates its contract; call it in the combiner's tests.

    The uploads are those of five clients of `method`, by default FedLADA. `averages=False` leaves out one law, for a
    combiner that scales or masks on purpose: an upload that all clients send is the result. Of a combiner that draws
    random numbers only the form is checked, and that it changes none of its arguments.
    """
    name = type(combiner).__name__
    _check_signature(name, combiner)
    refuse_generator(combiner)
    method = method or fedlada()
    like = _params([combiner, *method.local])
    combiner = map_tensor_fields(partial(suited, like=like), combiner)
    uploads = list(_uploads(method, like))
    equal = [1.0] * len(uploads)
    with randomness_restored() as drawn:
        result = _result_again(name, combiner, uploads, drawn)
        is_random = drawn()
        _check_in_float32(name, combiner, method, like)
        if not is_random:
            _check_weights(name, combiner, uploads, result)
            _check_order(name, combiner, uploads)
            weights = _unequal_weights(combiner, uploads) or equal
            _check_linear(name, combiner, uploads, weights, combiner.combine(uploads, weights))
    if averages and not is_random and not _agree(combiner.combine(uploads[:1] * 4, equal[:4]), uploads[0]):
        raise ValueError(f"{name} must return the upload that all clients send, if they send the same")


def _params(parts: Sequence[Combiner | LocalTransform]) -> Tensor:
    """Parameters of a small model, or of one that fits the tensors that these parts hold."""
    return torch.linspace(-1, 1, next(iter(lengths(parts)), NUM_PARAMS), dtype=torch.float64)


def _check_signature(name: str, combiner: Combiner) -> None:
    own = inspect.signature(combiner.combine)
    try:
        own.bind([], [])
    except TypeError:
        given = ", ".join(["self", *own.parameters])
        raise Wrong(f"{name} has combine({given}), which is called as combine(self, uploads, weights)") from None


def _result(name: str, combiner: Combiner, uploads: Sequence[Upload], weights: Sequence[float]) -> Upload:
    """The combined upload, if it has the form of one and nothing that was given has changed."""
    given, numbers = [map_tensors(torch.clone, one) for one in uploads], list(weights)
    result = combiner.combine(given, numbers)
    wanted, got = _form(uploads[0]), _form(result) if isinstance(result, Upload) else type(result).__name__
    if got != wanted:
        raise Wrong(f"{name} must return an Upload with the vectors {wanted}; got {got or 'none'}")
    for before, after in zip(uploads, given, strict=True):
        for (vector, one), (_, other) in zip(named_tensors(before), named_tensors(after), strict=True):
            if not torch.equal(one, other):
                raise Wrong(f"{name} changes the vector {vector} of an upload in place: return new tensors")
    if numbers != list(weights):
        raise Wrong(f"{name} changes the list of weights in place: make a new one")
    return result


def _result_again(name: str, combiner: Combiner, uploads: Sequence[Upload], drawn: Callable[[], bool]) -> Upload:
    """The combined upload with equal weights, if a second call gives it again and leaves the fields as they were."""
    equal = [1.0] * len(uploads)
    result = _result(name, combiner, uploads, equal)
    fields = fields_of(combiner)
    again = combiner.combine(uploads, list(equal))
    if not drawn() and not _agree(result, again):
        raise Wrong(f"{name} gives another result when it is called again: hold state in a server optimizer")
    if changed := changed_field(fields, combiner):
        raise Wrong(f"{name} changes its field {changed!r}: hold state in a server optimizer")
    return result


def _check_in_float32(name: str, combiner: Combiner, method: FederatedMethod, like: Tensor) -> None:
    """Refuse a result in another dtype than float32, in which most runs are."""
    narrow = like.float()
    uploads = list(_uploads(method, narrow))
    _result(name, map_tensor_fields(partial(suited, like=narrow), combiner), uploads, [1.0] * len(uploads))


def _check_linear(
    name: str, combiner: Combiner, uploads: Sequence[Upload], weights: Sequence[float], result: Upload
) -> None:
    """Refuse the declaration of a weighted mean, if means of shares of the cohort do not combine to that of all."""
    if not combiner.declares("is_linear"):
        return
    shares = [(uploads[:2], weights[:2]), (uploads[2:], weights[2:])]
    parts = [combiner.combine(list(some), list(own)) for some, own in shares]
    if not _agree(combiner.combine(parts, [sum(own) for _, own in shares]), result):
        raise Wrong(f"{name} declares is_linear = True, but the results of two shares do not combine to that of all")


def _check_weights(name: str, combiner: Combiner, uploads: Sequence[Upload], result: Upload) -> None:
    equal = [1.0] * len(uploads)
    try:
        without = combiner.combine(uploads)
    except TypeError as error:
        raise ValueError(f"{name} must accept weights=None, which stands for equal weights: {error}") from error
    if not _agree(without, result):
        raise ValueError(f"{name} must treat weights=None as equal weights")
    if not _agree(combiner.combine(uploads, [3.0] * len(equal)), result):
        raise ValueError(f"{name} depends on the sum of the weights: divide by it")
    weights = _unequal_weights(combiner, uploads)
    if weights is not None and _agree(combiner.combine(uploads, weights), result):
        raise ValueError(f"{name} ignores its weights: use them, or raise a ValueError if they are not equal")


def _check_order(name: str, combiner: Combiner, uploads: Sequence[Upload]) -> None:
    weights = _unequal_weights(combiner, uploads) or [1.0] * len(uploads)
    if not _agree(combiner.combine(uploads, weights), combiner.combine(uploads[::-1], weights[::-1])):
        raise ValueError(f"{name} gives another result if the clients and their weights come in another order")


def _unequal_weights(combiner: Combiner, uploads: Sequence[Upload]) -> list[float] | None:
    """Unequal weights, or None if the combiner refuses them."""
    weights = [1.0 + place for place in range(len(uploads))]
    try:
        combiner.combine(uploads, weights)
    except ValueError:
        return None
    return weights


def _uploads(method: FederatedMethod, start: Tensor) -> Iterator[Upload]:
    """Uploads of clients of the method, each after another number of steps."""
    method = copy.deepcopy(method).suited_to(start)
    broadcast = method.init(start).broadcast
    generator = torch.Generator(device="cpu").manual_seed(0)
    for num_steps in NUM_STEPS:
        local = method.begin(broadcast, method.init_kept(start), lr=0.1)
        for _ in range(num_steps):
            gradient = torch.randn(start.shape, generator=generator, dtype=start.dtype, device="cpu")
            local = method.step(local, lambda _, gradient=gradient: gradient)  # type: ignore[misc]
        yield method.finish(local, num_steps)[0]


def _form(upload: Upload) -> str:
    return ", ".join(f"{name} {list(one.shape)} in {one.dtype}" for name, one in named_tensors(upload))


def _agree(one: Upload, other: Upload) -> bool:
    pairs = zip(named_tensors(one), named_tensors(other), strict=True)
    return all(torch.allclose(here, there, rtol=1e-6, atol=1e-9) for (_, here), (_, there) in pairs)
