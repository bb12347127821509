"""Counter-based random numbers: the same key gives the same numbers, whatever was drawn before or elsewhere.

Every draw of a simulation is keyed by (seed, purpose, round, client), never taken from a global generator, so the
order in which clients run, the engine and the device change nothing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from fedlada.methods.random_state import python_randomness_restored, randomness_restored

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Words = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

_WORD = 2**64
GOLDEN = -7046029254386353131
"""2^64 over the golden ratio, as a signed number: the step between the words that `mixed` takes."""


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def bits(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Philox:
    """The counter-based stream of one key; streams of different keys never overlap."""
    key = np.array([seed % _WORD, _hash(purpose)], dtype=np.uint64)
    counter = np.array([0, 0, round % _WORD, client % _WORD], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter)


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """NumPy's distributions on the stream of one key."""
    return np.random.Generator(bits(seed, purpose, round, client))


def permutation(stream: np.random.Philox, size: int) -> Ints:
    """A random order of 0..size-1, from raw words, so that it does not depend on NumPy's version."""
    return np.argsort(stream.random_raw(size), kind="stable").astype(np.int64)


def uniform(stream: np.random.Philox, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Numbers in [0, 1), from raw words."""
    return (stream.random_raw(size) >> np.uint64(11)).astype(np.float64) / 2.0**53


def words(stream: np.random.Philox, size: int) -> Words:
    """Raw random words of 64 bits."""
    return stream.random_raw(size)


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Every bit of the result depends on every bit of x (int64); SplitMix64's finaliser."""
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift."""
    return x.bitwise_right_shift(by).bitwise_and(2 ** (64 - by) - 1)


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A seed for torch's own generators, where a model draws from them itself (dropout)."""
    return int(bits(seed, purpose, round, client).random_raw()) % 2**63


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's global generators of the CPU and of this device, and no others, as `torch.manual_seed` would.

    That one also notes a seed for every kind of device that is not in use, with the caller's stack each time: a fifth
    of the time of a small run.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and NumPy, from which a user's data set or model may draw."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


@contextmanager
def seeded(seed: int, device: torch.device, *, python: bool = True) -> Iterator[None]:
    """Seed all global generators within a block, or torch's alone."""
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        python_randomness_restored() if python else nullcontext(),
    ):
        seed_generators(seed, device)
        if python:
            seed_python(seed)
        yield


@contextmanager
def the_same_randomness() -> Iterator[None]:
    """Fix the global generators of Python, NumPy and torch within a block, so that its result always repeats."""
    with randomness_restored():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.default_generator.manual_seed(0)
        yield
