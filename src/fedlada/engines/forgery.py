"""The attackers of a run: their uploads are replaced before they are sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedlada.engines.tally import Answer
from fedlada.federation.randomness import torch_seed
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Upload, all_finite, map_tensors
from fedlada.methods.testing.attacks import Attack, agreement, forged


class Forgery:
    """Forges the uploads of a run's attackers, in any engine."""

    def __init__(self, attack: Attack, method: FederatedMethod, attackers: Collection[int], seed: int) -> None:
        self.attack, self.attackers, self.seed = attack, frozenset(attackers), seed
        self.positive: Sequence[Collection[str]] = [part.positive for part in method.local]
        self.personal = method.personal
        extras = method.dry_run.upload.extra
        sent = [name for extra, names in zip(extras, self.positive, strict=True) for name in names if name in extra]
        if attack.on_positive and not sent:
            raise ValueError(
                f"{type(attack).__name__} forges a vector that must be positive, and {method.name} sends none: use an "
                "attack on the update, such as sign-flip"
            )

    def lies(self, answers: Iterator[Answer], outward: Callable[[Upload], Upload], round: int) -> Iterator[Answer]:
        """The answers in the model's order of the parameters, with the attackers' uploads forged.

        They are streamed, except for colluding attackers, who know the whole round.
        """
        ours = (replace(answer, upload=outward(answer.upload)) for answer in answers)
        common = None
        if self.attack.colludes:
            every = [replace(answer, upload=map_tensors(torch.clone, answer.upload)) for answer in ours]
            common, ours = self._agreed(every), (answer for answer in every)
        for answer in ours:
            # Diverged uploads are not sent at all.
            yield self._lie(answer, common, round) if self._attacks(answer) and answer.is_finite else answer

    def _attacks(self, answer: Answer) -> bool:
        return answer.work.client in self.attackers

    def _agreed(self, answers: Sequence[Answer]) -> Upload | None:
        sent = [answer for answer in answers if answer.is_finite]
        liars = [answer for answer in sent if self._attacks(answer)]
        # Without honest clients in the round, they use their own uploads.
        honest = [answer for answer in sent if not self._attacks(answer)] or liars
        return agreement(self.attack, [answer.upload for answer in honest], len(liars)) if liars else None

    def _lie(self, answer: Answer, common: Upload | None, round: int) -> Answer:
        stream = torch.Generator().manual_seed(torch_seed(self.seed, "attack", round, answer.work.client))

        def normal(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=stream, dtype=torch.float64).to(like)

        upload = forged(self.attack, answer.upload, self.positive, normal, common)
        if self.personal is not None:  # personal parameters are not forged
            upload = self.personal.without(upload, self.positive)
        return replace(answer, upload=upload, trained=answer.upload.delta, is_finite=all_finite(upload))
