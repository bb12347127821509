"""Folders that hold more, less or other than a command asks for: nothing is lost, and no figure is another run's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedlada
from command_line import rows
from fedlada.workbench.report.records import read_runs
from own_module import working_directory

FLAGS = ["--model", "mlp", "--num-clients", "10", "--cohort-size", "2", "--local-epochs", "1", "--device", "cpu"]


def compared(command, folder, *flags):
    said = command(
        "compare", "--methods", "fedavg,fedcm", "--seeds", 0, *FLAGS, *flags, "--jobs", 1, "--json", "--out", folder
    )
    return json.loads(said.out)["methods"]


def test_a_comparison_of_fewer_rounds_is_of_these_rounds(tmp_path, command):
    alone = compared(command, tmp_path / "alone", "--rounds", 2, "--target", 0.3)
    compared(command, tmp_path / "both", "--rounds", 6, "--target", 0.3)
    again = compared(command, tmp_path / "both", "--rounds", 2, "--target", 0.3)
    assert again == alone
    assert len(rows(tmp_path / "both" / "fedavg-seed0")) == 6  # nothing was lost


def test_a_comparison_of_finished_runs_without_checkpoints_trains_nothing(tmp_path, command):
    before = compared(command, tmp_path, "--rounds", 2)
    for folder in tmp_path.glob("*/checkpoints"):
        shutil.rmtree(folder)
    kept = {path: path.read_bytes() for path in tmp_path.glob("*/m*")}
    assert compared(command, tmp_path, "--rounds", 2) == before
    assert {path: path.read_bytes() for path in tmp_path.glob("*/m*")} == kept


def test_a_comparison_of_other_settings_is_refused_before_a_table_is_lost(tmp_path, command):
    folder = tmp_path / "compared"
    compared(command, folder, "--rounds", 2)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    said = command(
        "compare",
        "--methods",
        "fedavg,fedcm",
        "--seeds",
        0,
        *FLAGS,
        "--lr",
        1e-7,
        "--rounds",
        2,
        "--out",
        folder,
        code=2,
    )
    assert "fedavg-seed0 holds another run (lr is " in said.err
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_the_folder_of_several_runs_is_not_that_of_one(tmp_path, command):
    folder = tmp_path / "compared"
    compared(command, folder, "--rounds", 1)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    said = command("run", *FLAGS, "--rounds", 1, "--out", folder, code=2).err
    assert f"{folder} holds results made by `fedlada compare` (tables.json), not a run: choose another folder" in said
    assert f"such as {folder}-run" in said
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_command_says_that_it_replaces_the_tables_of_another(tmp_path, command):
    words = ["compare", "--methods", "fedavg", "--seeds", 0, *FLAGS, "--jobs", 1, "--out", tmp_path]
    asks = "the tables in {} are replaced, which were those of: fedlada {} "
    for rounds, is_said in ((1, False), (1, False), (2, True)):
        said = command(*words, "--rounds", rounds).err
        assert (asks.format(tmp_path, "compare") in said) == is_said
    tuned = ["sweep", "--set", "lr=0.1", "--method", "fedavg", *FLAGS, "--rounds", 1, "--jobs", 1, "--out", tmp_path]
    assert asks.format(tmp_path, "compare") in command(*tuned).err
    assert "are replaced" not in command(*tuned).err


def test_a_comparison_on_held_out_data_is_refused(tmp_path, command):
    said = command("compare", "--validation", 0.1, *FLAGS, "--rounds", 1, "--out", tmp_path / "no", code=2)
    assert "a comparison is on the test set, which --validation leaves out" in said.err
    said = command("run", "--validation", 0.1, "--target", 0.05, *FLAGS, "--rounds", 1, "--out", tmp_path / "run")
    assert "never reached" not in said.out
    stops = ["--validation", 0.1, "--target", 0.0, "--stop-at-target", *FLAGS, "--rounds", 3]
    said = command("run", *stops, "--out", tmp_path / "stops")
    assert "target 0: reached in round 1" in said.out
    assert "reached a validation accuracy of 0." in said.out


def test_a_comparison_is_not_shared_by_processes(tmp_path, command, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = command("compare", *FLAGS, "--rounds", 1, "--out", tmp_path / "no", code=2)
    assert "several runs are not shared by torchrun's processes: start this command without it" in said.err
    assert not (tmp_path / "no").exists()


def swept(command, folder, *flags):
    return command(
        "sweep",
        "--method",
        "fedavg",
        "--set",
        "lr=0.05",
        *FLAGS,
        "--checkpoint-every",
        2,
        "--jobs",
        1,
        *flags,
        "--out",
        folder,
    )


def test_a_run_that_can_go_on_is_not_given_up_for_one_that_cannot(tmp_path, command):
    mine, other = tmp_path / "mine", tmp_path / "other"
    swept(command, mine, "--rounds", 4)
    swept(command, other, "--rounds", 6, "--discard-checkpoints")
    said = swept(command, mine, "--rounds", 8, "--merge", other)
    assert "starts over" not in said.err
    swept(command, tmp_path / "third", "--rounds", 4)
    taken = swept(
        command, tmp_path / "third", "--rounds", 6, "--merge", other, "--only-show"
    )  # has all that is asked for
    assert "not finished" not in taken.err


def test_an_archive_with_the_name_of_a_listing_is_not_overwritten(tmp_path, command):
    swept(command, tmp_path / "swept", "--rounds", 2)
    archive = tmp_path / "packed" / "runs.json"
    command("pack", tmp_path / "swept", "--out", archive)
    before = archive.read_bytes()
    flags = ["--method", "fedavg", "--set", "lr=0.05", *FLAGS, "--rounds", 2, "--merge", archive]
    said = command("sweep", *flags, "--out", archive.parent, code=2)
    assert "is an archive of runs, and would be lost: choose another --out" in said.err
    assert archive.read_bytes() == before
    command("report", tmp_path, "--out", tmp_path / "page.html")  # it is no listing, and no hindrance


def test_pictures_of_an_earlier_command_go(tmp_path, command):
    swept(command, tmp_path, "--rounds", 1, "--set", "weight_decay=0,0.01", "--set", "batch_size=10,20")
    first = {path.name for path in tmp_path.glob("figure-*.png")}
    command(
        "sweep", "--method", "fedavg", "--set", "lr=0.05,0.1", *FLAGS, "--rounds", 1, "--jobs", 1, "--out", tmp_path
    )
    assert {path.name for path in tmp_path.glob("figure-*.png")} < first


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--select", "full_train_accuracy"], "full_train_accuracy is measured with --eval-train-every"),
        (["--eval-every", "0"], "eval_every must be a whole number of at least 1, got 0"),
    ],
)
def test_what_a_sweep_cannot_measure_is_a_sentence(flags, said, tmp_path, command):
    found = command("sweep", "--set", "lr=0.01,0.1", *FLAGS, "--rounds", 3, *flags, "--out", tmp_path / "s", code=2)
    assert said in found.err


def test_evaluate_says_of_which_round_the_model_is(tmp_path, command):
    folder = tmp_path / "run"
    command(
        "run",
        "--method",
        "fedavg",
        *FLAGS,
        "--rounds",
        5,
        "--checkpoint-every",
        2,
        "--keep",
        3,
        "--quiet",
        "--out",
        folder,
    )
    (folder / "model.safetensors").unlink()  # as a run that was killed behind its fourth round
    for name in ("5.json", "5.safetensors"):
        for path in (folder / "checkpoints").glob(f"*{name}"):
            path.unlink()
    history = rows(folder)
    measured = json.loads(command("evaluate", folder, "--json").out)
    assert measured["rounds"] == 4
    assert measured["test"]["accuracy"] == history[3]["test_accuracy"]
    best = json.loads(command("evaluate", folder, "--best", "--json").out)
    assert (
        best["test"]["accuracy"]
        == history[best["rounds"] - 1]["test_accuracy"]
        == max(r["test_accuracy"] for r in history)
    )
    whole = folder / "checkpoints" / "best.safetensors"
    whole.write_bytes(whole.read_bytes()[:20])
    assert "best.safetensors cannot be read" in command("evaluate", folder, "--best", code=2).err


def test_other_data_under_the_same_name_are_other_runs(tmp_path, command):
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        x, y = random.normal(size=(120, 6)).astype(np.float32), random.integers(0, 3, 120)
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    files = {name: ["--dataset", "npz", "--data-dir", tmp_path / f"{name}.npz"] for name in ("a", "b")}
    command("run", *files["a"], *FLAGS, "--rounds", 1, "--out", tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")}
    said = command("run", *files["b"], *FLAGS, "--rounds", 2, "--out", tmp_path / "run", code=2)
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")} == before
    assert "run holds another run (the training data differ): choose another folder\n" in said.err
    (tmp_path / "a.npz").rename(tmp_path / "moved.npz")
    command(
        "run",
        "--dataset",
        "npz",
        "--data-dir",
        tmp_path / "moved.npz",
        *FLAGS,
        "--rounds",
        2,
        "--out",
        tmp_path / "run",
    )
    command("run", *files["b"], *FLAGS, "--rounds", 2, "--out", tmp_path / "other")
    groups = {record.group for record in read_runs([tmp_path / "run", tmp_path / "other"])}
    assert len(groups) == 2


OWN = """
import numpy as np
from torch import nn
from torch.utils.data import Dataset

