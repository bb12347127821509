"""Attacks by malicious (Byzantine) clients, to test combiners with.

Attackers train like everyone else and send something else. `fedlada.simulate(attack=SignFlip(share=0.3))` makes three
of ten clients malicious. Only `PoisonedSecondMoments` forges vectors that must be positive, such as second moments.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlada.methods.combine.gathered import by_column
from fedlada.methods.state import Upload, map_tensors, named_tensors
from fedlada.methods.validation import finite, not_negative, one_of, positive, weight_of_new

Normal = Callable[[Tensor], Tensor]
"""Standard normal numbers of a vector's shape."""


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """A share of malicious clients. Subclasses define what an attacker sends in place of its own vector."""

    share: float
    """Share of all clients that attack; the run's seed selects them once for the whole run."""

    on_positive: ClassVar[bool] = False
    """Whether it forges only the vectors that must be positive."""
    colludes: ClassVar[bool] = False
    """Whether attackers know the honest uploads of the round and all send the same upload."""
    poisons_labels: ClassVar[bool] = False
    """Whether attackers train on flipped labels and send the honest result of that."""

    def __post_init__(self) -> None:
        weight_of_new("share", self.share)

    def alone(self, own: Tensor, normal: Normal) -> Tensor:
        """The forged vector in place of an attacker's own."""
        return own

    def together(self, honest: Tensor, num_attackers: int) -> Tensor:
        """The forged vector `[P]` of all attackers, from the honest clients' vectors `[H, P]`."""
        raise NotImplementedError(f"{type(self).__name__} does not collude")


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """Sends -`scale` times its own update."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("scale", self.scale)

    def alone(self, own: Tensor, normal: Normal) -> Tensor:
        return -self.scale * own


@dataclass(frozen=True, kw_only=True)
class Scale(Attack):
    """Sends `factor` times its own update, in the right direction or in the opposite one."""

    factor: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        finite("factor", self.factor)

    def alone(self, own: Tensor, normal: Normal) -> Tensor:
        return self.factor * own


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Attack):
    """Sends noise of mean zero in the place of its update (Blanchard et al. 2017)."""

    deviation: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("deviation", self.deviation)

    def alone(self, own: Tensor, normal: Normal) -> Tensor:
        return self.deviation * normal(own)


@dataclass(frozen=True, kw_only=True)
class Constant(Attack):
    """Sends the same number for every parameter."""

    value: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        finite("value", self.value)

    def alone(self, own: Tensor, normal: Normal) -> Tensor:
        return torch.full_like(own, self.value)


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Trains honestly on its own samples with the labels y -> number of classes - 1 - y."""

    poisons_labels: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class InnerProduct(Attack):
    """Sends -`scale` times the mean of the honest updates: inner product manipulation (Xie et al. 2019).

    A scale below one is hard to tell from honest updates; one above (1 - share) / share reverses the mean.
    """

    colludes: ClassVar[bool] = True

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("scale", self.scale)

    def together(self, honest: Tensor, num_attackers: int) -> Tensor:
        return -self.scale * honest.mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class ALittleIsEnough(Attack):
    """Sends mean - z deviation of the honest updates, parameter by parameter (ALIE, Baruch et al. 2019).

    Without `z` it is the paper's: the largest at which enough honest clients are further from the mean than attackers.
    """

    colludes: ClassVar[bool] = True

    z: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.z is not None:
            not_negative("z", self.z)

    def together(self, honest: Tensor, num_attackers: int) -> Tensor:
        z = largest_z(len(honest) + num_attackers, num_attackers) if self.z is None else self.z
        return honest.mean(dim=0) - z * honest.std(dim=0, correction=0)


def largest_z(num_clients: int, num_attackers: int) -> float:
    """z_max with P(Z < z) = (n - m - s) / (n - m), where s = floor(n / 2 + 1) - m honest clients must be won over.

    It is below zero where the attackers are few. Where they have the majority by themselves, s counts as one.

    >>> round(largest_z(50, 24), 2)  # the paper's example
    1.43
    """
    honest = num_clients - num_attackers
    supporters = max(1, num_clients // 2 + 1 - num_attackers)
    return NormalDist().inv_cdf((honest - supporters) / honest) if honest > supporters else 0.0


@dataclass(frozen=True, kw_only=True)
class PoisonedSecondMoments(Attack):
    """Sends `value` for every number that must be positive, and an honest update.

    A huge value stops learning, a tiny one makes steps explode. Every server refuses zero.
    """

    on_positive: ClassVar[bool] = True

    value: float = 1e30

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative("value", self.value)

    def alone(self, own: Tensor, normal: Normal) -> Tensor:
        return torch.full_like(own, self.value)


def agreement(attack: Attack, honest: Sequence[Upload], num_attackers: int) -> Upload:
    """The upload that all colluding attackers send."""
    return by_column(honest, partial(attack.together, num_attackers=num_attackers))


def forged(
    attack: Attack, own: Upload, positive: Sequence[Collection[str]], normal: Normal, common: Upload | None = None
) -> Upload:
    """An attacker's upload, from its own or the agreed one; `positive` has the names for each transform."""
    is_positive = [False, *(name in names for extra, names in zip(own.extra, positive, strict=True) for name in extra)]
    honest = [vector for _, vector in named_tensors(own)]
    lies = [None] * len(honest) if common is None else [vector for _, vector in named_tensors(common)]
    sent = iter(
        [
            vector if hit != attack.on_positive else attack.alone(vector, normal) if lie is None else lie
            for hit, vector, lie in zip(is_positive, honest, lies, strict=True)
        ]
    )
    return map_tensors(lambda _: next(sent), own)


ATTACKS: dict[str, tuple[type[Attack], str]] = {
    "sign-flip": (SignFlip, "scale"),
    "scale": (Scale, "factor"),
    "gaussian-noise": (GaussianNoise, "deviation"),
    "constant": (Constant, "value"),
    "label-flip": (LabelFlip, ""),
    "inner-product": (InnerProduct, "scale"),
    "a-little-is-enough": (ALittleIsEnough, "z"),
    "poisoned-second-moments": (PoisonedSecondMoments, "value"),
}
"""Attacks by the names that the command line takes, each with the field that its second number sets."""


def as_attack(given: Attack | str) -> Attack:
    """An attack, or one by name, share and optional number: "sign-flip:0.3", "scale:0.3:10".

    >>> as_attack("scale:0.3:10")
    Scale(share=0.3, factor=10.0)
    """
    if isinstance(given, Attack):
        return given
    name, *numbers = str(given).split(":")
    one_of("attack", name, tuple(ATTACKS))
    kind, field = ATTACKS[name]
    if not 1 <= len(numbers) <= (2 if field else 1):
        form = f"{name}:0.3" + (f", or {name}:0.3:10 with its {field}" if field else "")
        raise ValueError(f"attack must name the share of malicious clients, such as {form}, got {given!r}")
    try:
        values: dict[str, Any] = dict(zip(("share", field), map(float, numbers), strict=False))
    except ValueError:
        example = "such as scale:0.3:10"
        raise ValueError(f"attack must be name:share or name:share:number, {example}, got {given!r}") from None
    return kind(**values)
