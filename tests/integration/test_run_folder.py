"""A run's folder when things go wrong: damage, strangers, full disks."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fedlada as library
from command_line import COMMAND, ENVIRONMENT, fedlada, rows
from fedlada import recipes, schedules
from fedlada.methods.state import named_tensors
from fedlada.runs import Checkpoint, Checkpoints, DamagedCheckpoint, RunFolder
from fedlada.runs.config import describe, describe_schedule, first_difference
from fedlada.workbench.experiment import Experiment
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

QUICK = ["--model", "mlp", "--local-steps", "2", "--num-clients", "8", "--cohort-size", "2", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of six rounds and one of eight, which nobody touches."""
    folders = {rounds: tmp_path_factory.mktemp("made") / str(rounds) for rounds in (6, 8)}
    for rounds, folder in folders.items():
        fedlada("run", "--method", "scaffold", *QUICK, "--rounds", rounds, "--out", folder, "--quiet")
    return folders


@pytest.fixture
def six_rounds(made, tmp_path):
    """A copy, in which anything can go wrong."""
    return shutil.copytree(made[6], tmp_path / "run")


@pytest.fixture
def resumed_equals_whole(made):
    def check(folder):
        done = fedlada("resume", folder, "--rounds", 8, "--quiet")
        assert rows(folder) == rows(made[8])
        return done

    return check


def test_the_last_two_checkpoints_and_the_best_are_kept(six_rounds):
    checkpoints = six_rounds / "checkpoints"
    assert sorted(path.name for path in checkpoints.glob("*.json")) == ["round-000004.json", "round-000006.json"]
    manifest = json.loads((checkpoints / "round-000006.json").read_text())
    other = json.loads((checkpoints / "round-000004.json").read_text())
    on_disk = {path.name for path in checkpoints.glob("*.safetensors")}
    assert on_disk == {"best.safetensors", *manifest["sha256"], *other["sha256"]}
    assert {path.suffix for path in six_rounds.rglob("*") if path.is_file() and path.name != ".lock"} == {
        ".json",
        ".jsonl",
        ".safetensors",
    }


def test_resuming_a_finished_run_changes_nothing(six_rounds):
    before = {path: path.read_bytes() for path in six_rounds.rglob("*") if path.suffix in (".json", ".safetensors")}
    lines = rows(six_rounds)
    done = fedlada("resume", six_rounds)
    assert "all 6 rounds were run" in done.stdout
    assert rows(six_rounds) == lines
    assert before == {path: path.read_bytes() for path in before}


def test_fewer_rounds_than_planned_are_refused_with_the_way_out(six_rounds):
    done = fedlada("resume", six_rounds, "--rounds", 4, code=2)
    assert f"{six_rounds} was to have 6 rounds, more than --rounds 4: leave --rounds out" in done.stderr
    assert json.loads((six_rounds / "config.json").read_text())["rounds"] == 6
    assert len(rows(six_rounds)) == 6


def test_a_run_says_after_which_round_it_goes_on(six_rounds):
    assert "fedlada: resuming after round 6 of 7\n" in fedlada("resume", six_rounds, "--rounds", 7).stderr


def test_every_file_is_for_those_whom_the_umask_lets_read(six_rounds):
    usual = (six_rounds / "config.json").stat().st_mode
    assert {path.stat().st_mode for path in six_rounds.rglob("*.safetensors")} == {usual}


