"""Data sets from the command line, on small copies of the official layouts."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from command_line import fedlada, rows
from fedlada.data.sources import DATASETS
from fedlada.workbench.cli import fedlada as command_line
from fedlada.workbench.load import load_run
from fedlada.workbench.presets import preset
from plays_by_hand import write_plays

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


def test_published_data_are_looked_for_where_they_are_fetched_to(official, tmp_path):
    (tmp_path / "data").symlink_to(official)
    fedlada("run", "--dataset", "cifar100", "--model", "lenet-gelu", *SMALL, "--out", "r", cwd=tmp_path)
    assert len(rows(tmp_path / "r")) == 2


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tinyimagenet"])
def test_the_papers_data_sets_train(official, name, tmp_path):
    one_step = ["--model", "resnet18-gn", "--cohort-size", 1, "--local-steps", 1]
    flags = [*SMALL, *(one_step if name == "cifar10" else ["--model", "lenet-gelu"])]
    fedlada("run", "--dataset", name, "--data-dir", official, *flags, "--eval-train-every", 2, "--out", tmp_path / "r")
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["augment"], config["concentration"]) == ("authors", 0.6)
    suited = preset(name, "fedlada")
    assert config["lr"] == suited["lr"]
    assert {one: config["hyper"][one] for one in suited["hyper"]} == suited["hyper"]
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


@pytest.fixture(scope="module")
def on_folder(tmp_path_factory):
    """A run on images of two classes that were brought to 8x8, trained with augmentation."""
    root = tmp_path_factory.mktemp("own")
    for split in ("train", "test"):
        for label in ("a", "b"):
            (root / "images" / split / label).mkdir(parents=True)
            for number in range(6):
                picture(root / "images" / split / label / f"{number}.png")
    fedlada(
        "run", "--dataset", "folder", "--data-dir", root / "images", "--image-size", 8, "--augment", "crop",
        "--model", "mlp", *SMALL, "--out", root / "r",
    )  # fmt: skip
    return root


def write_npz(path, shape=(3, 8, 8), classes=2):
    x = RANDOM.integers(0, 256, (60, *shape)).astype(np.uint8)
    np.savez(path, x=x, y=np.arange(60) % classes)
    return path


def test_evaluate_on_other_data(on_folder, tmp_path):
    """The given folder is the other data's alone, and neither size nor augmentation of the run's own are theirs."""
    ours = json.loads(fedlada("evaluate", on_folder / "r", "--json").stdout)
    assert ours["test"]["accuracy"] == rows(on_folder / "r")[-1]["test_accuracy"]
    (on_folder / "images").rename(on_folder / "moved")
    try:
        moved = fedlada("evaluate", on_folder / "r", "--data-dir", on_folder / "moved", "--json")
        assert json.loads(moved.stdout) == ours
    finally:
        (on_folder / "moved").rename(on_folder / "images")
    fitting = write_npz(tmp_path / "fits.npz")
    assert set(ours["per_class"]) == {"a", "b"}
    assert "class a" in fedlada("evaluate", on_folder / "r").stdout
    other = json.loads(fedlada("evaluate", on_folder / "r", "--dataset", "npz", "--data-dir", fitting, "--json").stdout)
    assert set(other["per_class"]) == {"0", "1"}
    floats = tmp_path / "floats.npz"  # not images in bytes: augmenting them would be refused
    np.savez(floats, x=RANDOM.standard_normal((60, 3, 8, 8)), y=np.arange(60) % 2)
    fedlada("evaluate", on_folder / "r", "--dataset", "npz", "--data-dir", floats)


def test_a_stored_run_is_evaluated_on_its_own_test_set(on_folder):
    shown = json.loads(fedlada("evaluate", on_folder / "r", "--json").stdout)["test"]
    run = load_run(on_folder / "r")
    assert run.evaluate() == pytest.approx(shown)
    bytes = run.experiment.load_data().test
    assert run.evaluate((bytes.x, bytes.y)) == run.evaluate()


def test_evaluate_says_that_a_folder_has_other_classes_now(on_folder):
    (on_folder / "images" / "test" / "a").rename(on_folder / "images" / "test" / "c")
    (on_folder / "images" / "train" / "a").rename(on_folder / "images" / "train" / "c")
    try:
        wrong = fedlada("evaluate", on_folder / "r", code=2)
        with pytest.raises(ValueError, match="trained on the classes a, b, but the data have b, c"):
            load_run(on_folder / "r").evaluate()
    finally:
        (on_folder / "images" / "test" / "c").rename(on_folder / "images" / "test" / "a")
        (on_folder / "images" / "train" / "c").rename(on_folder / "images" / "train" / "a")
    assert (
        "was trained on the classes a, b, but the data have b, c: give those that it was trained on, as "
        "evaluate(data) or with --data-dir" in wrong.stderr
    )


def test_clients_and_classes_are_called_by_their_names(on_folder, tmp_path):
    owner = np.array(["zoe", "anna", "bob"])[np.arange(60) % 3]
    np.savez(tmp_path / "mine.npz", x=RANDOM.standard_normal((60, 5)), y=np.arange(60) % 2, client=owner)
    where = ["--data-dir", tmp_path / "mine.npz"]
    assert "3: anna, bob, zoe" in fedlada("data", "show", "npz", *where).stdout
    shown = json.loads(fedlada("data", "show", "npz", *where, "--json").stdout)
    assert (shown["clients"], shown["client names"]) == (3, ["anna", "bob", "zoe"])
    run = ["run", "--dataset", "npz", *where, "--rounds", 1, "--device", "cpu"]
    assert "1 round of 3 of 3 clients (named by the data)" in fedlada(*run, "--out", tmp_path / "r").stderr
    report = json.loads(fedlada("evaluate", tmp_path / "r", "--json").stdout)
    assert set(report["per_client"]) == {"anna", "bob", "zoe"}
    assert f"worst client ({report['worst_client']['client']})" in fedlada("evaluate", tmp_path / "r").stdout
    assert json.loads((tmp_path / "r" / "clients.json").read_text())["client_names"] == ["anna", "bob", "zoe"]
    images = ["--data-dir", on_folder / "images", "--image-size", 8]
    assert "2: a, b" in fedlada("data", "show", "folder", *images).stdout
    np.savez(tmp_path / "numbers.npz", x=RANDOM.standard_normal((60, 5)), y=RANDOM.standard_normal(60))
    where = ["--data-dir", tmp_path / "numbers.npz", "--partition", "iid"]
    numbers = fedlada("data", "show", "npz", *where, "--out", tmp_path / "numbers.png").stdout
    assert "targets" in numbers
    assert "classes per client" not in numbers


@pytest.mark.parametrize(
    ("y", "what", "others"),
    [
        (RANDOM.standard_normal((60, 2)), "loss", {"mae", "rmse"}),
        (RANDOM.integers(0, 2, (60, 3)), "accuracy", {"loss", "exact_match"}),
    ],
    ids=["numbers", "labels"],
)
def test_evaluate_measures_what_is_predicted(tmp_path, y, what, others):
    """Also client by client, on what each holds out, as the run itself did."""
    x = np.random.default_rng(0).standard_normal((60, 5))  # the same whichever tests ran before
    np.savez(tmp_path / "a.npz", x=x, y=y, client=np.array(["b", "a"])[np.arange(60) % 2])
    where = ["--dataset", "npz", "--data-dir", tmp_path / "a.npz", "--device", "cpu", "--out", tmp_path / "r"]
    fedlada("run", *where, "--rounds", 2, "--client-test", 0.3, "--personal-steps", 2, "--eval-train-every", 2)
    report, last = json.loads(fedlada("evaluate", tmp_path / "r", "--json").stdout), rows(tmp_path / "r")[-1]
    assert set(report["test"]) == set(report["train"]) == {what, *others}
    assert report["test"]["loss"] == pytest.approx(last["test_loss"])
    assert report["train"]["loss"] == pytest.approx(last["full_train_loss"])  # nobody's held-out samples
    values = report["per_client"]
    assert np.mean(list(values.values())) == pytest.approx(last[f"client_{what}"])
    worst = (max if what == "loss" else min)(values, key=values.get)
    assert report["worst_client"] == {"client": worst, what: values[worst], "samples": 8}
    assert set(report["after_own_steps"]["per_client"]) == {"a", "b"}
    if what == "loss":
        assert report["test"]["rmse"] == pytest.approx(report["test"]["loss"] ** 0.5)
        assert report["test"]["mae"] < report["test"]["rmse"]
    shown = fedlada("evaluate", tmp_path / "r").stdout
    assert f"worst client ({worst})" in shown
    assert all(f"{name} {report['test'][name]:.4f}" in shown for name in others)
    worst_tenth = f"{last[f'client_{what}_worst_decile']:.4f}"
    assert any("held-out samples, worst decile" in line and worst_tenth in line for line in shown.splitlines())


@pytest.mark.parametrize(
    ("shape", "classes", "sentence"),
    [
        ((3, 8, 8), 5, "trained on folder, knows 2 classes, but npz has 5"),
        ((3, 9, 8), 2, "trained on folder, does not take the inputs of npz (3x9x8): mat1 and mat2"),
    ],
)
def test_evaluate_on_data_that_do_not_fit(on_folder, tmp_path, shape, classes, sentence):
    path = write_npz(tmp_path / "other.npz", shape, classes)
    wrong = fedlada("evaluate", on_folder / "r", "--dataset", "npz", "--data-dir", path, code=2)
    assert sentence in wrong.stderr
    assert wrong.stderr.count("\n") == 1


def test_evaluate_reads_the_data_once(on_folder, monkeypatch):
    reads = []
    load_folder = DATASETS["folder"]
    monkeypatch.setitem(DATASETS, "folder", lambda reading: reads.append(reading) or load_folder(reading))
    done = CliRunner().invoke(command_line, ["evaluate", str(on_folder / "r"), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert [(one.augment, one.image_size) for one in reads] == [("none", 8)]


def test_text_by_nature(tmp_path):
    fedlada(
        "run", "--dataset", "docstrings", "--local-steps", 2, "--rounds", 1, "--cohorts", "bernoulli", "--cohort-size",
        3, "--out", tmp_path / "r",
    )  # fmt: skip
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["partition"], config["num_clients"], config["model"]) == ("natural", None, "text-transformer")
    wrong = fedlada("data", "show", "digits", "--partition", "natural", code=2)
    assert "digits does not say which client a sample belongs to" in wrong.stderr


@pytest.mark.parametrize(("model", "engine"), [("char-lstm", "stacked"), ("char-transformer", "sequential")])
def test_plays(tmp_path, model, engine):
    few = ["--local-steps", 1, "--batch-size", 4, "--rounds", 1, "--cohort-size", 2, "--device", "cpu"]
    few += ["--engine", engine, "--validation", 0.2, "--model", model, "--out", tmp_path / "r"]
    fedlada("run", "--dataset", "shakespeare", "--data-dir", write_plays(tmp_path / "data"), *few)
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["partition"], config["num_clients"], config["local_epochs"]) == ("natural", None, 1)
    assert "hamlet: Anna" in (tmp_path / "r" / "clients.json").read_text()
    assert rows(tmp_path / "r")[0]["validation_loss"] > 3
    (plays,) = (tmp_path / "data").rglob("playshakespeare_editions")
    (plays / "ps_hamlet.xml").write_text("<play>")
    wrong = fedlada("data", "show", "shakespeare", "--data-dir", tmp_path / "data", code=2)
    assert "ps_hamlet.xml is damaged or no XML" in wrong.stderr
    assert wrong.stderr.count("\n") == 1


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
