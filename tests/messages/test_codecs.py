"""Codes of vectors: bounds on their errors, right means, the same bits again, and nothing that does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedlada.messages import CODECS
from fedlada.messages.blocks import INT4, INT8
from fedlada.messages.means import BlockMeans
from fedlada.messages.noise import key, uniform_noise
from fedlada.messages.plain import BFloat16, Float16, Float32
from fedlada.messages.top_k import TopK

LOG8 = CODECS["log8"]
ALL = [*CODECS.values(), BlockMeans("mean32", 32), TopK("top0.3", 0.3), TopK("top0.01", 0.01)]
CPU = torch.device("cpu")
largest = float(np.finfo(np.float32).max) / 4


def vectors(low=-largest, high=largest):
    numbers = st.floats(low, high, width=32)
    sizes = st.integers(1, 600)
    return sizes.flatmap(lambda n: arrays.arrays(np.float32, n, elements=numbers, fill=numbers)).map(torch.from_numpy)


keys = st.integers(0, 2**64 - 1)


def sent(codec, vector, key=7):
    encoded = codec.encode(vector, key)
    assert {name: (part.dtype, part.numel()) for name, part in encoded.parts.items()} == codec.form(vector.numel())
    assert codec.check(encoded)
    received = codec.decode(encoded)
    assert received.shape == vector.shape
    assert received.dtype == torch.float32
    return received


@settings(max_examples=60, deadline=None)
@given(vectors(), keys)
def test_blocks_are_off_by_less_than_a_level(vector, key):
    for codec in (INT8, INT4):
        received = sent(codec, vector, key)
        for start in range(0, vector.numel(), codec.block):
            own, got = vector[start : start + codec.block].double(), received[start : start + codec.block].double()
            # The scale is the largest over the number of levels, rounded up to bfloat16's 8 bits.
            level = own.abs().max() / codec.levels * (1 + 2**-7)
            assert ((got - own).abs() <= level * (1 + 1e-6) + codec.levels * 2.0**-133).all()
            assert (got.abs() <= own.abs().max() * (1 + 2**-7) + 2.0**-120).all()


@settings(max_examples=60, deadline=None)
@given(vectors(low=2.0**-149, high=2.0**119), keys)
def test_means_are_those_of_their_blocks(vector, key):
    for block in (2, 32):
        received = sent(BlockMeans("mean", block), vector, key)
        for start in range(0, vector.numel(), block):
            own, got = vector[start : start + block].double(), received[start : start + block].double()
            assert got.unique().numel() == 1
            assert abs(got[0] - own.mean()) <= own.mean() * 2**-7.9 + 2.0**-133
            assert got[0] > 0


@settings(max_examples=60, deadline=None)
@given(vectors(low=2.0**-149), keys)
def test_logarithms_keep_their_relative_error_and_never_reach_zero(vector, key):
    received = sent(LOG8, vector, key)
    assert (received > 0).all()
    for start in range(0, vector.numel(), 256):
        own, got = vector[start : start + 256], received[start : start + 256]
        words = own.view(torch.int32).to(torch.int64)
        step = int(words.max() - words.min() + 254) // 255
        # Neighbouring levels are `step` apart in the bits, and a number lies between its neighbours.
        assert (got.view(torch.int32).to(torch.int64) - words).abs().max() <= step
        assert got.min() >= own.min()
        assert got.max().double() <= own.max().double() * (1 + 2**-14) + 1e-40


@pytest.mark.parametrize("spread", [0, 1, 100, 254, 255])
def test_logarithms_of_close_neighbours_are_exact(spread):
    words = torch.tensor([0x3F000000, 0x3F000000 + spread // 2, 0x3F000000 + spread], dtype=torch.int32)
    vector = words.view(torch.float32)
    assert torch.equal(sent(LOG8, vector), vector)


@settings(max_examples=60, deadline=None)
@given(vectors())
def test_bfloat16(vector):
    received = sent(BFloat16(), vector)
    assert ((received - vector).abs() <= vector.abs() * 2**-8 + 2.0**-133).all()
    assert ((received == 0) == (vector == 0)).all()


@settings(max_examples=60, deadline=None)
@given(vectors(low=-60000, high=60000))
def test_float16(vector):
    received = sent(Float16(), vector)
    assert ((received - vector).abs() <= vector.abs() * 2**-11 + 2.0**-25).all()


@settings(max_examples=60, deadline=None)
@given(vectors(), st.floats(0.001, 0.999))
def test_the_largest_go_and_the_others_are_zero(vector, share):
    codec = TopK("top", share)
    received = sent(codec, vector)
    k = codec.count(vector.numel())
    chosen = torch.zeros(len(vector), dtype=torch.bool)
    chosen[torch.from_numpy(np.argsort(-vector.abs().numpy(), kind="stable")[:k].copy())] = True  # of equals the first
    torch.testing.assert_close(received, torch.where(chosen, vector.bfloat16().float(), 0.0), rtol=0, atol=0)


def test_exact_is_exact_and_float64_stays_float64():
    vector = torch.randn(10, dtype=torch.float64)
    assert Float32().decode(Float32().encode(vector, 0)) is vector
    assert Float32().encode(vector, 0).num_bytes == 80


def distance_of_levels(codec, vector):
    """For each number how far apart the two levels are between which it lies."""
    parts = codec.encode(vector, 0).parts
    if codec is not LOG8:
        return parts["scales"].double().repeat_interleave(codec.block)[: len(vector)]
    lowest, steps = (parts[name].repeat_interleave(256)[: len(vector)] for name in ("lowest", "steps"))
    below = lowest + (vector.view(torch.int32) - lowest) // steps * steps
    return (below + steps).view(torch.float32).double() - below.view(torch.float32).double()


@pytest.mark.parametrize("codec", [INT8, INT4, LOG8], ids=lambda one: one.name)
def test_rounding_is_right_on_average(codec):
    """The mean over many keys comes as close to the vector as independent draws between two levels must."""
    torch.manual_seed(0)
    vector = torch.randn(1000).abs() * torch.exp(2 * torch.randn(1000))
    draws = torch.stack([sent(codec, vector, key(0, "draw", 0, number)) for number in range(400)]).double()
    off = (draws.mean(dim=0) - vector.double()) / distance_of_levels(codec, vector)
    assert off.abs().max() < (np.log(2e9) / 800) ** 0.5  # Hoeffding: once in a million tests
    assert abs(float(off.sum())) < 5 * 0.5 * (1000 / 400) ** 0.5  # no common tendency either
    assert (draws.std(dim=0) > 0).float().mean() > 0.5  # it is rounded at random


def test_noise_is_even_and_independent_of_place_and_key():
    n = 1 << 17
    noise = uniform_noise(key(0, "a", 0, 0), n, CPU)
    assert noise.min() >= 0
    assert noise.max() < 1
    counts = torch.histc(noise, 256, 0, 1)
    assert ((counts - n / 256) ** 2 / (n / 256)).sum() < 255 + 5 * (2 * 255) ** 0.5  # chi-squared
    others = [uniform_noise(key(0, "a", round, client), n, CPU) for round, client in [(0, 1), (1, 0)]]
    others += [noise.roll(lag) for lag in (1, 2, 64, 256)] + [uniform_noise(key(1, "a", 0, 0), n, CPU)]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([noise, other]))[0, 1])) < 5 / n**0.5
    # Written down once: these numbers are part of every run with these codes.
    assert (uniform_noise(0x0123456789ABCDEF, 4, CPU) * 2**24).int().tolist() == FIRST_NOISE


FIRST_NOISE = [14298264, 6524031, 1061963, 1108349]


@pytest.mark.parametrize("codec", ALL, ids=lambda one: one.name)
def test_zeros_tiny_and_single_numbers_survive(codec):
    for vector in (torch.zeros(5), torch.full((300,), 1e-40), torch.tensor([0.5]), torch.full((257,), 1e-8)):
        received = sent(codec, vector)
        assert received.isfinite().all()
        assert (received >= 0).all()


@pytest.mark.parametrize("codec", ALL, ids=lambda one: one.name)
def test_same_key_same_bits_other_key_other_bits(codec):
    vector = torch.randn(3000, generator=torch.Generator().manual_seed(0)).abs()
    first, again, other = (codec.encode(vector, key).parts for key in (5, 5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    is_random = codec.name in ("int8", "int4", "log8")
    assert is_random == any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("codec", "number"),
    [
        (Float16(), 7e4),
        (BFloat16(), 3.4e38),
        (LOG8, -1e-9),
        (LOG8, 0.0),
        (LOG8, float("inf")),
        (BlockMeans("mean32", 32), 0.0),
        (BlockMeans("mean32", 32), float("inf")),
        (INT4, 3.39e38),
        (INT8, float("inf")),
        (TopK("t", 0.5), 3.4e38),
    ],
)
def test_what_does_not_fit_is_known(codec, number):
    good = torch.full((300,), 0.5)
    assert codec.encode(good, 0).fits
    good[200] = number
    assert not codec.encode(good, 0).fits