def test_resuming_goes_on_further(six_rounds, resumed_equals_whole):
    resumed_equals_whole(six_rounds)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("round-000006.json", lambda data: data[: len(data) // 2]),
        ("round-000006.json", lambda _: b""),
        ("round-000006.json", lambda _: b"[]"),
        ("round-000006.safetensors", lambda data: data[:-7]),
        ("round-000006.safetensors", lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:]),
        ("round-000006.safetensors", lambda _: None),
    ],
    ids=["half a manifest", "empty manifest", "another manifest", "cut", "one bit", "missing"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(six_rounds, resumed_equals_whole, name, damage):
    path = six_rounds / "checkpoints" / name
    data = damage(path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)
    done = resumed_equals_whole(six_rounds)
    assert name in done.stderr
    assert "the checkpoint before it is used" in done.stderr


def test_when_all_checkpoints_are_damaged_the_run_starts_again(six_rounds, resumed_equals_whole):
    for path in (six_rounds / "checkpoints").glob("round-*.safetensors"):
        path.write_bytes(b"")
    done = resumed_equals_whole(six_rounds)
    assert done.stderr.count("the checkpoint before it is used") == 2


def test_a_damaged_model_is_called_that(six_rounds, command):
    final = six_rounds / "model.safetensors"
    final.write_bytes(final.read_bytes()[:5])
    said = command("evaluate", six_rounds, code=2).err
    assert said.startswith(f"fedlada: {final} is damaged, or cannot be read (")
    assert said.endswith("; without it the newest checkpoint is read: move it away\n")
    final.unlink()
    assert "after 6 rounds" in command("evaluate", six_rounds).out
    final.mkdir()  # as unreadable as a file without permission, which root does not know
    assert f"{final} is damaged, or cannot be read (" in command("evaluate", six_rounds, code=2).err


def test_a_file_that_cannot_be_opened_is_a_sentence(six_rounds, command):
    path = six_rounds / "metrics.jsonl"
    path.unlink()
    path.mkdir()
    for words in (["evaluate", six_rounds], ["report", six_rounds], ["resume", six_rounds, "--rounds", 8, "--quiet"]):
        assert command(*words, code=2).err == f"fedlada: {path} cannot be read or written: Is a directory\n"


def test_a_run_that_diverged_at_once_has_no_model_and_says_why(tmp_path, command):
    diverging = ["--method", "fedavg", *QUICK, "--clip-norm", "none"]
    command("run", *diverging, "--lr", 1e30, "--rounds", 2, "--out", tmp_path / "run", "--quiet", code=1)
    said = command("evaluate", tmp_path / "run", code=2).err
    assert f"{tmp_path / 'run'} has no round yet: the run was stopped in round 1, or it diverged there" in said
    sweep = ["sweep", "--set", "lr=1e30", *diverging, "--rounds", 2, "--jobs", 1, "--quiet"]
    command(*sweep, "--out", tmp_path / "s", code=1)
    (folder,) = (path.parent for path in tmp_path.glob("s/runs/*/diverged.json"))
    said = command("evaluate", folder, code=2).err
    assert f"{folder} has no model, as the run diverged: round 1: " in said


def test_lost_metrics_are_noticed(six_rounds, resumed_equals_whole):
    path = six_rounds / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]) + '{"round": 6, "lr"')
    done = resumed_equals_whole(six_rounds)
    assert "has no line for round 6" in done.stderr


def test_rounds_by_another_engine_are_said(tmp_path, capsys):
    def run(rounds, engine):
        library.simulate(small_net, blobs(), method="fedavg", rounds=rounds, engine=engine, out=tmp_path / "run")

    run(1, "sequential")
    run(2, "sequential")
    assert capsys.readouterr().err == ""
    run(3, "stacked")
    assert "by the engine 'sequential' and the next ones are by 'stacked': they agree" in capsys.readouterr().err


def test_another_run_is_not_overwritten(six_rounds):
    before = rows(six_rounds)
    done = fedlada("run", "--method", "fedavg", *QUICK, "--rounds", 6, "--out", six_rounds, code=2)
    assert "holds another run (method is 'scaffold' there and 'fedavg' here)" in done.stderr
    assert rows(six_rounds) == before


def test_another_hyper_parameter_is_another_run(tmp_path):
    first = ("run", "--method", "fedlada", *QUICK, "--rounds", 1, "--out", tmp_path / "r")
    fedlada(*first)
    assert "(power is 0.5 there and 0.25 here)" in fedlada(*first, "--power", 0.25, code=2).stderr
    path = tmp_path / "r" / "config.json"
    config = json.loads(path.read_text())
    del config["hyper"]["power"]  # as a run was stored before every value was named
    path.write_text(json.dumps(config))
    for command in (first, ("resume", tmp_path / "r")):
        assert "the configuration does not name power: add its value" in fedlada(*command, code=2).stderr


