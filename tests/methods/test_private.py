"""The private sum against NumPy: clipped as a whole, noise once, a public divisor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fedlada.combine import Coming, Private, as_combiner, as_private

from fedlada import Upload, recipes

RANDOM = np.random.default_rng(0)
DELTAS, MOMENTS = RANDOM.standard_normal((6, 5)), RANDOM.random((6, 5)) + 0.1


def uploads(deltas=DELTAS, moments=MOMENTS):
    for delta, v in zip(deltas, moments, strict=True):
        yield Upload(torch.from_numpy(delta.copy()), ({}, {"v": torch.from_numpy(v.copy())}))


def draws(name, like):
    return torch.full_like(like, 0.5 if name == "delta" else -3.0)


def released(private, given, expected=4.0, normal=draws, positive=frozenset({"extra.1.v"})):
    return private.for_round([], Coming(expected, normal, positive)).combine(given, [1.0] * 6)


def test_equals_numpy():
    private = Private(1.5, noise_multiplier=0.7, scales={"v": 2.0})
    found = released(private, uploads())
    whole = np.concatenate([DELTAS, 2.0 * MOMENTS], axis=1)
    clipped = whole * np.minimum(1, 1.5 / np.linalg.norm(whole, axis=1))[:, None]
    assert (np.linalg.norm(clipped, axis=1) < np.linalg.norm(whole, axis=1)).any()
    total = clipped.sum(axis=0)
    np.testing.assert_allclose(found.delta.numpy(), (total[:5] + 0.5 * 0.7 * 1.5) / 4, rtol=0, atol=1e-12)
    moments = (total[5:] - 3.0 * 0.7 * 1.5) / 4 / 2
    floor = 0.7 * 1.5 / 4 / 2  # the deviation of their noise
    assert (moments < floor).any()
    np.testing.assert_allclose(found.extra[1]["v"].numpy(), np.maximum(moments, floor), rtol=0, atol=1e-12)


def test_one_client_moves_the_sum_by_the_clip_at_most():
    """Whatever it sends, in all of its vectors together."""
    private = Private(0.3, noise_multiplier=1.0, scales={"v": 10.0})
    quiet = {"normal": lambda _, like: torch.zeros_like(like), "positive": frozenset()}
    for size in (1e-3, 1.0, 1e8):
        deltas, moments = DELTAS.copy(), MOMENTS.copy()
        deltas[2], moments[2] = size, size
        without = released(private, (one for index, one in enumerate(uploads()) if index != 2), **quiet)
        with_it = released(private, uploads(deltas, moments), **quiet)
        moved = [4 * (with_it.delta - without.delta), 4 * 10 * (with_it.extra[1]["v"] - without.extra[1]["v"])]
        assert torch.cat(moved).norm() <= 0.3 * (1 + 1e-9)


def test_a_vector_too_long_for_its_own_numbers_is_clipped_like_others():
    """1e37 in float32, a hundredfold in the clipped upload: more than such a number can be."""
    huge = Upload(torch.zeros(3), ({}, {"v": torch.full((3,), 1e37)}))
    private = Private(0.3, noise_multiplier=1.0, scales={"v": 100.0})
    found = released(private, [huge], normal=lambda _, like: torch.zeros_like(like), positive=frozenset())
    assert found.extra[1]["v"].tolist() == pytest.approx([0.3 / 3**0.5 / 4 / 100] * 3, rel=1e-6)


@pytest.mark.parametrize(("cohort", "factor"), [(None, 1.0), (40, 0.1)])
def test_the_variance_of_the_noise(cohort, factor):
    private = Private(0.4, noise_multiplier=1.3, noise_cohort=cohort)
    generator = torch.Generator().manual_seed(0)

    def normal(_, like):
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    zeros = [Upload(torch.zeros(20_000, dtype=torch.float64), ())] * 6
    mean = released(private, zeros, normal=normal, positive=frozenset()).delta
    assert mean.std() == pytest.approx(factor * 1.3 * 0.4 / 4, rel=0.02)


def test_nothing_depends_on_how_many_came():
    private = Private(10.0, noise_multiplier=1.0)
    one, three = (released(private, [next(uploads())] * times) for times in (1, 3))
    noise = 0.5 * 10.0 / 4
    assert torch.allclose(three.delta - noise, 3 * (one.delta - noise))


def test_the_second_moment_that_is_reset_does_not_travel():
    for recipe in (recipes.localadam, recipes.fedlada):
        assert not any(recipe(second_moment="reset").dry_run.upload.extra)


def test_refusals():
    with pytest.raises(ValueError, match="needs noise_multiplier, or epsilon"):
        Private(1.0)
    with pytest.raises(ValueError, match="clip must be positive, got 0"):
        Private(0, noise_multiplier=1.0)
    for delta in (1.5, 1e-13):
        with pytest.raises(ValueError, match=rf"delta must be in \[1e-12, 1\), .*, got {delta}"):
            Private(1.0, epsilon=1.0, delta=delta)
    for noise in (1e10, 1e308):
        with pytest.raises(ValueError, match=r"noise_multiplier must be at most 1e\+09, got 1"):
            Private(0.4, noise_multiplier=noise)
    with pytest.raises(ValueError, match=r"clip is too large for noise in its proportion: got 1e\+300"):
        Private(1e300, epsilon=2.0)
    with pytest.raises(ValueError, match="noise_population belongs to noise_cohort"):
        Private(1.0, epsilon=1.0, noise_population=100)
    with pytest.raises(ValueError, match=r"scales\['v'\] must be positive"):
        Private(1.0, epsilon=1.0, scales={"v": -1.0})
    with pytest.raises(ValueError, match="draws its noise per round"):
        Private(1.0, noise_multiplier=1.0).combine(uploads())
    with pytest.raises(ValueError, match="weights every client equally: use weights='uniform'"):
        Private(1.0, noise_multiplier=1.0).for_round([], Coming(4.0, draws)).combine(uploads(), [1.0, 2.0] * 3)
    with pytest.raises(ValueError, match="combiner private needs its noise"):
        as_combiner("private:0.4")
    assert as_private("private:0.4:v=100,control_change=2", epsilon=1.0).scales == {"v": 100.0, "control_change": 2.0}
    for text in ("private", "private:x", "private:1:v", "private:1:v=x"):
        with pytest.raises(ValueError, match="must be private:CLIP or private:CLIP:VECTOR=SCALE"):
            as_private(text, epsilon=1.0)
