"""Encoded vectors in Flower's records: uncompressed ones as Flower's arrays, others as one array of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord

from fedlada.flower import wire
from fedlada.flower.arrays import NPY_HEADER, UnreadableArray, numbers_of
from fedlada.flower.exchange import listed
from fedlada.messages import Exchange, MessageError, from_bytes, to_bytes
from fedlada.messages.codec import Encoded
from fedlada.messages.spec import paths
from fedlada.messages.wire import MAX_HEADER, Expected
from fedlada.methods.state import Broadcast, Upload, named_tensors

CODED = "message"

State = TypeVar("State", Broadcast, Upload)


@dataclass(frozen=True)
class Packed(Generic[State]):
    """A message, the size of each of its vectors, and the state that the receiver decodes."""

    record: ArrayRecord
    sizes: dict[str, int]
    received: State


class Coding:
    """One run's codecs on Flower's records; every message names its round, its method and its codecs."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.is_plain = exchange.messages.text == "float32"

    def pack(self, state: State, round: int, client: int = 0) -> Packed[State]:
        """Encode a state to send; refuses NaN and infinity."""
        if self.is_plain:
            sent = self.exchange.sent(state)
            return Packed(wire.pack(sent), _plain_sizes(sent), state)
        encoded = self.exchange.encode_finite(state, round, client)
        data = np.frombuffer(to_bytes(encoded, self.exchange.about(round)), dtype=np.uint8)
        return Packed(ArrayRecord({CODED: Array(data)}), _sizes(encoded), self.exchange.decode(encoded, state))

    def most_bytes(self, like: Upload) -> int:
        """The most bytes of arrays in a reply of any round."""
        plain = sum(size + NPY_HEADER for size in _plain_sizes(like).values())
        # Round 0 is a multiple of every number of rounds: all vectors travel in it.
        return plain if self.is_plain else _most(self.exchange.expected(like, 0))

    def unpack(self, record: ArrayRecord, like: State, round: int) -> tuple[State, dict[str, int]]:
        """Decode a received state, with the bytes of its vectors; vectors that were not sent are those of `like`."""
        if self.is_plain:
            form = self.exchange.sent(like)
            return self.exchange.arrived(wire.unpack(record, form), like), _plain_sizes(form)
        if list(record) != [CODED]:
            raise wire.WrongMessage(f"it holds the arrays {listed(record)} instead of {CODED!r}")
        expected = self.exchange.expected(like, round)
        try:
            data = numbers_of(record[CODED], "uint8", most=_most(expected))
            encoded = from_bytes(data.tobytes(), expected, self.exchange.about(round))
            return self.exchange.decode(encoded, like), _sizes(encoded)
        except UnreadableArray as error:
            raise wire.WrongMessage(f"its array {CODED!r} {error}") from None
        except MessageError as error:
            raise wire.WrongMessage(str(error)) from None
        except Exception as error:  # whatever untrusted bytes raise, the message is at fault
            raise wire.WrongMessage(f"its array {CODED!r} cannot be read: {type(error).__name__}: {error}") from None


def _most(expected: Mapping[str, Expected]) -> int:
    forms = [form for one in expected.values() for form in one.form().values()]
    return sum(size * dtype.itemsize for dtype, size in forms) + MAX_HEADER


def _sizes(encoded: dict[str, Encoded]) -> dict[str, int]:
    return {path: one.num_bytes for path, one in encoded.items()}


def _plain_sizes(state: Broadcast | Upload) -> dict[str, int]:
    named = zip(paths(state), named_tensors(state), strict=True)
    return {path: vector.numel() * vector.element_size() for path, (_, vector) in named}
