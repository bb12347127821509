"""Data sets from the command line, on small copies of the official layouts."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from command_line import fedlada, rows

RANDOM = np.random.default_rng(0)
SMALL = [
    "--num-clients",
    4,
    "--cohort-size",
    2,
    "--local-steps",
    2,
    "--batch-size",
    5,
    "--rounds",
    2,
    "--device",
    "cpu",
]


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """The folders as the official archives unpack, with few images in them."""
    root = tmp_path_factory.mktemp("data")
    for folder, files, key, classes in (
        ("cifar-10-batches-py", [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"], b"labels", 10),
        ("cifar-100-python", ["train", "test"], b"fine_labels", 100),
    ):
        (root / folder).mkdir()
        for file in files:
            content = {b"data": RANDOM.integers(0, 256, (20, 3072), np.uint8), key: [n % classes for n in range(20)]}
            (root / folder / file).write_bytes(pickle.dumps(content, protocol=2))
    tiny = root / "tiny-imagenet-200"
    names = ["n01", "n02"]
    for name in names:
        (tiny / "train" / name / "images").mkdir(parents=True)
        for number in range(10):
            picture(tiny / "train" / name / "images" / f"{name}_{number}.JPEG")
    (tiny / "val" / "images").mkdir(parents=True)
    for number in range(4):
        picture(tiny / "val" / "images" / f"val_{number}.JPEG")
    lines = [f"val_{number}.JPEG\t{names[number % 2]}\t0" for number in range(4)]
    (tiny / "val" / "val_annotations.txt").write_text("\n".join(lines))
    (tiny / "wnids.txt").write_text("n01\nn02\n")
    return root


def picture(path):
    Image.fromarray(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tinyimagenet"])
def test_the_papers_data_sets_train(official, name, tmp_path):
    model = "resnet18-gn" if name == "cifar10" else "lenet-gelu"
    fedlada(
        "run", "--dataset", name, "--model", model, "--data-dir", official, *SMALL,
        "--eval-train-every", 2, "--out", tmp_path / "r",
    )  # fmt: skip
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["augment"], config["concentration"]) == ("authors", 0.6)
    assert config["hyper"]["alpha"] == (0.1 if name == "cifar10" else 0.05)
    first, last = rows(tmp_path / "r")
    assert "full_train_accuracy" not in first
    assert 0 <= last["full_train_accuracy"] <= 1
    assert last["full_train_loss"] != last["train_loss"]


def test_a_folder_and_an_npz_file(tmp_path):
    for name in ("train", "val"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for label in ("a", "b"):
            (tmp_path / "images" / name / label).mkdir()
            for number in range(8):
                picture(tmp_path / "images" / name / label / f"{number}.png")
    fedlada(
        "run", "--dataset", "folder", "--data-dir", tmp_path / "images", "--image-size", 16, "--augment", "crop",
        *SMALL, "--out", tmp_path / "r",
    )  # fmt: skip
    assert len(rows(tmp_path / "r")) == 2
    np.savez(tmp_path / "mine.npz", x=RANDOM.standard_normal((60, 5)), y=np.arange(60) % 3)
    shown = fedlada("data", "show", "npz", "--data-dir", tmp_path / "mine.npz", "--num-clients", 4, "--json")
    assert json.loads(shown.stdout)["train samples"] == 50


def test_text_by_nature(tmp_path):
    fedlada(
        "run", "--dataset", "docstrings", "--local-steps", 2, "--rounds", 1, "--cohorts", "bernoulli", "--cohort-size",
        3, "--out", tmp_path / "r",
    )  # fmt: skip
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["partition"], config["num_clients"], config["model"]) == ("natural", None, "text-transformer")
    wrong = fedlada("data", "show", "digits", "--partition", "natural", code=2)
    assert "digits does not say which client a sample belongs to" in wrong.stderr


def test_fetch(official, tmp_path):
    there = fedlada("data", "fetch", "cifar10", "--data-dir", official)
    assert f"--dataset cifar10 --data-dir {official}" in there.stdout
    wrong = fedlada("data", "fetch", "cifar12", code=2)
    assert "did you mean 'cifar10'?" in wrong.stderr
    # A proxy that nobody listens at stands for a machine without a network.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    offline = fedlada("data", "fetch", "cifar100", "--data-dir", tmp_path, code=1, **nowhere, no_proxy="", NO_PROXY="")
    assert f"put cifar-100-python.tar.gz into {tmp_path} by hand" in offline.stderr
    assert offline.stderr.count("\n") == 1
