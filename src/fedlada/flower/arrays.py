"""Reading received arrays without trusting their labels, length or bytes."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from fedlada.flower.exchange import word

NPY_HEADER = 128
"""Header bytes of NumPy's format before the numbers of a vector."""
STYPE = "numpy.ndarray"
"""Flower's name for that format, the only one that its arrays are written in."""


class UnreadableArray(ValueError):
    """An array that does not match its label or exceeds its limit."""


def numbers_of(array: Array, dtype: str, *, most: int) -> NDArray[Any]:
    """The numbers, if they have that dtype and at most this many bytes."""
    if array.stype != STYPE:
        raise UnreadableArray(f"is written as {word(array.stype)} and not as {STYPE!r}")
    # Checked before NumPy reads it: a header may claim more numbers than there are, and NumPy would allocate them.
    if len(array.data) > most:
        raise UnreadableArray(f"has {len(array.data)} bytes, and at most {most} were expected")
    try:
        return _parsed(array.data, np.dtype(dtype))
    except UnreadableArray:
        raise
    except Exception as error:  # numpy's own reader raises whatever the bytes lead it to
        raise UnreadableArray(f"cannot be read: {error}") from None


def _parsed(data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise UnreadableArray(f"has numpy's format {version}, and (1, 0) was expected")
    shape, fortran, found = np.lib.format.read_array_header_1_0(file)
    if found != dtype or (fortran and len(shape) > 1):
        raise UnreadableArray(f"holds {found} under another label")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise UnreadableArray(f"has {len(data) - file.tell()} bytes, which are not those of its shape")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)
