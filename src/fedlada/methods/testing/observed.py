"""Properties of a method that an engine needs to know, as observed in a few steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlada.methods.local import LocalTransform
from fedlada.methods.local.transform import declares
from fedlada.methods.method import FederatedMethod
from fedlada.methods.random_state import randomness_restored
from fedlada.methods.state import Broadcast, Kept, Step, Upload, map_tensors, named_tensors
from fedlada.methods.tensor_fields import lengths, map_tensor_fields, suited
from fedlada.methods.testing.on_cpu import on_cpu
from fedlada.methods.testing.operations import CLIENT, STEPS, Blended, Operations, recorded
from fedlada.methods.testing.transforms import START, agree, error_in_check, gradients, one_round

NUM_SHORT, NUM_ZEROS = 67, 61

Reorder = Callable[[Tensor], Tensor]
SecondRound = Callable[[Reorder, Reorder], list[Tensor]]


def depends_on_order(method: FederatedMethod, params: Tensor, inward: Reorder, outward: Reorder) -> str:
    """Why a client's result or state may be another if the parameters are permuted; empty if it is not.

    A transform that takes a slice or holds positions is correct only in the model's order. What both branches of
    `torch.where` do is tried, because the condition may hold only later. Errors in that order are left to the run.
    """
    parts = [part for part in method.local if not declares(part, "elementwise")]
    if not parts:
        return ""
    start = params.detach().cpu()
    with on_cpu(), randomness_restored():
        # In float32 the order alone can change the norm of millions of numbers by more than rounding should.
        for own in (start.double(), start):
            try:
                second = _second_round(method, own)
                expected = second(torch.clone, torch.clone)
            except Exception:
                continue
            if not _is_found(expected, second, inward, outward):
                return "depends on the order"
            if why := _operation_by_position(method, own, parts):
                return why
            with _both_branches(), suppress(Exception):
                if not _is_found(second(torch.clone, torch.clone), second, inward, outward):
                    return "may depend (in a branch of torch.where) on the order"
            return ""
    return ""


def reads_numbers(method: FederatedMethod, params: Tensor) -> str:
    """The name of a transform whose hooks read a client's own numbers in Python; empty if none does.

    Where clients are stacked it would decide for all of them at once, whatever it declares.
    """
    for part, operations in _operations(method, [_short(method, params), params.detach().cpu()], method.local, STEPS):
        if operations.reads_own:
            return type(part).__name__
    return ""


def _operation_by_position(method: FederatedMethod, start: Tensor, parts: Sequence[LocalTransform]) -> str:
    found = _operations(method, [start], parts, STEPS)
    if not found:
        return f"may depend ({type(parts[0]).__name__} could not be followed) on the order"
    for part, operations in found:
        if operations.by_position:
            return f"may depend ({type(part).__name__} uses {operations.by_position[0]}) on the order"
    return ""


def ignores_zeros(method: FederatedMethod, params: Tensor) -> bool:
    """Whether zeros after the parameters change nothing else: by declaration, or if all operations are elementwise.

    They would change a mean. A quotient of zeros is NaN, which is harmless until a norm of all numbers reads it. A
    declaration is observed in a client's second round.
    """
    start = _short(method, params)
    size = len(start)
    parts = [part for part in method.local if not declares(part, "ignores_zeros")]
    found = _operations(method, [start, params.detach().cpu()], parts, CLIENT)
    if len(found) < len(parts) or any(operations.by_number for _, operations in found):
        return False

    def padded(vector: Tensor) -> Tensor:
        return F.pad(vector, (0, NUM_ZEROS)) if vector.shape[-1:] == (size,) else vector

    def without(vector: Tensor) -> Tensor:
        return vector[..., :size] if vector.shape[-1:] == (size + NUM_ZEROS,) else vector

    with on_cpu(), randomness_restored():
        try:
            second = _second_round(method, start)
            expected = second(torch.clone, torch.clone)
        except Exception:
            return False
        equal = partial(agree, rtol=1e-9, atol=1e-12)  # float64
        if not _is_found(expected, second, padded, without, equal):
            return False
        with _both_branches(), suppress(Exception):
            return _is_found(second(torch.clone, torch.clone), second, padded, without, equal)
    return False


def _both_branches() -> Blended:
    return Blended()  # type: ignore[no-untyped-call]


def _short(method: FederatedMethod, params: Tensor) -> Tensor:
    """Few numbers, among which zeros count; only tensors that the method holds need a model of their size."""
    if lengths((*method.local, method.server, method.combiner)):
        return params.detach().cpu().double()
    return torch.linspace(-1, 1, NUM_SHORT, dtype=torch.float64, device="cpu")


def _operations(
    method: FederatedMethod, starts: Sequence[Tensor], parts: Sequence[LocalTransform], hooks: Sequence[str]
) -> list[tuple[LocalTransform, Operations]]:
    """The operations of these transforms in a client's second round from the first of `starts` that works."""
    if not parts:
        return []
    with on_cpu(), randomness_restored():
        for start in starts:
            found = [(part, Operations(len(start))) for part in parts]
            with suppress(Exception):
                noted = {id(part): recorded(part, operations, hooks) for part, operations in found}
                own = replace(method, local=tuple(noted.get(id(part), part) for part in method.local))
                _second_round(own, start)(torch.clone, torch.clone)
                return found
    return []


