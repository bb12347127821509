"""Data sets in their official files: right, and refused with a sentence where they are not."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import fedlada
from fedlada.data import Images, load_cifar, load_dataset, load_idx
from fedlada.data.cifar import read_pickle
from fedlada.data.images import channel_statistics

RANDOM = np.random.default_rng(0)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def write_idx(path, values, compress=True):
    header = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    data = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if compress else data)
    return data


@pytest.fixture
def mnist(tmp_path):
    arrays = {}
    for split, name, size in (("train", "train", 60), ("test", "t10k", 20)):
        images, labels = RANDOM.integers(0, 256, (size, 28, 28)), np.arange(size) % 10
        write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", labels, compress=False)
        arrays[split] = (images, labels)
    return tmp_path, arrays


def test_idx(mnist):
    folder, arrays = mnist
    for split, (images, labels) in arrays.items():
        x, y = load_idx(folder, split)
        assert (x == images[:, None]).all()
        assert (y == labels).all()
        assert (x.dtype, y.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("train-images-idx3-ubyte.gz", lambda d: d[:-10], "is damaged"),
        ("train-images-idx3-ubyte.gz", lambda d: gzip.compress(gzip.decompress(d)[:-5]), "cut short or damaged"),
        ("train-images-idx3-ubyte.gz", lambda _: gzip.compress(b"hello"), "is not an IDX file of bytes"),
        ("train-images-idx3-ubyte.gz", lambda _: gzip.compress(b"\0\0\x08\x03\0"), "cut short or damaged"),
        ("train-labels-idx1-ubyte", lambda d: d[:8] + b"\x0b" + d[9:], "holds the label 11, outside 0..9"),
        (
            "train-images-idx3-ubyte.gz",
            lambda d: gzip.compress(gzip.decompress(d)[:4] + bytes(12)),
            "do not fit together",
        ),
        ("train-labels-idx1-ubyte", lambda d: d[:4] + struct.pack(">I", 59) + d[8:-1], "do not fit together"),
    ],
)
def test_damaged_idx_is_named(mnist, name, change, sentence):
    path = mnist[0] / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=sentence) as caught:
        load_idx(mnist[0], "train")
    assert str(mnist[0]) in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 28, 28), (5, 0, 28)])
def test_idx_files_without_pixels_are_named(tmp_path, shape):
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", np.zeros(shape))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.zeros(shape[0]))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz holds no images: its shape is"):
        load_idx(tmp_path, "test")


@contextmanager
def little_memory(most=2**24):
    """Fails where more than so many bytes were held at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def idx_header(*shape):
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (idx_header(60, 28, 28) + bytes(2**26), r"should hold 47040 values, there are more"),
        (idx_header(2**21, 28, 28) + bytes(2**20), r"promises 1\.64 GB: at most 1 GB, or 50 times the file's own size"),
        (idx_header(*[2**32 - 1] * 3), r"promises 79228162458924\d+\.\d+ GB"),
        (idx_header(*[1] * 65) + b"1", r"has 65 dimensions: images have 3, labels 1"),
        (idx_header(*[1] * 255) + b"1", r"has 255 dimensions: images have 3, labels 1"),
        (idx_header(), r"has 0 dimensions: images have 3, labels 1"),
    ],
    ids=["longer than said", "honest bomb", "absurd shape", "65 dimensions", "255 dimensions", "none"],
)
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_an_idx_file_that_would_fill_the_memory_is_refused(mnist, content, sentence, suffix):
    path = mnist[0] / f"train-images-idx3-ubyte{suffix}"
    (mnist[0] / "train-images-idx3-ubyte.gz").unlink()
    path.write_bytes(gzip.compress(content) if suffix else content)
    with little_memory(), pytest.raises(ValueError, match=f"{path.name} .*{sentence}"):
        load_idx(mnist[0], "train")


