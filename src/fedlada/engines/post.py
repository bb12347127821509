"""One round's messages in a simulation: everything that travels goes through its code and into the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedlada.engines.tally import Answer
from fedlada.messages.codec import Encoded
from fedlada.messages.errors import CannotEncode
from fedlada.messages.exchange import Exchange
from fedlada.messages.ledger import ENVELOPE, Ledger
from fedlada.messages.spec import short
from fedlada.messages.wire import envelope_bytes
from fedlada.plan import RoundPlan
from fedlada.state import Broadcast, Kept, Upload


class Post:
    """Takes the broadcast to the clients and their uploads to the server.

    `holders` are clients that still have the server's last version of the vectors that do not change in every round.
    """

    def __init__(self, exchange: Exchange, plan: RoundPlan, holders: frozenset[int] = frozenset()) -> None:
        self.exchange, self.plan, self.holders = exchange, plan, holders
        self.ledger = Ledger()
        self.is_exact = exchange.is_exact("up") and not exchange.remembered
        """Whether uploads arrive as they are; an engine may then leave them in its own order."""
        self._fits: dict[str, list[Tensor]] = {}

    def down(self, broadcast: Broadcast) -> Broadcast:
        """The broadcast as the clients have it."""
        encoded = self.exchange.encode(broadcast, self.plan.round)
        envelope = envelope_bytes(encoded, self.exchange.about(self.plan.round))
        for client in (*(work.client for work in self.plan.assignments), *self.plan.lost):
            for path, one in encoded.items():
                known = self.exchange.rules[path].every > 1 and client in self.holders
                self.ledger.add(client, path, 0 if known else one.num_bytes)
            self.ledger.add(client, f"down/{ENVELOPE}", envelope)
        self._remember_fits(encoded)
        return broadcast if self.exchange.is_exact("down") else self.exchange.decode(encoded, broadcast)

    def memories(self, kept: Mapping[int, Kept]) -> Mapping[int, Kept]:
        """The method's part of the memories of this round's clients."""
        if not self.exchange.remembered:
            return kept
        clients = [work.client for work in self.plan.assignments if work.client in kept]
        return {client: self.exchange.of_method(kept[client]) for client in clients}

    def up(
        self, answers: Iterator[Answer], outward: Callable[[Upload], Upload], kept: Mapping[int, Kept]
    ) -> Iterator[Answer]:
        """The answers as the server has them; those with a NaN or an infinity are not sent."""
        for answer in answers:
            yield self._sent(answer, outward, kept) if answer.is_finite else answer

    def _sent(self, answer: Answer, outward: Callable[[Upload], Upload], kept: Mapping[int, Kept]) -> Answer:
        client, exchange, round = answer.work.client, self.exchange, self.plan.round
        # Codes work block by block, in the model's order, whatever order an engine likes.
        wanted = answer.upload if self.is_exact else outward(answer.upload)
        if exchange.remembered:
            wanted = exchange.with_rest(wanted, kept.get(client) or exchange.init_kept(wanted.delta))
        encoded = exchange.encode(wanted, round, client)
        for path, one in encoded.items():
            self.ledger.add(client, path, one.num_bytes)
        self.ledger.add(client, f"up/{ENVELOPE}", envelope_bytes(encoded, exchange.about(round)))
        self._remember_fits(encoded)
        if self.is_exact:
            return answer
        received = exchange.decode(encoded, wanted)
        if exchange.remembered:
            answer = replace(answer, kept=exchange.rest(wanted, received, answer.kept))
        return replace(answer, upload=received)

    def completed(self, mean: Upload, broadcast: Broadcast) -> Upload:
        """The mean upload, with the server's own vector for each one that did not travel in this round."""
        own = {f"{index}/{name}": v for index, vectors in enumerate(broadcast.shared) for name, v in vectors.items()}
        waiting = {short(path) for path in self.exchange.rules if not self.exchange.travels(path, self.plan.round)}
        extra = tuple(
            {name: own[f"{index}/{name}"] if name in waiting else vector for name, vector in vectors.items()}
            for index, vectors in enumerate(mean.extra)
        )
        return replace(mean, extra=extra) if waiting else mean

    def misfit(self) -> str:
        """What could not be encoded, in a sentence; asked once a round, because a GPU must be waited for."""
        for path, flags in self._fits.items():
            if not bool(torch.stack(flags).all()):
                return f"round {self.plan.round}: {self.exchange.misfit(path)}"
        return ""

    def check(self) -> None:
        """Raise what could not be encoded."""
        if misfit := self.misfit():
            raise CannotEncode(misfit)

    def _remember_fits(self, encoded: Mapping[str, Encoded]) -> None:
        for path, one in encoded.items():
            if one.fits is not None:
                self._fits.setdefault(path, []).append(one.fits)