def test_a_configuration_from_a_newer_version_is_refused(six_rounds):
    path = six_rounds / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "format": 99, "fedlada": "9.0"}))
    done = fedlada("resume", six_rounds, code=2)
    assert "was written by fedlada 9.0, newer than this one: upgrade" in done.stderr
    path.write_text(json.dumps({**config, "colour": "red"}))
    assert "unknown field 'colour'" in fedlada("resume", six_rounds, code=2).stderr
    path.write_text(json.dumps({**config, "method": []}))
    assert "method must be of type str, got []" in fedlada("resume", six_rounds, code=2).stderr
    fedlada("report", six_rounds, "--out", six_rounds / "page.html")  # which is shown as far as it can be read
    assert f"fedlada run --config {path}" in (six_rounds / "page.html").read_text()
    path.write_text("{")
    assert "config.json cannot be read" in fedlada("resume", six_rounds, code=2).stderr


HOLD = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_never_write_one_folder(six_rounds):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(six_rounds / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        done = fedlada("resume", six_rounds, "--rounds", 8, code=2)
        assert "another process is writing the run folder" in done.stderr
        holder.stdin.close()
    fedlada("resume", six_rounds, "--rounds", 8, "--quiet")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = fedlada("run", *QUICK, "--rounds", 1, "--out", tmp_path / "file" / "run", code=2)
    assert re_sentence(done.stderr).startswith("fedlada: the run folder")
    assert "cannot be written: Not a directory" in done.stderr


@pytest.mark.parametrize("words", [["run"], ["compare", "--seeds", 0], ["sweep", "--set", "lr=0.1"], ["pack", "."]])
def test_a_name_that_is_too_long_is_a_sentence(tmp_path, words, command):
    flags = [] if words[0] == "pack" else [*QUICK, "--rounds", 1]
    said = command(*words, *flags, "--out", tmp_path / ("a" * 300), code=2)
    assert re_sentence(said.err).startswith(f"fedlada: {tmp_path}/aaa")
    assert re_sentence(said.err).endswith(" has a name that is too long for the disk: choose a shorter one")


def re_sentence(text):
    return text.splitlines()[-1]


def test_a_disk_that_fills_up_loses_nothing(tmp_path, resumed_equals_whole):
    """A limit on the size of files stands for the full disk: checkpoints no longer fit, the run ends in a sentence."""
    folder = tmp_path / "run"
    run = on_a_small_disk(15_000, "run", "--method", "scaffold", *QUICK, "--rounds", "8", "--out", folder, "--quiet")
    assert run.returncode == 1
    assert "cannot be written (" in run.stderr
    assert "File too large" in run.stderr
    assert run.stderr.count("\n") == 1
    assert not list(folder.rglob("*.part"))
    resumed_equals_whole(folder)


def on_a_small_disk(size, *arguments):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )


def test_a_full_disk_leaves_the_tables_of_a_comparison_whole(tmp_path):
    asked = ["compare", "--methods", "fedavg", *QUICK, "--rounds", "1", "--jobs", "1", "--out", tmp_path, "--quiet"]
    fedlada(*asked, "--seeds", "0,1")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    said = on_a_small_disk(100, *asked, "--seeds", "0")
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert f"{tmp_path}/table.md cannot be written (File too large)" in said.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


# ---- from Python ----------------------------------------------------------------------------------------------


def simulate(folder, rounds, **changes):
    x, y = blobs()
    values = {"method": recipes.scaffold(), "partition": UNEQUAL, "cohort_size": 2, "lr": 0.05, "test": (x, y)}
    return library.simulate(small_net(), (x, y), rounds=rounds, out=folder, checkpoint_every=2, **{**values, **changes})


def same_bits(first, second):
    pairs = zip(named_tensors(first), named_tensors(second), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs)