def write_cifar(folder, name, *, protocol=2, **changes):
    inside = folder / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    inside.mkdir()
    files = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if name == "cifar10" else ["train", "test"]
    written = []
    for file in files:
        key, classes = (b"labels", 10) if name == "cifar10" else (b"fine_labels", 100)
        content = {b"data": RANDOM.integers(0, 256, (7, 3072), dtype=np.uint8), key: [i % classes for i in range(7)]}
        content.update({k.encode(): v for k, v in changes.items()})
        (inside / file).write_bytes(pickle.dumps(content, protocol=protocol))
        written.append(content)
    return written


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar(tmp_path, name, protocol):
    written = write_cifar(tmp_path, name, protocol=protocol)
    x, y = load_cifar(tmp_path, name, "train")
    num_parts = 5 if name == "cifar10" else 1
    assert x.shape == (7 * num_parts, 3, 32, 32)  # as many as the files hold
    assert (x[8 % len(x)].reshape(-1) == written[8 // 7 if num_parts > 1 else 0][b"data"][8 % 7]).all()
    assert y.tolist() == list(range(7)) * num_parts
    assert load_cifar(tmp_path, name, "test")[0].shape == (7, 3, 32, 32)


def test_python_2_pickles_are_read(tmp_path):
    """The official files were written by Python 2: byte strings with its own opcodes."""
    array = np.arange(12, dtype=np.uint8).reshape(2, 6)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": array, b"name": b"x\xff"}, protocol=2, fix_imports=True))
    content = read_pickle(path)
    assert (content[b"data"] == array).all()
    assert content[b"name"] == b"x\xff"


class Hostile:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize(
    "attack",
    [
        lambda folder: Hostile(os.system, f"touch {folder}/owned"),
        lambda folder: Hostile(eval, f"open('{folder}/owned', 'w')"),
        lambda folder: Hostile(Path.touch, Path(folder) / "owned"),
        lambda folder: Hostile(np.save, f"{folder}/owned", np.zeros(1)),
        lambda _: Hostile(getattr, "text", "upper"),
    ],
    ids=["os.system", "eval", "pathlib", "numpy function", "getattr"],
)
def test_a_hostile_pickle_is_refused(tmp_path, attack, protocol):
    write_cifar(tmp_path, "cifar10")
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(pickle.dumps({b"data": attack(tmp_path), b"labels": []}, protocol=protocol))
    with pytest.raises(ValueError, match=r"data_batch_3 is damaged or not a data file: it asks for"):
        load_cifar(tmp_path, "cifar10", "train")
    assert not list(tmp_path.glob("owned*"))


def test_damaged_cifar_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*cifar-10-batches-py: fedlada data fetch cifar10"):
        load_cifar(tmp_path, "cifar10", "train")
    write_cifar(tmp_path, "cifar10", labels=[0, 1, 2, 3, 4, 5, 10])
    with pytest.raises(ValueError, match=r"data_batch_1 holds labels outside 0..9"):
        load_cifar(tmp_path, "cifar10", "train")
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    for content, sentence in (
        ({b"data": np.zeros((7, 100), np.uint8), b"labels": [0] * 7}, r"7 rows of 3072 bytes, got \(7, 100\)"),
        ({b"data": np.zeros((7, 3072)), b"labels": [0] * 7}, "7 rows of 3072 bytes"),
        ({b"fine_labels": [0]}, "is not a batch of cifar10: it has no labels"),
        ([1, 2], "is not a batch of cifar10"),
        ({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}, "test_batch holds no images"),
        ({b"data": np.zeros((7, 3072), np.uint8), b"labels": 3}, "test_batch should hold one label for each image"),
    ):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(ValueError, match=sentence):
            load_cifar(tmp_path, "cifar10", "test")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="test_batch is damaged or not a data file"):
        load_cifar(tmp_path, "cifar10", "test")


def test_a_missing_batch_is_named(tmp_path):
    write_cifar(tmp_path, "cifar10")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(ValueError, match=r"there is no .*data_batch_4: unpack the official"):
        load_cifar(tmp_path, "cifar10", "train")


def test_data_sets_lie_in_their_own_folder_or_are_it(tmp_path, mnist, monkeypatch):
    write_cifar(tmp_path, "cifar100")
    source = load_dataset("cifar100", tmp_path, augment="authors")
    assert (source.num_classes, source.train.augmentation.padding) == (100, 4)
    assert source.train.mean == (0.5071, 0.4867, 0.4408)  # the authors'
    assert source.train.std == (0.2675, 0.2565, 0.2761)
    assert source.train.augmentation.crop == "half"  # as the authors do
    assert load_dataset("cifar100", tmp_path, augment="crop").train.augmentation.crop == "always"
    assert len(load_dataset("cifar100", tmp_path / "cifar-100-python").train) == len(source.train)
    monkeypatch.chdir(tmp_path / "cifar-100-python")
    assert len(load_dataset("cifar100", ".").train) == len(source.train)
    write_cifar(tmp_path, "cifar10")
    ten = load_dataset("cifar10", tmp_path)
    assert (ten.train.mean, ten.train.std) == ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
    assert (ten.test.mean, ten.test.std) == (ten.train.mean, ten.train.std)
    (tmp_path / "mnist").mkdir()
    for path in mnist[0].glob("*ubyte*"):
        path.rename(tmp_path / "mnist" / path.name)
    assert len(load_dataset("mnist", tmp_path).train) == 60


def test_images_are_normalised_on_the_device():
    x = RANDOM.integers(0, 256, (50, 3, 5, 4), dtype=np.uint8)
    mean, std = channel_statistics(x)
    scaled = x / 255.0
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 2, 3)), rtol=1e-9)
    images = Images(x, np.arange(50) % 4, mean, std)
    samples = images.samples(torch.device("cpu"), torch.float64)
    batch, labels = samples.batch(np.array([3, 7]))
    expected = (scaled[[3, 7]] - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(batch.numpy(), expected, rtol=1e-12, atol=1e-12)
    assert labels.tolist() == [3, 3]
    assert samples.x.dtype == torch.uint8
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 4))
    result = fedlada.simulate(model, images, test=images, method="fedavg", rounds=2)
    assert result.history[-1]["test_accuracy"] > 0


