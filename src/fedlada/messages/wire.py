"""The wire format: a version, a header that names every vector and its codec, the parts, and a checksum.

    FLDM | version u16 | header length u32 | header (JSON) | parts by vectors' names | CRC-32 of all before it u32

Numbers are little-endian. A receiver checks a message against what it expects; anything else raises a `MessageError`.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded, Form
from fedlada.messages.errors import CannotEncode, ContentMismatch, Corrupted, Truncated, VersionMismatch

MAGIC = b"FLDM"
VERSION = 1
START = struct.Struct("<4sHI")
CHECKSUM = struct.Struct("<I")
MAX_HEADER = 1 << 20

assert sys.byteorder == "little", "messages can only be written on little-endian machines"


def header(vectors: Mapping[str, Encoded], about: Mapping[str, Any]) -> bytes:
    """The header before the parts: sender, vectors and codecs."""
    listed = {path: [one.codec, one.size, _numbers(one)] for path, one in vectors.items()}
    return json.dumps({"about": dict(about), "vectors": listed}, separators=(",", ":"), sort_keys=True).encode()


def envelope_bytes(vectors: Mapping[str, Encoded], about: Mapping[str, Any]) -> int:
    """The size of a message without its parts."""
    return START.size + len(header(vectors, about)) + CHECKSUM.size


def to_bytes(vectors: Mapping[str, Encoded], about: Mapping[str, Any]) -> bytes:
    """The whole message; `about` describes it (round, method, sender) in plain values."""
    for path, one in vectors.items():
        if one.fits is not None and not bool(one.fits):
            raise CannotEncode(f"{path} holds numbers that {one.codec} cannot encode")
    head = header(vectors, about)
    chunks = [START.pack(MAGIC, VERSION, len(head)), head]
    chunks += [_raw(part) for _, one in sorted(vectors.items()) for part in one.parts.values()]
    body = b"".join(chunks)
    return body + CHECKSUM.pack(zlib.crc32(body))


@dataclass(frozen=True)
class Expected:
    """One vector as a receiver expects it."""

    codec: Codec
    size: int
    numbers: torch.dtype = torch.float32
    """The dtype that the receiver computes in; uncompressed numbers have this type."""

    def form(self) -> dict[str, Form]:
        """The parts."""
        form = self.codec.form(self.size)
        return {name: (self.numbers, size) for name, (_, size) in form.items()} if self.codec.is_exact else form

    def listed(self) -> list[Any]:
        """The vector's entry in a header."""
        return [self.codec.name, self.size, _name(self.numbers) if self.codec.is_exact else ""]


def from_bytes(data: bytes, expected: Mapping[str, Expected], about: Mapping[str, Any]) -> dict[str, Encoded]:
    """The vectors of a message, after checking that it is whole, matches `about` and holds what is expected."""
    head = _header(data)
    if head["about"] != dict(about):
        raise ContentMismatch(f"the message is for {_cut(head['about'])} instead of {_cut(dict(about))}")
    _check_listed(head["vectors"], expected)
    place = START.size + struct.unpack_from("<I", data, 6)[0]
    end = len(data) - CHECKSUM.size
    received: dict[str, Encoded] = {}
    for path, one in sorted(expected.items()):
        parts: dict[str, Tensor] = {}
        for name, (dtype, length) in one.form().items():
            width = length * dtype.itemsize
            if place + width > end:
                raise Truncated(f"the message ends in the middle of {path}")
            part = bytearray(data[place : place + width])
            parts[name] = torch.frombuffer(part, dtype=dtype, count=length) if length else torch.empty(0, dtype=dtype)
            place += width
        received[path] = Encoded(one.codec.name, one.size, parts)
    if place != end:
        raise Truncated(f"the message has {end - place} bytes more than its vectors")
    for path, vector in received.items():
        codec = expected[path].codec
        if not codec.check(vector) or not bool(codec.decode(vector).isfinite().all()):
            raise Corrupted(f"{path} holds codes that {codec.name} never writes")
    return received


def _header(data: bytes) -> dict[str, Any]:
    if len(data) < START.size + CHECKSUM.size:
        raise Truncated(f"a message has at least {START.size + CHECKSUM.size} bytes, this one {len(data)}")
    magic, version, length = START.unpack_from(data)
    if magic != MAGIC:
        raise Corrupted("these bytes are not a message of fedlada")
    if version != VERSION:
        raise VersionMismatch(f"the message has version {version}, this fedlada reads version {VERSION}: upgrade one")
    if length > MAX_HEADER or START.size + length + CHECKSUM.size > len(data):
        raise Truncated("the message ends in the middle of its header")
    if zlib.crc32(data[: -CHECKSUM.size]) != CHECKSUM.unpack_from(data, len(data) - CHECKSUM.size)[0]:
        raise Corrupted("the message's checksum differs: it was truncated or changed in transit")
    try:
        head = json.loads(data[START.size : START.size + length])
        if not isinstance(head["about"], dict) or not isinstance(head["vectors"], dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Corrupted("the message's header cannot be read") from None
    return dict(head)


def _check_listed(listed: Mapping[str, Any], expected: Mapping[str, Expected]) -> None:
    if list(listed) != sorted(expected):
        held = _cut(", ".join(listed) or "nothing")
        raise ContentMismatch(f"the message holds {held} instead of {', '.join(sorted(expected))}")
    for path, one in expected.items():
        if listed[path] != one.listed():
            raise ContentMismatch(f"{path} came as {_cut(listed[path])} instead of {one.listed()}")


def _numbers(one: Encoded) -> str:
    """The dtype of uncompressed numbers; every other codec has only one form."""
    values = one.parts.get("values")
    return _name(values.dtype) if values is not None and one.codec == "float32" else ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cut(text: object) -> str:
    """Untrusted text, shortened for an error message."""
    shown = text if isinstance(text, str) else repr(text)
    return shown if len(shown) <= 200 else f"{shown[:200]} ..."


def _raw(part: Tensor) -> bytes:
    flat = part.detach().cpu().contiguous()
    return np.asarray(flat.view(torch.uint8)).tobytes() if flat.numel() else b""