@pytest.mark.parametrize("name", METHODS)
def test_python_runs_resume_too(name, tmp_path):
    method = METHODS[name].method()
    simulate(tmp_path / "a", 3, method=method)
    resumed = simulate(tmp_path / "a", 7, method=method)
    whole = simulate(tmp_path / "b", 7, method=method)
    assert same_bits(resumed.server, whole.server)
    assert len(resumed.history) == 7
    assert resumed.history["train_loss"] == whole.history["train_loss"]
    loaded = library.load_run(tmp_path / "a", small_net(seed=5))
    for ours, theirs in zip(loaded.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_python_runs_refuse_another_run(tmp_path):
    simulate(tmp_path, 2)
    for changes, word in ({"seed": 3}, "seed"), ({"lr": 0.1}, "schedule"), ({"method": recipes.fedavg()}, "method"):
        with pytest.raises(ValueError, match=f"holds another run \\({word}"):
            simulate(tmp_path, 3, **changes)
    with pytest.raises(ValueError, match="give load_run the model"):
        library.load_run(tmp_path)
    done = fedlada("resume", tmp_path, code=2)
    assert "was made from Python: call simulate with the same arguments" in done.stderr
    done = fedlada("run", "--out", tmp_path, code=2)
    assert done.stderr == f"fedlada: {tmp_path} was made from Python: choose another folder\n"
    with pytest.raises(ValueError, match="was made from Python: choose another folder"):
        Experiment(rounds=2, device="cpu").run(out=tmp_path)


def test_a_folder_of_a_federation_is_called_that(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"engine": "flower", "method": "fedavg"}))
    assert "was made by a federation: start it with the same arguments" in fedlada("resume", tmp_path, code=2).stderr
    assert "was made by a federation: choose another" in fedlada("run", "--out", tmp_path, code=2).stderr
    with pytest.raises(ValueError, match="was made by a federation: give load_run the model"):
        library.load_run(tmp_path)


def test_a_schedule_is_known_by_its_values_not_by_its_place_in_memory(tmp_path):
    def rates():
        return schedules.WarmUp(lambda _: 0.05, 3)

    simulate(tmp_path, 2, lr=rates())
    assert len(simulate(tmp_path, 4, lr=rates()).history) == 4
    with pytest.raises(ValueError, match=r"schedule is 'WarmUp\(schedule=\S+, num_rounds=3\)' there"):
        simulate(tmp_path, 5, lr=schedules.WarmUp(lambda _: 0.05, 2))
    assert describe_schedule(schedules.Exponential(0.1, 0.5)) == repr(schedules.Exponential(0.1, 0.5))
    inner = [describe_schedule(schedules.WarmUp(schedules.Cosine(0.1, rounds), 3)) for rounds in (4, 40)]
    assert inner == [f"WarmUp(schedule=Cosine(lr=0.1, num_rounds={n}, final=0.0), num_rounds=3)" for n in (4, 40)]


def test_where_two_configurations_differ():
    stored = {"method": "fedavg", "lr": 0.1, "hyper": {"power": 0.5}, "rounds": 4}
    assert first_difference(stored, {**stored, "rounds": 9}) == ""
    assert (
        first_difference(stored, {**stored, "lr": 0.2, "method": "fedcm"})
        == "method is 'fedavg' there and 'fedcm' here"
    )
    assert first_difference(stored, {**stored, "hyper": {"power": 0.25}}) == "power is 0.5 there and 0.25 here"
    for one, other, words in (
        (stored, {**stored, "seed": 3}, "at its default there and 3 here"),
        ({**stored, "seed": 3}, stored, "3 there and at its default here"),
    ):
        assert first_difference(one, other) == f"seed is {words}"


def test_the_same_samples_cut_otherwise_are_other_clients():
    described = []

    def look(simulation, _row):
        described.append(describe(simulation))

    for cuts in ((40, 70), (40, 71)):
        parts = [range(start, end) for start, end in zip((0, *cuts), (*cuts, 120), strict=True)]
        simulate(None, 1, partition=library.data.Given(indices=parts), callbacks=[look])
    assert {name for name, value in described[0].items() if value != described[1][name]} == {"clients"}


@pytest.mark.parametrize(("lr", "ends_with_a_tie"), [(0.5, False), (1.0, True)])
def test_the_best_model_is_that_of_the_first_best_round(lr, ends_with_a_tie, tmp_path):
    """Also where the run went on after it, and where the best round came after a checkpoint."""
    models = []

    def look(simulation, _row):
        models.append(simulation.server.params)

    for rounds in (3, 5, 8):
        result = simulate(tmp_path, rounds, callbacks=[look], lr=lr)
        accuracies = result.history["test_accuracy"]
        with safe_open(tmp_path / "checkpoints" / "best.safetensors", "pt") as best:
            expected = accuracies.index(max(accuracies))
            assert int(best.metadata()["round"]) == expected + 1
            assert torch.equal(best.get_tensor("params"), models[expected])
    assert ends_with_a_tie == (accuracies.count(max(accuracies)) > 1)


