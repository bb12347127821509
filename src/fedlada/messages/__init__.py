"""Messages between server and clients: codecs (compression), the wire format, and traffic in bytes."""

from fedlada.messages.codec import Codec, Encoded
from fedlada.messages.errors import (
    CannotEncode,
    ContentMismatch,
    Corrupted,
    MessageError,
    Truncated,
    VersionMismatch,
)
from fedlada.messages.exchange import Exchange
from fedlada.messages.ledger import Ledger
from fedlada.messages.spec import CODECS, PRESETS, Messages, vectors
from fedlada.messages.wire import Expected, from_bytes, to_bytes

__all__ = [
    "CODECS",
    "PRESETS",
    "CannotEncode",
    "Codec",
    "ContentMismatch",
    "Corrupted",
    "Encoded",
    "Exchange",
    "Expected",
    "Ledger",
    "MessageError",
    "Messages",
    "Truncated",
    "VersionMismatch",
    "from_bytes",
    "to_bytes",
    "vectors",
]
