"""One round's messages in a simulation: every vector is encoded, decoded and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedlada.engines.forgery import Forgery
from fedlada.engines.tally import Answer, Tally, not_positive
from fedlada.federation.plan import RoundPlan
from fedlada.messages.codec import Encoded
from fedlada.messages.errors import CannotEncode
from fedlada.messages.exchange import Exchange
from fedlada.messages.ledger import ENVELOPE, Ledger
from fedlada.messages.wire import envelope_bytes
from fedlada.methods.combine import Combiner
from fedlada.methods.state import Broadcast, Kept, PerTransform, Server, Upload, num_bytes

SHARE_FOR_RESIDUALS = 0.25
"""Share of GPU memory for residuals; beyond it they stay on the host."""


def _as_it_is(upload: Upload) -> Upload:
    return upload


class Post:
    """Carries the broadcast to the clients and their uploads to the server.

    `already_sent` are, for each client, the vectors whose current version it was sent in an earlier round.
    """

    def __init__(
        self,
        exchange: Exchange,
        plan: RoundPlan,
        already_sent: Mapping[int, frozenset[str]] | None = None,
        combiner: Combiner | None = None,
        forgery: Forgery | None = None,
    ) -> None:
        self.exchange, self.plan, self.already_sent = exchange, plan, already_sent or {}
        self.ledger = Ledger()
        self.combiner = combiner or exchange.method.combiner
        """This round's combiner."""
        self.forgery = forgery
        is_linear = exchange.method.combiner.declares("is_linear")
        self.compares = not is_linear or (forgery is not None and forgery.attack.colludes)
        """Whether the combiner needs all uploads of the cohort at once."""
        self.is_exact = exchange.is_exact("up") and not exchange.remembered and is_linear and forgery is None
        """Whether uploads are lossless and only summed; an engine may then keep its own parameter order."""
        self.positive = [part.positive for part in exchange.method.local]
        self.trained: Tensor | None = None
        """The weighted sum of the clients' deltas before compression, if that is lossy."""
        self._fits: dict[str, list[Tensor]] = {}
        self._on_host = False

    def down(self, broadcast: Broadcast) -> Broadcast:
        """The broadcast as the clients receive it."""
        self.broadcast = broadcast
        encoded, about = self.exchange.encode(broadcast, self.plan.round), self.exchange.about(self.plan.round)
        for client in (*(work.client for work in self.plan.assignments), *self.plan.lost):
            self._count(client, encoded, self.already_sent.get(client, frozenset()), about)
        self._remember_fits(encoded)
        return broadcast if self.exchange.is_exact("down") else self.exchange.decode(encoded, broadcast)

    def tally(self) -> Tally:
        """An empty tally of this round's answers."""
        measures_norms = self.exchange.method.combiner.measures_norms
        return Tally(self.positive, measures_norms=measures_norms, unsent=self.exchange.waits(self.plan.round))

    def memories(self, kept: Mapping[int, Kept]) -> Mapping[int, Kept]:
        """The method's part of the client states."""
        if not self.exchange.remembered:
            return kept
        if kept and (one := next(iter(kept.values()))).memory[-1]:
            residuals = num_bytes(Kept(one.memory[-1:])) * (len(kept) + self.plan.num_asked)
            place = next(iter(one.memory[-1].values())).device
            # Once on the host they stay there; on a CPU that is the same place.
            on_gpu = place.type == "cuda"
            self._on_host = not on_gpu or residuals > SHARE_FOR_RESIDUALS * torch.cuda.mem_get_info(place)[1]
        return {client: self.exchange.of_method(one) for client, one in kept.items()}

    def up(
        self, answers: Iterator[Answer], outward: Callable[[Upload], Upload], kept: Mapping[int, Kept]
    ) -> Iterator[Answer]:
        """The answers as the server receives them; those with a NaN or an infinity are not sent."""
        if self.forgery is not None:
            answers, outward = self.forgery.lies(answers, outward, self.plan.round), _as_it_is
        for answer in answers:
            yield self._sent(answer, outward, kept) if answer.is_finite else answer

    def _sent(self, answer: Answer, outward: Callable[[Upload], Upload], kept: Mapping[int, Kept]) -> Answer:
        client, exchange, round = answer.work.client, self.exchange, self.plan.round
        if self.is_exact:
            self._count(client, exchange.encode(answer.upload, round, client), frozenset(), exchange.about(round))
            return answer
        # Codecs work block by block in the model's order, not the engine's.
        wanted = outward(answer.upload)
        trained = wanted.delta if answer.trained is None else answer.trained
        if exchange.remembered:
            wanted = exchange.with_rest(wanted, kept.get(client) or exchange.init_kept(wanted.delta))
        encoded = exchange.encode(wanted, round, client)
        self._count(client, encoded, frozenset(), exchange.about(round))
        if answer.trained is not None and not all(one.fits is None or bool(one.fits) for one in encoded.values()):
            return replace(
                answer, is_finite=False
            )  # a forged upload that does not fit its codec is refused and does not end the run
        self._remember_fits(encoded)
        received = self.completed(exchange.decode(encoded, wanted), self.broadcast)
        if not not_positive(received, self.positive):  # else it is refused
            own = answer.work.weight * trained
            self.trained = own if self.trained is None else self.trained + own
        if exchange.remembered:
            answer = replace(answer, kept=exchange.rest(wanted, received, answer.kept, self._on_host))
        return replace(answer, upload=received)

    def completed(self, upload: Upload, broadcast: Broadcast) -> Upload:
        """The upload with the server's own vector for each one that was not sent in this round."""
        return replace(upload, extra=self._unsent_from(broadcast.shared, upload.extra))

    def kept_as_they_were(self, before: Server, after: Server) -> Server:
        """The server after a round; vectors that no client sent are unchanged."""
        return replace(after, shared=self._unsent_from(before.shared, after.shared))

    def _unsent_from(self, old: PerTransform, new: PerTransform) -> PerTransform:
        """The new vectors, with the old one for each that was not sent in this round."""
        waiting = self.exchange.waits(self.plan.round)
        return tuple(
            {name: own.get(name, vector) if name in waiting else vector for name, vector in vectors.items()}
            for own, vectors in zip(old, new, strict=True)
        )

    def misfit(self) -> str:
        """The reason why vectors could not be encoded; read once per round, because it synchronises the GPU."""
        for path, flags in self._fits.items():
            if not bool(torch.stack(flags).all()):
                return f"round {self.plan.round}: {self.exchange.misfit(path)}"
        return ""

    def check(self) -> None:
        """Raise an error if a vector could not be encoded."""
        if misfit := self.misfit():
            raise CannotEncode(misfit)

    def _count(
        self, client: int, encoded: Mapping[str, Encoded], already_sent: frozenset[str], about: Mapping[str, object]
    ) -> None:
        """Count one client's message: its vectors and its header."""
        sent = {path: one for path, one in encoded.items() if path not in already_sent}
        for path, one in sent.items():
            self.ledger.add(client, path, one.num_bytes)
        direction = next(iter(encoded)).partition("/")[0]
        self.ledger.add(client, f"{direction}/{ENVELOPE}", envelope_bytes(sent, about))

    def _remember_fits(self, encoded: Mapping[str, Encoded]) -> None:
        for path, one in encoded.items():
            if one.fits is not None:
                self._fits.setdefault(path, []).append(one.fits)