def test_rounds_behind_the_checkpoint_are_run_again_and_have_one_line(tmp_path):
    whole = simulate(tmp_path / "whole", 7)
    simulate(tmp_path / "run", 5)
    (tmp_path / "run" / "checkpoints" / "round-000005.json").unlink()  # as a run that was killed in its sixth round
    resumed = simulate(tmp_path / "run", 7)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in lines] == [row["round"] for row in resumed.history] == list(range(1, 8))
    assert [row["train_loss"] for row in lines] == resumed.history["train_loss"] == whole.history["train_loss"]
    assert same_bits(resumed.server, whole.server)


def test_an_error_in_a_callback_saves_the_rounds_before_it(tmp_path):
    def fail(_, row):
        if row["round"] == 5:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        simulate(tmp_path / "a", 8, callbacks=[fail])
    assert Checkpoints(tmp_path / "a" / "checkpoints").rounds()[0] == 5
    assert same_bits(simulate(tmp_path / "a", 8).server, simulate(tmp_path / "b", 8).server)


def test_an_error_in_a_callback_loses_neither_the_best_model_nor_the_clients_metrics(tmp_path):
    scores = {1: 0.1, 2: 0.2, 3: 0.9, 4: 0.3, 5: 0.4}

    class Fails(library.Observer):
        round, fails = 0, True

        def on_start(self, simulation, _):
            self.round = simulation.round

        def on_round(self, _, row):
            self.round = row["round"]
            if self.round == 3 and self.fails:
                self.fails = False
                raise KeyError("mine")

    fails = Fails()
    settings = {"metrics": {"score": lambda *_: scores[fails.round + 1]}, "best": "test_score", "client_test": 0.2}
    with pytest.raises(KeyError, match="mine"):
        simulate(tmp_path, 5, callbacks=[fails], **settings)
    simulate(tmp_path, 5, callbacks=[fails], **settings)
    lines = (tmp_path / "client_metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5]
    with safe_open(tmp_path / "checkpoints" / "best.safetensors", "pt") as best:
        assert best.metadata()["round"] == "3"


def test_checkpoints_by_time(tmp_path):
    x, y = blobs()
    keeper = RunFolder(tmp_path, checkpoint_every=1000, checkpoint_minutes=1e-9, keep=3)
    library.simulate(small_net(), (x, y), rounds=4, callbacks=[keeper])
    assert keeper.checkpoints.rounds() == [4, 3, 2]


def test_only_changed_memories_are_written_again(tmp_path):
    method = recipes.scaffold()
    server = method.init(torch.randn(6))
    kept = {client: method.init_kept(server.params) for client in range(3)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Checkpoint(1, server, kept))
    kept[1] = method.init_kept(server.params)
    checkpoints.save(Checkpoint(2, server, kept))
    files = json.loads((tmp_path / "round-000002.json").read_text())["kept"]
    assert {client: name.split("-round-")[1] for client, name in files.items()} == {
        "0": "000001.safetensors",
        "1": "000002.safetensors",
        "2": "000001.safetensors",
    }
    loaded = Checkpoints(tmp_path).load(2, server, kept[0])
    assert same_bits(loaded.server, server)
    assert all(same_bits(loaded.kept[client], kept[client]) for client in kept)


@pytest.mark.parametrize("name", METHODS)
def test_checkpoint_round_trip(name, tmp_path):
    method = METHODS[name].method()
    server = method.init(torch.randn(6, dtype=torch.float64))
    kept = {4: method.init_kept(server.params)} if method.keeps_memory else {}
    Checkpoints(tmp_path).save(Checkpoint(3, server, kept))
    loaded = Checkpoints(tmp_path).load(
        3, method.init(torch.zeros(6, dtype=torch.float64)), method.init_kept(server.params)
    )
    assert same_bits(loaded.server, server)
    assert loaded.kept.keys() == kept.keys()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    method = recipes.fedavg()
    Checkpoints(tmp_path).save(Checkpoint(1, method.init(torch.zeros(6)), {}))
    with pytest.raises(ValueError, match=r"fit this run's model and method: .* shape \(6,\) there and .* \(7,\) here"):
        Checkpoints(tmp_path).load(1, method.init(torch.zeros(7)), method.init_kept(torch.zeros(7)))
    with pytest.raises(DamagedCheckpoint, match=r"round-000009.json is damaged"):
        Checkpoints(tmp_path).load(9, method.init(torch.zeros(6)), method.init_kept(torch.zeros(6)))


# ---- found by a sceptic ---------------------------------------------------------------------------------------


def stop_hard_at(round):
    """A callback that ends the process's work as abruptly as Python allows in a test."""

    def fail(_, row):
        if row["round"] == round:
            raise KeyError("killed")

    return fail


def test_an_old_final_model_never_passes_for_the_one_in_training(tmp_path):
    simulate(tmp_path, 4)
    old = library.load_run(tmp_path, small_net()).model
    with pytest.raises(KeyError, match="killed"):
        simulate(tmp_path, 20, callbacks=[stop_hard_at(9)])
    newer = library.load_run(tmp_path, small_net()).model
    assert not torch.equal(old[0].weight, newer[0].weight)
    whole = simulate(tmp_path / "whole", 9)
    assert torch.equal(newer[0].weight, whole.model[0].weight)


def test_work_after_a_fallback_is_not_lost_to_the_damaged_checkpoints(tmp_path):
    simulate(tmp_path, 20)
    for path in (tmp_path / "checkpoints").glob("round-*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(KeyError, match="killed"):
        simulate(tmp_path, 20, callbacks=[stop_hard_at(7)])
    assert Checkpoints(tmp_path / "checkpoints").rounds() == [7, 6]
    assert same_bits(simulate(tmp_path, 20).server, simulate(tmp_path / "whole", 20).server)


def test_metrics_are_kept_when_no_checkpoint_is_left(tmp_path, capsys):
    simulate(tmp_path, 6)
    lines = rows(tmp_path)
    model = (tmp_path / "model.safetensors").read_bytes()
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    simulate(tmp_path, 7)  # fewer than a checkpoint needs: the model tells that the run had ended
    said = "has no intact checkpoint: the run starts over; the metrics as they were are in"
    assert said in (err := capsys.readouterr().err)
    assert f"; the model as it was is in {tmp_path / 'model.old.safetensors'}\n" in err
    kept = [json.loads(line) for line in (tmp_path / "metrics.old.jsonl").read_text().splitlines()]
    assert [row["train_loss"] for row in kept] == [row["train_loss"] for row in lines]
    assert (tmp_path / "model.old.safetensors").read_bytes() == model
    assert len(rows(tmp_path)) == 7


def test_a_finished_run_without_checkpoints_is_not_trained_again(tmp_path, command):
    words = ["run", "--method", "fedavg", "--model", "mlp", "--local-steps", 1, "--rounds", 3, "--out", tmp_path / "a"]
    command(*words, "--quiet")
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    for again in (words, [*words, "--rounds", 2], ["resume", tmp_path / "a"]):
        said = command(*again, "--quiet", code=2).err
        assert f"the run in {tmp_path / 'a'} is finished and its checkpoints are gone: its 3 rounds" in said
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before
    assert "the run starts over; the metrics" in command("resume", tmp_path / "a", "--rounds", 4, "--quiet").err
    assert (tmp_path / "a" / "model.old.safetensors").read_bytes() == before["model.safetensors"]
    assert len(rows(tmp_path / "a")) == 4


def test_a_killed_run_without_a_checkpoint_starts_over_silently(tmp_path, command):
    words = ["run", "--method", "fedavg", "--model", "mlp", "--local-steps", 1, "--out", tmp_path, "--quiet"]
    command(*words, "--rounds", 3)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "model.safetensors").unlink()  # only a run's end writes it
    assert command(*words, "--rounds", 3).err == ""
    assert not list(tmp_path.glob("*.old*"))


def test_a_damaged_line_of_metrics_loses_none_of_the_others(tmp_path, capsys):
    whole = simulate(tmp_path / "whole", 6)
    simulate(tmp_path, 6)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    for number in (1, 2):
        damaged = "\n".join([*lines[:number], "{", *lines[number + 1 :]]) + "\n"
        (tmp_path / "metrics.jsonl").write_text(damaged)
        assert same_bits(simulate(tmp_path, 6).server, whole.server)
        assert "too few intact lines of metrics" in capsys.readouterr().err
        old = tmp_path / ("metrics.old.jsonl" if number == 1 else "metrics.old-2.jsonl")
        assert old.read_text() == damaged
    (tmp_path / "metrics.jsonl").unlink()
    assert same_bits(simulate(tmp_path, 6).server, whole.server)
    model = f"the model as it was is in {tmp_path / 'model.old-3.safetensors'}"
    assert capsys.readouterr().err.endswith(f"too few intact lines of metrics: the run starts over; {model}\n")
    assert len(list(tmp_path.glob("metrics.old*"))) == 2


def test_bytes_that_are_no_text_are_damage_like_any_other(six_rounds, resumed_equals_whole):
    (six_rounds / "checkpoints" / "round-000006.json").write_bytes(b"\xff\xfe")
    with (six_rounds / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe{")
    done = resumed_equals_whole(six_rounds)
    assert "round-000006.json is damaged" in done.stderr


def test_a_folder_without_a_newer_flag_goes_on(six_rounds, resumed_equals_whole):
    path = six_rounds / "config.json"
    config = json.loads(path.read_text())
    del config["size_spread"]
    path.write_text(json.dumps(config))
    resumed_equals_whole(six_rounds)


def test_a_broken_configuration_is_named(six_rounds):
    path = six_rounds / "config.json"
    config = json.loads(path.read_text())
    for name, value in {"num_clients": "8", "hyper": None, "model": 3, "seed": 1.5, "refill": 1}.items():
        path.write_text(json.dumps({**config, name: value}))
        assert f"{name} must be of type" in fedlada_here("resume", str(six_rounds))
    path.write_text("{")
    arguments = ["run", "--method", "scaffold", *QUICK, "--rounds", "6", "--out", str(six_rounds)]
    assert f"{path} cannot be read" in fedlada_here(*arguments)


def fedlada_here(*arguments):
    """The sentence of a command that is refused, run in this process to save its start."""
    import contextlib
    import io

    from fedlada.workbench.cli import main

    errors, before = io.StringIO(), sys.argv
    try:
        sys.argv = ["fedlada", *arguments]
        with contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as exit:
            main()
    finally:
        sys.argv = before
    assert exit.value.code == 2
    return errors.getvalue()


def test_a_run_that_reached_its_target_stays_finished(tmp_path):
    first = simulate(tmp_path, 60, stop_at_accuracy=0.7, eval_every=1)
    assert len(first.history) < 60
    again = simulate(tmp_path, 60, stop_at_accuracy=0.7, eval_every=1)
    assert len(again.history) == len(first.history)


def test_what_callbacks_add_is_stored_and_the_last_round_is_evaluated(tmp_path):
    def mine(simulation, row):
        row["mine"] = row["round"] ** 2
        if row["round"] == 3:
            simulation.stop("enough")

    simulate(tmp_path, 9, callbacks=[mine], eval_every=100)
    assert [row["mine"] for row in rows(tmp_path)] == [1, 4, 9]
    assert ["test_accuracy" in row for row in rows(tmp_path)] == [False, False, True]


def test_a_script_with_an_unseeded_model_goes_on(tmp_path):
    x, y = blobs()
    first = library.simulate(torch.nn.Linear(4, 3), (x, y), rounds=2, out=tmp_path)
    second = library.simulate(torch.nn.Linear(4, 3), (x, y), rounds=4, out=tmp_path)
    assert second.history["train_loss"][:2] == first.history["train_loss"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"loss": torch.nn.MultiMarginLoss()}, "loss is"),
        ({"train": blobs(seed=1)}, "the training data differ"),
        ({"eval_every": 3}, "eval_every is"),
        ({"batch_size": 3}, "work is"),
    ],
    ids=["loss", "data", "eval_every", "batch_size"],
)
def test_python_runs_notice_other_settings(tmp_path, change, word):
    x, y = blobs()
    common = {"train": (x, y), "partition": UNEQUAL, "out": tmp_path, "rounds": 1}
    library.simulate(small_net(), **common)
    with pytest.raises(ValueError, match=f"holds another run \\({word}"):
        library.simulate(small_net(), **{**common, **change})