class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        return self.x[number], self.y[number]

def held():
    return dict(np.load("held.npz"))

def data():
    one = held()
    clients = np.split(np.arange(len(one["x"])), one["cuts"])
    return [(one["x"][own], one["y"][own]) for own in clients], (one["test_x"], one["test_y"])

def datasets():
    one = held()
    return Pairs(one["x"], one["y"]), Pairs(one["test_x"], one["test_y"])

class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.trained = nn.Linear(3, 1)
        self.register_buffer("scale", torch.from_numpy(held()["scale"]))

    def forward(self, x):
        return self.trained(x) * self.scale

def net():
    return Frozen()
""".replace("import numpy as np", "import numpy as np\nimport torch", 1)
REGRESSION = ["--model", "mine:net", "--method", "fedavg", "--lr", 0.05, "--cohort-size", 2, "--device", "cpu"]


@pytest.fixture
def change(tmp_path, monkeypatch):
    """Writes the data of `mine:data`: float targets, of four clients."""
    random = np.random.default_rng(0)
    x, test_x = (random.normal(size=(number, 3)).astype(np.float32) for number in (80, 40))
    held = {"x": x, "y": 2 * x[:, :1], "test_x": test_x, "test_y": 2 * test_x[:, :1]}
    held |= {"cuts": np.asarray([20, 40, 60]), "scale": np.ones(1, np.float32)}

    def write(**changes):
        np.savez("held.npz", **{**held, **{name: edit(held[name]) for name, edit in changes.items()}})

    with working_directory(tmp_path, monkeypatch, "mine", OWN):
        write()
        yield write


def shifted(values):
    return values + np.ones((), values.dtype)


DIFFER = "run holds another run (the training data differ): choose another folder\n"
OTHERS = [
    ({"x": shifted}, DIFFER),
    ({"y": shifted}, DIFFER),
    ({"x": lambda x: x[:70], "y": lambda y: y[:70]}, DIFFER),
    ({"test_x": shifted}, "the test data differ from those of run: give the same, or choose another folder\n"),
    ({"test_y": shifted}, "the test data differ from those of run: give the same, or choose another folder\n"),
    ({"cuts": shifted}, "run holds another run (the partition differs: its clients hold different samples): choose"),
    ({"scale": shifted}, "run holds another run (the frozen parameters or buffers differ): choose another folder\n"),
]
NAMES = ["inputs", "targets", "number", "test inputs", "test targets", "clients", "frozen"]


@pytest.mark.parametrize(("changes", "sentence"), OTHERS, ids=NAMES)
def test_other_data_of_a_users_function_are_refused(changes, sentence, change, command):
    words = ["run", "--data", "mine:data", *REGRESSION, "--out", "run", "--rounds"]
    command(*words, 2)
    before = {path: path.read_bytes() for path in Path("run").glob("*.json*")}
    change(**changes)
    for again in ([*words, 2], [*words, 3], ["resume", "run", "--data", "mine:data", "--model", "mine:net"]):
        assert sentence in command(*again, code=2).err
        assert {path: path.read_bytes() for path in Path("run").glob("*.json*")} == before
    change()
    command("resume", "run", "--data", "mine:data", "--model", "mine:net", "--rounds", 3)
    assert len(rows(Path("run"))) == 3


def test_a_folder_without_digests_goes_on_and_has_them_then(change, command):
    words = ["run", "--data", "mine:datasets", *REGRESSION, "--out", "run", "--rounds"]
    command(*words, 1)
    config = json.loads(Path("run", "config.json").read_text())
    assert config["trained_on"].keys() == {"data", "clients", "not_trained"}
    assert config["evaluated_on"].keys() == {"test"}
    del config["trained_on"], config["evaluated_on"]  # as an earlier version stored it
    Path("run", "config.json").write_text(json.dumps(config))
    change(x=shifted, test_x=shifted)
    command(*words, 2)
    change()
    assert DIFFER in command(*words, 3, code=2).err
    assert fedlada.load_run("run", trust=True).experiment.rounds == 2


def test_samples_that_a_run_does_not_see_may_change(change, command):
    words = ["run", "--data", "mine:data", *REGRESSION, "--validation", 0.2, "--out", "run", "--rounds"]
    command(*words, 1)
    change(test_x=shifted)  # with held-out data the test set is not evaluated
    command(*words, 2)
    change(x=shifted)
    assert DIFFER in command(*words, 3, code=2).err


def test_a_comparison_of_other_data_is_refused_before_a_table_is_lost(change, command):
    words = ["compare", "--data", "mine:data", *REGRESSION[:2], *REGRESSION[4:], "--methods", "fedavg,fedcm"]
    words += ["--seeds", "0,1", "--jobs", 1, "--rounds", 2, "--out", "run"]
    said = command(*words)
    assert "loaded" not in said.err
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    change(x=shifted)
    assert f"run/fedavg-seed0{DIFFER[3:]}" in command(*words, code=2).err
    change(test_y=shifted)
    assert "the test data differ from those of run/fedavg-seed0: give the same" in command(*words, code=2).err
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    change()
    words[words.index("fedavg,fedcm")] = "fedavg,fedlada"
    assert "fedlada: loaded, not trained: fedavg, seed 0; fedavg, seed 1\n" in command(*words).err
    assert "fedlada: all 4 runs were loaded from run, none was trained\n" in command(*words).err