def _is_found(
    expected: list[Tensor],
    second: SecondRound,
    inward: Reorder,
    outward: Reorder,
    equal: Callable[[Tensor, Tensor], bool] = agree,
) -> bool:
    try:
        return all(map(equal, expected, map(outward, second(inward, outward))))
    except Exception:
        return False


def _second_round(method: FederatedMethod, start: Tensor) -> SecondRound:
    """A client's second round, of two steps, with vectors that lie as the engine's do.

    The first is in the usual order, and of one step: states are often zeros before it, and show nothing.
    """

    def suitable(field: Tensor) -> Tensor:
        dtype = torch.promote_types(field.dtype, start.dtype) if field.is_floating_point() else field.dtype
        return field.to("cpu", dtype)

    method = copy.deepcopy(method).with_tensor_fields(suitable)
    generator = torch.Generator(device="cpu").manual_seed(0)
    drawn = [torch.randn(start.shape, generator=generator, dtype=start.dtype, device="cpu") for _ in range(2)]
    server = method.init(start)
    upload, kept = _one_round(method, server.broadcast, method.init_kept(start), drawn[:1], torch.clone, torch.clone)
    server = method.aggregate(server, upload, lr=0.1, num_steps=1, participation=0.5)

    def second(inward: Reorder, outward: Reorder) -> list[Tensor]:
        here = method.with_tensor_fields(inward)
        states = _one_round(
            here, map_tensors(inward, server.broadcast), map_tensors(inward, kept), drawn, inward, outward
        )
        return [tensor for state in states for _, tensor in named_tensors(state)]

    return second


def _one_round(
    method: FederatedMethod, broadcast: Broadcast, kept: Kept, drawn: list[Tensor], inward: Reorder, outward: Reorder
) -> tuple[Upload, Kept]:
    local = method.begin(broadcast, kept, lr=0.1)
    for gradient in drawn:
        local = method.step(local, lambda point, gradient=gradient: inward(gradient * (1 + 0.1 * outward(point))))  # type: ignore[misc]
    return method.finish(local, len(drawn))


def untried(method: FederatedMethod) -> str:
    """The name and the error of a transform whose trial fails: what it would do to stacked clients is not known."""
    for part in method.local:
        if not type(part).__module__.startswith("fedlada.") and (error := error_in_check(part)):
            return f"{type(part).__name__}: {error}"
    return ""


def is_random(method: FederatedMethod) -> bool:
    """Whether a transform draws random numbers, by its declaration or as observed in two steps."""
    for part in method.local:
        if part.draws_random_numbers:
            return True
        with on_cpu(), randomness_restored() as drawn:
            with suppress(Exception):  # it may work on a model of its own size
                one_round(map_tensor_fields(partial(suited, like=gradients()), copy.deepcopy(part)), gradients()[:, 0])
            if drawn():
                return True
    return False


def shares_memory(method: FederatedMethod) -> bool:
    """Whether a new state of some transform is, or is a view of, what it was given: it must be copied before the old
    values are overwritten."""
    for part in method.local:
        with (
            on_cpu(),
            randomness_restored(),
            suppress(Exception),
        ):  # the engine's own step will report the error
            tried = map_tensor_fields(partial(suited, like=gradients()), copy.deepcopy(part))
            if _gives_back_what_it_got(tried):
                return True
    return False


def _gives_back_what_it_got(part: LocalTransform) -> bool:
    start, gradient = torch.tensor(START), gradients()[0, 0]
    shared, kept = part.init_shared(start.clone()), part.init_kept(start.clone())
    local = {name: value.clone() for name, value in part.begin(shared, kept, start.clone()).items()}
    step = Step(start.clone(), start.clone(), shared, kept)
    _, looked = part.look(step.params, local, step, lambda _: gradient)
    _, new = part.apply(gradient, looked, step)
    given = {"update": gradient, "params": step.params, "anchor": step.anchor}
    places = {name: _memory(one) for name, one in {**given, **shared, **kept}.items()}
    own = {name: _memory(one) for name, one in local.items()}
    return any(
        _memory(value) in places.values() or _memory(value) in (at for other, at in own.items() if other != name)
        for name, value in new.items()
    )


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