def test_a_failing_metric_leaves_the_round_undone(tmp_path):
    calls = []

    def fails_at_third(outputs, targets):
        calls.append(len(outputs) == len(targets))
        if len(calls) == 4:  # the first was the trial
            raise KeyError("metric")
        return 0.5

    with pytest.raises(ValueError, match="the metric 'mine' failed: KeyError: 'metric'"):
        simulate(tmp_path / "a", 6, metrics={"mine": fails_at_third})
    assert len(rows(tmp_path / "a")) == 2
    assert Checkpoints(tmp_path / "a" / "checkpoints").rounds() == [2]
    assert same_bits(simulate(tmp_path / "a", 6).server, simulate(tmp_path / "b", 6).server)


def test_callbacks_may_add_numbers_of_numpy_and_torch(tmp_path):
    def mine(_, row):
        row["numpy"] = np.float32(row["round"])
        row["torch"] = torch.tensor(row["round"] + 0.5)
        row["lost"] = np.float64("nan")
        row["other"] = small_net

    simulate(tmp_path, 2, callbacks=[mine])
    first = rows(tmp_path)[0]
    assert (first["numpy"], first["torch"], first["lost"]) == (1.0, 1.5, None)
    assert "small_net" in first["other"]


def compiled(net):
    return torch.compile(net, backend="eager")