def test_wrong_images_are_refused():
    x, y = np.zeros((5, 3, 2, 2), np.uint8), np.zeros(5, np.int64)
    with pytest.raises(ValueError, match="images must be uint8"):
        Images(x.astype(np.float32), y, (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ValueError, match="with one label each"):
        Images(x, y[:4], (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ValueError, match="one value for each of the 3 channels"):
        Images(x, y, (0.0,), (1.0,))


def test_sources_need_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "npz"):
        with pytest.raises(ValueError, match=f"{name} must be read from files: say where"):
            load_dataset(name)
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100", "tinyimagenet"):
        with pytest.raises(ValueError, match=r"there is no .*\bdata/?.*fedlada data fetch"):
            load_dataset(name)
    with pytest.raises(ValueError, match="dataset must be one of digits"):
        load_dataset("imagenet")
    with pytest.raises(ValueError, match="augment must be one of none, authors, crop"):
        load_dataset("digits", augment="some")
    with pytest.raises(ValueError, match="digits has no images in bytes to augment"):
        load_dataset("digits", augment="crop")
    for size in (0, -3, 2.5, True):
        with pytest.raises(ValueError, match="image_size must be a whole number of at least 1"):
            load_dataset("folder", ".", image_size=size)


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_for_real():
    source = load_dataset("fashion-mnist", DEBIAN)
    assert len(source.train) == 60_000
    assert len(source.test) == 10_000
    assert np.bincount(source.labels("train")).tolist() == [6000] * 10
    assert source.train.mean == pytest.approx((0.2860,), abs=1e-4)
    assert source.train.std == pytest.approx((0.3530,), abs=1e-4)
