"""Augmentation equals a slow, obvious version, image by image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlada
from fedlada.data import Augmentation, Images, LocalWork
from fedlada.federation.cohorts import FixedSize
from fedlada.federation.plan import Plan
from fedlada.federation.randomness import bits, words
from fedlada.federation.schedules import as_schedule

CPU = torch.device("cpu")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def slow(image, word, augmentation, size=None):
    """One image as the authors' loader does it: flip, put into a canvas of zeros, cut out."""
    word = int(word) >> 1
    pad = augmentation.padding
    image = (image / 255.0 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    if augmentation.flip and word & 1:
        image = image[:, :, ::-1]
    _, height, width = image.shape
    out_height, out_width = (height, width) if size is None else (size, size)
    if augmentation.crop == "never" or (augmentation.crop == "half" and not word & 2):
        top, left = (height - out_height) // 2, (width - out_width) // 2
        return image[:, top : top + out_height, left : left + out_width]
    canvas = np.zeros((3, height + 2 * pad, width + 2 * pad))
    canvas[:, pad : pad + height, pad : pad + width] = image
    top = ((word >> 8) % 2**24) * (2 * pad + height - out_height + 1) // 2**24
    left = ((word >> 32) % 2**24) * (2 * pad + width - out_width + 1) // 2**24
    return canvas[:, top : top + out_height, left : left + out_width]


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("crop", ["half", "always", "never"])
@pytest.mark.parametrize(
    ("size", "padding", "crop_size"),
    [((32, 32), 4, None), ((9, 6), 2, None), ((5, 4), 7, None), ((9, 6), 0, 4), ((8, 9), 1, 5)],
)
def test_equals_the_slow_version(size, padding, crop_size, crop, flip):
    augmentation = Augmentation(padding=padding, crop=crop, flip=flip)
    x = np.random.default_rng(0).integers(0, 256, (20, 3, *size), dtype=np.uint8)
    samples = Images(x, np.zeros(20, np.int64), MEAN, STD, augmentation, crop_size).samples(CPU, torch.float64)
    chosen = np.random.default_rng(1).integers(0, 20, 64)
    drawn = words(bits(3, "augmentation", 1, 2), 64)
    batch, _ = samples.batch(chosen, drawn)
    for number, (index, word) in enumerate(zip(chosen, drawn, strict=True)):
        np.testing.assert_allclose(
            batch[number].numpy(), slow(x[index], word, augmentation, crop_size), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(("padding", "crop_size"), [(0, 5), (3, None)])
def test_an_image_can_be_standardised_by_itself(padding, crop_size):
    """By the pixels that are left of it; what is added around it stays zero."""
    augmentation = Augmentation(padding=padding, crop="always")
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 9), dtype=np.uint8)
    x[0] = 7  # constant
    images = Images(x, np.zeros(20, np.int64), (0.0,) * 3, (1 / 255,) * 3, augmentation, crop_size)
    drawn = words(bits(3, "augmentation", 1, 2), 20)
    pixels, _ = replace(images, x=x - (x == 255) + 1).samples(CPU, torch.float64).batch(np.arange(20), drawn)
    found, _ = replace(images, standardize="image").samples(CPU, torch.float64).batch(np.arange(20), drawn)
    seen = pixels.numpy() != 0  # pixels are at least 1 there
    plain, _ = images.samples(CPU, torch.float64).batch(np.arange(20), drawn)
    for image, right, inside in zip(found.numpy(), plain.numpy(), seen, strict=True):
        values = right[inside]
        scale = max(values.std(), 1 / np.sqrt(values.size))
        np.testing.assert_allclose(image[inside], (values - values.mean()) / scale, rtol=0, atol=1e-12)
        assert not image[~inside].any()
    middle, _ = replace(images, standardize="image").samples(CPU, torch.float64).batch(np.arange(20))
    np.testing.assert_allclose(middle.mean(dim=(1, 2, 3)), 0, atol=1e-12)
    wide = replace(images, standardize="image", augmentation=Augmentation(padding=12), crop_size=None)
    assert wide.samples(CPU, torch.float64).batch(np.arange(20), drawn)[0].isfinite().all()
    with pytest.raises(ValueError, match="standardize must be one of channels, image, got 'none'"):
        replace(images, standardize="none")


def test_evaluation_cuts_from_the_middle():
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 30), dtype=np.uint8)
    middle, _ = (
        Images(x, np.zeros(4, np.int64), MEAN, STD, crop_size=24).samples(CPU, torch.float64).batch(np.arange(4))
    )
    whole, _ = Images(x, np.zeros(4, np.int64), MEAN, STD).samples(CPU, torch.float64).batch(np.arange(4))
    assert torch.equal(middle, whole[:, :, 4:28, 3:27])
    with pytest.raises(ValueError, match=r"crop_size must be in 1\.\.30, the images' size, got 31"):
        Images(x, np.zeros(4, np.int64), MEAN, STD, crop_size=31)


def test_choices_are_spread_evenly():
    draws = torch.from_numpy((words(bits(0, "x"), 90_000) >> np.uint64(1)).astype(np.int64))
    flipped, rows, columns = Augmentation(padding=4, crop="always").choices(draws)
    assert abs(flipped.double().mean() - 0.5) < 0.01
    for shifts in (rows, columns):
        counts = torch.bincount(shifts + 4, minlength=9)
        assert len(counts) == 9
        assert (abs(counts / 10_000 - 1) < 0.05).all()
    joint = torch.bincount((rows + 4) * 18 + (columns + 4) * 2 + flipped, minlength=162)
    assert (abs(joint * 162 / 90_000 - 1) < 0.2).all()  # and independent of each other
    _, rows, _ = Augmentation(padding=4).choices(draws)
    assert abs((rows == 0).double().mean() - (0.5 + 0.5 / 9)) < 0.01


def test_evaluation_is_never_augmented_and_training_differs_by_round_client_and_step():
    x = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    images = Images(x, np.zeros(6, np.int64), MEAN, STD, Augmentation(padding=2))
    plain = Images(x, np.zeros(6, np.int64), MEAN, STD)
    everything = np.arange(6)
    augmented, untouched = (one.samples(CPU, torch.float64) for one in (images, plain))
    assert torch.equal(augmented.batch(everything)[0], untouched.batch(everything)[0])
    plan = Plan(
        clients=[everything, everything],
        cohorts=FixedSize(2),
        work=LocalWork(batch_size=6, epochs=2),
        schedule=as_schedule(0.1, 1.0),
    )
    seen = [tuple(step.tolist()) for round in (1, 2) for work in plan.round(round).assignments for step in work.words]
    assert len(set(seen)) == 8
    assert [tuple(s.tolist()) for w in plan.round(1).assignments for s in w.words] == seen[:4]


def test_a_run_repeats_with_augmentation_and_differs_from_one_without():
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
    y = np.arange(60) % 3

    def params(augmentation):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
        data = Images(x, y, MEAN, STD, augmentation)
        return fedlada.simulate(model, data, method="fedavg", rounds=2, device="cpu").server.params

    assert torch.equal(params(Augmentation()), params(Augmentation()))
    assert not torch.equal(params(Augmentation()), params(None))
    assert not torch.equal(params(Augmentation()), params(Augmentation(crop="always")))


def test_wrong_values_are_refused():
    with pytest.raises(ValueError, match="crop must be one of"):
        Augmentation(crop="often")
    with pytest.raises(ValueError, match="padding"):
        Augmentation(padding=-1)
