"""Image folders and TinyImageNet: decoded once, and every way in which they can be wrong has its sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fedlada.data import load_dataset, load_image_folder, load_tiny_imagenet

RANDOM = np.random.default_rng(0)


def write_image(path, size=(8, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"RGB": (3,), "L": (), "RGBA": (4,)}[mode]
    pixels = RANDOM.integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def folder(tmp_path):
    written = {
        f"{split}/{name}/{number}.png": write_image(tmp_path / split / name / f"{number}.png")
        for split, count in (("train", 4), ("test", 2))
        for name in ("cat", "dog")
        for number in range(count)
    }
    return tmp_path, written


@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    names = ["n03", "n01", "n02"]
    for name in names:
        for number in range(3):
            mode = "L" if (name, number) == ("n02", 1) else "RGB"
            write_image(root / "train" / name / "images" / f"{name}_{number}.JPEG", (64, 64), mode)
    for number in range(4):
        write_image(root / "val" / "images" / f"val_{number}.JPEG", (64, 64))
    lines = [f"val_{number}.JPEG\t{names[number % 3]}\t0\t0\t10\t10" for number in range(4)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("\n".join(names) + "\n")
    return tmp_path


def test_an_image_folder(folder):
    root, written = folder
    train, test, names = load_image_folder(root)
    assert names == ["cat", "dog"]
    assert (len(train.labels), len(test.labels)) == (8, 4)
    assert train.labels.tolist() == [0] * 4 + [1] * 4
    for number in range(4):
        assert (train.images[4 + number] == np.moveaxis(written[f"train/dog/{number}.png"], 2, 0)).all()
    again, _, _ = load_image_folder(root)
    assert (again.images == train.images).all()
    assert isinstance(again.images, np.memmap)
    assert not again.images.flags.writeable


def test_class_folders_alone_give_a_fixed_test_set(tmp_path):
    for name in ("a", "b"):
        for number in range(6):
            write_image(tmp_path / name / f"{number}.png")
    train, test, _ = load_image_folder(tmp_path)
    assert (len(train.labels), len(test.labels)) == (10, 2)
    assert sorted(np.concatenate([train.labels, test.labels])) == [0] * 6 + [1] * 6


def test_images_of_many_sizes_and_modes(tmp_path):
    for split in ("train", "val"):
        write_image(tmp_path / split / "a" / "0.png", (20, 10))
        write_image(tmp_path / split / "a" / "1.png", (9, 30), "L")
        write_image(tmp_path / split / "a" / "2.png", (16, 16), "RGBA")
    with pytest.raises(ValueError, match=r"1.png has 9x30 pixels where 20x10 are expected: give image_size"):
        load_image_folder(tmp_path)
    train, _, _ = load_image_folder(tmp_path, image_size=8)
    assert train.images.shape == (3, 3, 8, 8)
    assert (train.images[1, 0] == train.images[1, 1]).all()  # grey became colour
    source = load_dataset("folder", tmp_path, image_size=8, augment="crop")
    assert source.input_shape == (3, 8, 8)
    assert source.train.augmentation.padding == 1
    with pytest.raises(ValueError, match="image_size is for image folders"):
        load_dataset("cifar10", tmp_path, image_size=8)


def test_tiny_imagenet(tiny):
    train, test, names = load_tiny_imagenet(tiny)
    assert names == ["n01", "n02", "n03"]  # numbered in the order of their names
    assert train.images.shape == (9, 3, 64, 64)
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert test.labels.tolist() == [2, 0, 1, 2]
    assert (train.images[4, 0] == train.images[4, 2]).all()  # the greyscale one
    source = load_dataset("tinyimagenet", tiny / "tiny-imagenet-200", augment="authors")
    assert (source.num_classes, source.input_shape) == (3, (3, 64, 64))
    assert (source.train.mean, source.train.augmentation.padding) == ((0.5, 0.5, 0.5), 8)
    assert source.test.augmentation is None


def remove(path):
    for inside in sorted(path.rglob("*"), reverse=True):
        inside.rmdir() if inside.is_dir() else inside.unlink()
    path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: remove(r / "wnids.txt"), r"there is no .*wnids.txt: fedlada data fetch tinyimagenet"),
        (lambda r: remove(r / "train" / "n02"), r"has no folder for the class n02, .* \(1 of 3 are missing\)"),
        (lambda r: remove(r / "train" / "n02" / "images"), r"there is no folder .*n02/images"),
        (lambda r: [remove(f) for f in (r / "train/n02/images").iterdir()], "the class 'n02' is empty"),
        (lambda r: (r / "train" / "n99").mkdir(), "has a folder 'n99', which is not one of the 3 classes"),
        (lambda r: remove(r / "val" / "val_annotations.txt"), r"there is no .*val_annotations.txt"),
        (lambda r: remove(r / "val" / "images"), r"line 1: there is no .*val_0.JPEG"),
        (lambda r: remove(r / "val/images/val_2.JPEG"), r"line 3: there is no .*val_2.JPEG"),
        (lambda r: (r / "val/val_annotations.txt").write_text("val_0.JPEG\tn77\t0"), r"line 1: 'n77' is not a class"),
        (lambda r: (r / "val/val_annotations.txt").write_text(""), r"val_annotations.txt names no images"),
        (lambda r: cut(r / "train/n01/images/n01_1.JPEG"), r"n01_1.JPEG is damaged"),
        (lambda r: (r / "train/n01/images/n01_1.JPEG").write_text("x"), r"n01_1.JPEG is not an image that can be read"),
        (lambda r: write_image(r / "train/n01/images/n01_1.JPEG", (32, 64)), r"has 32x64 pixels where 64x64"),
    ],
)
def test_what_is_wrong_with_tiny_imagenet_is_named(tiny, change, sentence):
    change(tiny / "tiny-imagenet-200")
    with pytest.raises(ValueError, match=sentence):
        load_tiny_imagenet(tiny)


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def test_what_is_wrong_with_a_folder_is_named(folder):
    root, _ = folder
    with pytest.raises(ValueError, match="there is no folder"):
        load_image_folder(root / "nowhere")
    with pytest.raises(ValueError, match="has no class folders"):
        load_image_folder(root / "train" / "cat")
    remove(root / "test" / "dog")
    with pytest.raises(ValueError, match=r"there is no folder .*test/dog: the class 'dog' is missing"):
        load_image_folder(root)
    remove(root / "test")
    with pytest.raises(ValueError, match="has a folder train, but neither test nor val beside it"):
        load_image_folder(root)


def test_the_cache_follows_the_files_and_notices_damage(folder):
    root, _ = folder
    before, _, _ = load_image_folder(root)
    first = np.array(before.images)
    cache = root / ".fedlada-cache" / "train"
    built = json.loads((cache / "meta.json").read_text())["checksums"]
    for damage in (flip_a_byte, cut, lambda path: path.unlink()):
        damage(cache / "images.npy")
        assert (load_image_folder(root)[0].images == first).all()
        assert json.loads((cache / "meta.json").read_text())["checksums"] == built
    (cache / "meta.json").write_text("{")
    assert (load_image_folder(root)[0].images == first).all()
    changed = write_image(root / "train" / "cat" / "0.png")
    os.utime(root / "train" / "cat" / "0.png", (0, 0))
    assert (load_image_folder(root)[0].images[0] == np.moveaxis(changed, 2, 0)).all()
    assert {path.name for path in cache.parent.iterdir()} == {"train", "test", "train.lock", "test.lock"}


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


LOAD = """
import sys
from pathlib import Path
from fedlada.data import load_image_folder
calls = []
train, test, _ = load_image_folder(Path(sys.argv[1]), progress=lambda *told: calls.append(told))
print(len(calls), train.images.sum(), test.images.sum())
"""


def test_two_processes_build_one_cache(folder):
    root, _ = folder
    both = [
        subprocess.Popen([sys.executable, "-c", LOAD, str(root)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [one.communicate(timeout=120)[0].split() for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert answers[0][1:] == answers[1][1:]
    # Each split was decoded by one of them alone: the other waited and read what was there.
    assert sum(int(answer[0]) for answer in answers) == 2


def test_a_folder_that_cannot_be_written_is_cached_elsewhere(folder, tmp_path_factory, monkeypatch):
    root, _ = folder
    elsewhere = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere))
    (root / ".fedlada-cache").write_text("a file where the cache would be")
    train, _, _ = load_image_folder(root)
    assert len(train.labels) == 8
    assert list(elsewhere.glob("fedlada/*/train/images.npy"))
