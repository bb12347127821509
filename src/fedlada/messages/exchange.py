"""Encoding and decoding of a method's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedlada.messages.codec import Encoded
from fedlada.messages.errors import CannotEncode
from fedlada.messages.noise import key
from fedlada.messages.spec import Messages, Rule, paths, short
from fedlada.messages.wire import Expected
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Kept, Upload, all_finite, map_tensors, named_tensors

Message = TypeVar("Message", Broadcast, Upload)


class Exchange:
    """Encodes and decodes one method's messages; the seed fixes the stochastic rounding."""

    def __init__(self, messages: Messages | str, method: FederatedMethod, seed: int) -> None:
        self.messages = Messages.parse(messages) if isinstance(messages, str) else messages
        self.method, self.seed = method, seed
        self.rules: dict[str, Rule] = self.messages.of(method)
        self.remembered = [path for path, rule in self.rules.items() if rule.codec.has_memory]
        """Vectors with error feedback: clients keep the residual."""
        self.shared = None if method.personal is None else method.personal.shared
        """Indices of the parameters that are sent, if some are personal."""

    def is_exact(self, direction: str) -> bool:
        """Whether every message is lossless, in every round."""
        rules = [rule for path, rule in self.rules.items() if path.startswith(direction)]
        return all(rule.codec.is_exact and rule.every == 1 for rule in rules)

    def travels(self, path: str, round: int) -> bool:
        """Whether a vector is part of this round's messages: down always, up every n rounds."""
        return path.startswith("down/") or round % self.rules[path].every == 0

    def waits(self, round: int) -> set[str]:
        """Names of the vectors that clients do not send in this round: the server keeps its own."""
        return {short(path) for path in self.rules if path.startswith("up/") and not self.travels(path, round)}

    def version(self, path: str, round: int) -> int:
        """The round in which the server's vector last changed, as of the start of `round`."""
        every = self.rules[path].every
        return (round - 1) // every * every

    def encode(self, state: Broadcast | Upload, round: int, client: int = 0) -> dict[str, Encoded]:
        """Each vector sent in this round, encoded."""
        encoded = {}
        for path, (_, vector) in zip(paths(state), named_tensors(state), strict=True):
            if self.travels(path, round):
                rule = self.rules[path]
                # An unchanged vector is encoded to the same bits: a client may already have it.
                when = self.version(path, round) if path.startswith("down/") and rule.every > 1 else round
                word = key(self.seed, f"messages {path}", when, client)
                encoded[path] = rule.codec.encode(self._sent(vector).flatten(), word)
        return encoded

    def sent(self, state: Message) -> Message:
        """The state without personal parameters."""
        return state if self.shared is None else map_tensors(self._sent, state)

    def arrived(self, sent: Message, like: Message) -> Message:
        """A received state, with the personal parameters taken from `like`."""
        if self.shared is None:
            return sent
        values = iter([vector for _, vector in named_tensors(sent)])
        return map_tensors(lambda vector: self._arrived(next(values), vector), like)

    def _sent(self, vector: Tensor) -> Tensor:
        return vector if self._is_all_sent(vector) else vector.index_select(-1, self.shared)  # type: ignore[arg-type]

    def _arrived(self, values: Tensor, like: Tensor) -> Tensor:
        if self._is_all_sent(like):
            return values.view_as(like)
        return like.index_copy(-1, self.shared, values.to(like.device))  # type: ignore[arg-type]

    def _is_all_sent(self, vector: Tensor) -> bool:
        personal = self.method.personal
        return self.shared is None or personal is None or vector.shape[-1:] != personal.places.shape

    def encode_finite(self, state: Broadcast | Upload, round: int, client: int = 0) -> dict[str, Encoded]:
        """Encode as `encode` does, but refuse a NaN or an infinity."""
        if not all_finite(state):
            raise CannotEncode(f"a message of round {round} holds a NaN or an infinity")
        encoded = self.encode(state, round, client)
        for path, one in encoded.items():
            if one.fits is not None and not bool(one.fits):
                raise CannotEncode(self.misfit(path))
        return encoded

    def misfit(self, path: str) -> str:
        """The reason why a vector could not be encoded."""
        codec = self.rules[path].codec
        return f"{path} does not fit into {codec.name}, which is for {codec.range}: choose one such as float32 for it"

    def decode(self, encoded: Mapping[str, Encoded], like: Message) -> Message:
        """The receiver's state: the decoded vectors, and those of `like` for the rest."""
        names = iter(paths(like))

        def received(vector: Tensor) -> Tensor:
            path = next(names)
            if path not in encoded:
                return vector
            return self._arrived(self.rules[path].codec.decode(encoded[path]).to(vector.dtype), vector)

        return map_tensors(received, like)

    def expected(self, like: Broadcast | Upload, round: int) -> dict[str, Expected]:
        """The vectors that a receiver expects in a message of this round."""
        return {
            path: Expected(self.rules[path].codec, self._sent(vector).numel(), vector.dtype)
            for path, (_, vector) in zip(paths(like), named_tensors(like), strict=True)
            if self.travels(path, round)
        }

    def about(self, round: int) -> dict[str, Any]:
        """The fields of a message that describe it."""
        return {"method": self.method.name, "round": round, "messages": self.messages.text}

    def init_kept(self, params: Tensor) -> Kept:
        """A client's initial private state: the method's, and residuals of zero."""
        own = self.method.init_kept(params)
        return (
            Kept((*own.memory, {path: torch.zeros_like(params) for path in self.remembered}))
            if self.remembered
            else own
        )

    def of_method(self, kept: Kept) -> Kept:
        """The method's part of a client's private state."""
        return Kept(kept.memory[: self.method.num_memories]) if self.remembered else kept

    def with_rest(self, upload: Upload, kept: Kept) -> Upload:
        """The upload with the client's residuals added."""
        return self._with(upload, lambda path, vector: vector + kept.memory[-1][path].to(vector.device))

    def rest(self, wanted: Upload, received: Upload, own: Kept, on_host: bool = False) -> Kept:
        """The client's new private state: the method's, and the residuals of this upload."""
        lost: dict[str, Tensor] = {}
        arrived = dict(zip(paths(received), (vector for _, vector in named_tensors(received)), strict=True))

        def remember(path: str, vector: Tensor) -> Tensor:
            rest = vector - arrived[path]
            lost[path] = rest.cpu() if on_host else rest
            return vector

        self._with(wanted, remember)
        memory = own.memory or tuple({} for _ in self.method.local)
        return Kept((*memory, lost))

    def _with(self, upload: Upload, change: Any) -> Upload:
        names = iter(paths(upload))

        def changed(vector: Tensor) -> Tensor:
            path = next(names)
            return change(path, vector) if path in self.remembered else vector

        return map_tensors(changed, upload)
