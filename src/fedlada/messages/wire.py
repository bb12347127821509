"""A message as bytes: a version, a header that names every vector and its code, the parts, and a checksum.

    FLDM | version u16 | header length u32 | header (JSON) | parts by vectors' names | CRC-32 of all before it u32

Numbers are little-endian. A receiver says what it expects; anything else is an error with a name.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlada.messages.codec import Codec, Encoded
from fedlada.messages.errors import CannotEncode, ContentMismatch, Corrupted, Truncated, VersionMismatch

MAGIC = b"FLDM"
VERSION = 1
START = struct.Struct("<4sHI")
CHECKSUM = struct.Struct("<I")
MAX_HEADER = 1 << 20

assert sys.byteorder == "little", "messages are written in the order of little-endian machines"


def header(vectors: Mapping[str, Encoded], about: Mapping[str, Any]) -> bytes:
    """What stands before the parts: who sends what, in which code."""
    listed = {path: [one.codec, one.size, _numbers(one)] for path, one in vectors.items()}
    return json.dumps({"about": dict(about), "vectors": listed}, separators=(",", ":"), sort_keys=True).encode()


def envelope_bytes(vectors: Mapping[str, Encoded], about: Mapping[str, Any]) -> int:
    """The size of a message besides its parts."""
    return START.size + len(header(vectors, about)) + CHECKSUM.size


def to_bytes(vectors: Mapping[str, Encoded], about: Mapping[str, Any]) -> bytes:
    """The whole message; `about` is what it is (round, method, sender), as plain values."""
    for path, one in vectors.items():
        if one.fits is not None and not bool(one.fits):
            raise CannotEncode(f"{path} holds numbers that {one.codec} has no code for")
    head = header(vectors, about)
    chunks = [START.pack(MAGIC, VERSION, len(head)), head]
    chunks += [_raw(part) for _, one in sorted(vectors.items()) for part in one.parts.values()]
    body = b"".join(chunks)
    return body + CHECKSUM.pack(zlib.crc32(body))


def from_bytes(data: bytes, expected: Mapping[str, tuple[Codec, int]]) -> tuple[dict[str, Encoded], dict[str, Any]]:
    """The vectors and what the message says it is, if it is whole and holds the codes and sizes that are expected."""
    head = _header(data)
    vectors = _listed(head, expected)
    place = START.size + struct.unpack_from("<I", data, 6)[0]
    end = len(data) - CHECKSUM.size
    received: dict[str, Encoded] = {}
    for path, (codec, size) in sorted(expected.items()):
        parts: dict[str, Tensor] = {}
        for name, (dtype, length) in codec.form(size).items():
            kind = torch.float64 if vectors[path][2] == "float64" else dtype
            width = length * torch.empty(0, dtype=kind).element_size()
            if place + width > end:
                raise Truncated(f"the message ends in the middle of {path}")
            parts[name] = torch.frombuffer(bytearray(data[place : place + width]), dtype=kind, count=length)
            place += width
        received[path] = Encoded(codec.name, size, parts)
    if place != end:
        raise Truncated(f"the message has {end - place} bytes more than its vectors")
    for path, one in received.items():
        codec = expected[path][0]
        if not codec.check(one) or not bool(codec.decode(one).isfinite().all()):
            raise Corrupted(f"{path} holds what {codec.name} never writes")
    return received, head["about"]


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
        raise Corrupted("the message's checksum differs: it was cut or changed on its way")
    try:
        head = json.loads(data[START.size : START.size + length])
        if not isinstance(head["about"], dict) or not isinstance(head["vectors"], dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Corrupted("the message's header cannot be read") from None
    return dict(head)


def _listed(head: Mapping[str, Any], expected: Mapping[str, tuple[Codec, int]]) -> dict[str, Any]:
    listed = head["vectors"]
    if list(listed) != sorted(expected):
        raise ContentMismatch(
            f"the message holds {', '.join(listed) or 'nothing'} instead of {', '.join(sorted(expected))}"
        )
    for path, (codec, size) in expected.items():
        numbers = ("float32", "float64") if codec.is_exact else ("",)
        if listed[path] not in [[codec.name, size, kind] for kind in numbers]:
            raise ContentMismatch(f"{path} came as {listed[path]!r} instead of {codec.name} with {size} numbers")
    return dict(listed)


def _numbers(one: Encoded) -> str:
    """What exact numbers are; every other code has one form only."""
    values = one.parts.get("values")
    return str(values.dtype).removeprefix("torch.") if values is not None and one.codec == "float32" else ""


def _raw(part: Tensor) -> bytes:
    flat = part.detach().cpu().contiguous()
    return np.asarray(flat.view(torch.uint8)).tobytes() if flat.numel() else b""