def partly_compiled(net):
    net[0] = compiled(net[0])
    return net


@pytest.mark.parametrize("wrapped", [compiled, partly_compiled, torch.nn.DataParallel], ids=lambda one: one.__name__)
def test_the_model_is_stored_by_the_names_of_its_own_parts(tmp_path, wrapped):
    result = library.simulate(wrapped(small_net()), blobs(), test=blobs(), partition=UNEQUAL, rounds=2, out=tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    plain = small_net(seed=9)
    plain.load_state_dict(stored)
    for model in (small_net(seed=8), wrapped(small_net(seed=7))):
        run = library.load_run(tmp_path, model)
        for one in (run.model, run.best_model()):
            assert type(one) is type(model)
        assert all(map(torch.equal, run.model.parameters(), plain.parameters()))
        assert library.evaluate(run.model, blobs())["loss"] == pytest.approx(result.history["test_loss"][-1])
        run.export(tmp_path / "again.safetensors")
        assert load_file(tmp_path / "again.safetensors").keys() == stored.keys()
    # As an earlier version stored it.
    save_file(wrapped(plain).state_dict(), tmp_path / "model.safetensors")
    run = library.load_run(tmp_path, wrapped(small_net(seed=7)))
    assert all(map(torch.equal, run.model.parameters(), plain.parameters()))


@dataclass(frozen=True)
class InOtherNumbers(library.LocalTransform):
    """Counters in a type of their own, as `torch.zeros(1, dtype=...)` has them."""

    dtype: torch.dtype

    def init_shared(self, params):
        return {"t": torch.zeros(1, dtype=self.dtype)}

    def init_kept(self, params):
        return {"n": torch.zeros(1, dtype=self.dtype)}

    def apply(self, update, local, step):
        return (update / (1 + 0.1 * step.shared["t"] + 0.1 * step.kept["n"])).to(update.dtype), local

    def finish(self, local, done, step):
        return {}, {"n": (step.kept["n"] + 1).to(self.dtype)}

    def merge(self, shared, mean, round):
        return {"t": (shared["t"] + 1).to(self.dtype)}


@dataclass(frozen=True)
class RemembersThree(library.ServerOptimizer):
    def init(self, params):
        return {"last": torch.zeros(3, len(params), dtype=torch.float64)}

    def step(self, params, delta, state, round):
        last = torch.cat([state["last"][1:], delta[None].double()])
        return params - last.mean(0).to(params.dtype), {"last": last}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_states_in_numbers_of_their_own_go_on_too(engine, dtype, tmp_path):
    own = library.FederatedMethod(name="own", local=(InOtherNumbers(dtype),), server=RemembersThree())

    def trained(rounds=4, **given):
        settings = {"method": own, "lr": 0.05, "batch_size": 8, "cohort_size": 2, "engine": engine, "device": "cpu"}
        return library.simulate(small_net(), blobs(), rounds=rounds, **settings, **given).server.params

    whole = trained()
    trained(2, out=tmp_path)
    assert torch.equal(trained(out=tmp_path), whole)
