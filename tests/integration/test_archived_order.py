"""The official CIFAR files in the order of the archived runs."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlada.data.cifar import FILES, LABELS, load_cifar

NAMES = ("cifar10", "cifar100")
META = {"cifar10": "batches.meta", "cifar100": "meta"}


def write_official(folder, name, seed, *, with_names=True):
    """Ten images a file, each with its own file name; two classes share one. The seed decides their order."""
    inside, splits = FILES[name]
    (folder / inside).mkdir(parents=True)
    for split, files in splits.items():
        num = 10 * len(files)
        pixels = np.random.default_rng(len(split)).integers(0, 256, (num, 3072), np.uint8)
        order = np.random.default_rng(seed).permutation(num)
        for number, file in enumerate(files):
            own = order[10 * number : 10 * (number + 1)]
            content = {
                b"data": pixels[own],
                LABELS[name][0]: [int(one % 3) for one in own],
                b"filenames": [f"image_s_{one // 2:06d}_{one % 2}.png".encode() for one in own],
            }
            if not with_names:
                del content[b"filenames"]
            (folder / inside / file).write_bytes(pickle.dumps(content, protocol=2))
    (folder / inside / META[name]).write_bytes(b"names")


@pytest.fixture
def archived_order(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("archived_order")


@pytest.fixture
def run(archived_order, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["archived_order.py", *map(str, arguments)])
        archived_order.main()

    return run


@pytest.fixture
def known(archived_order, monkeypatch, tmp_path):
    """Digests of the images that `write_official` makes, in their archived order."""
    digests = {}
    for name in NAMES:
        write_official(tmp_path / "one", name, seed=0)
        for split in ("train", "test"):
            digests[name, split] = archived_order.digest(archived_order.ordered(tmp_path / "one", name, split), name)
    monkeypatch.setattr(archived_order, "DIGESTS", digests)


@pytest.mark.usefixtures("known")
def test_any_order_becomes_the_archived_one(run, tmp_path, capsys):
    for name in NAMES:
        write_official(tmp_path / "other", name, seed=1)
    run(tmp_path / "one", tmp_path / "a")
    run(tmp_path / "other", tmp_path / "b")
    for name in NAMES:
        for split in ("train", "test"):
            before = [load_cifar(tmp_path / folder, name, split) for folder in ("one", "other")]
            assert not np.array_equal(before[0][0], before[1][0])
            (pixels, labels), (others, same) = (load_cifar(tmp_path / folder, name, split) for folder in "ab")
            assert np.array_equal(pixels, others)
            assert np.array_equal(labels, same)
            in_order = np.sort(before[0][0].reshape(len(pixels), -1), axis=0)
            assert np.array_equal(np.sort(pixels.reshape(len(pixels), -1), axis=0), in_order)
        assert (tmp_path / "a" / FILES[name][0] / META[name]).read_bytes() == b"names"
    assert "wrote" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["cifar-10-batches-py", "cifar-100-python"]
    with pytest.raises(SystemExit, match="exists already"):
        run(tmp_path / "one", tmp_path / "a")


@pytest.mark.usefixtures("known")
def test_the_order_is_the_documented_one(archived_order, tmp_path):
    found = archived_order.ordered(tmp_path / "one", "cifar10", "test")
    names = sorted((one % 3, f"image_s_{one // 2:06d}_{one % 2}.png".encode()) for one in range(10))
    expected = [names[place] for place in np.random.RandomState(0).permutation(10)]
    assert list(zip(found[b"labels"].tolist(), found[b"filenames"].tolist(), strict=True)) == expected


def test_other_images_are_refused_and_nothing_is_written(run, tmp_path):
    write_official(tmp_path / "data", "cifar10", seed=0)
    with pytest.raises(SystemExit, match=r"the train images of cifar10 in .* are not those of the archived runs"):
        run(tmp_path / "data", tmp_path / "out")
    write_official(tmp_path / "nameless", "cifar100", seed=0, with_names=False)
    with pytest.raises(SystemExit, match="train lacks images, labels or file names"):
        run(tmp_path / "nameless", tmp_path / "out")
    short = tmp_path / "nameless" / "cifar-100-python" / "train"
    short.write_bytes(
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": 3, b"filenames": ["a", "b"]})
    )
    with pytest.raises(SystemExit, match="train lacks images, labels or file names"):
        run(tmp_path / "nameless", tmp_path / "out")
    short.write_bytes(pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 1], b"filenames": []}))
    with pytest.raises(SystemExit, match="has not as many labels and file names as images"):
        run(tmp_path / "nameless", tmp_path / "out")
    with pytest.raises(SystemExit, match="has neither cifar-10-batches-py nor cifar-100-python"):
        run(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
