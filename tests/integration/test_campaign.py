"""Many runs kept by what they are: extended, killed, stopped by a clock or a key, swept."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
from dataclasses import replace

from filelock import FileLock, Timeout

from command_line import num_rows, rows, running, wait_until
from fedlada.runs.diverged import DIVERGED_FILE
from fedlada.workbench.campaign.request import Goal, Milestone, Request
from fedlada.workbench.campaign.run import Budget, Work, carry_out
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.parallel import Job, run_jobs

ENDLESS = 100_000
TINY = Experiment(
    model="mlp", num_clients=20, cohort_size=2, batch_size=40, local_epochs=1, rounds=ENDLESS, device="cpu"
)
HERE = Work(jobs=1, quiet=True)


def request(needed, *until, **changes):
    return Request("tiny", "tiny", replace(TINY, **changes), Goal(needed, until))


def alone(folder, num_rounds, **changes):
    """The same run without any of this machinery."""
    replace(TINY, **{**changes, "rounds": num_rounds}).run(out=folder)
    return rows(folder)


def test_a_run_is_extended_to_the_same_bits_and_views_stay(tmp_path):
    store = RunStore(tmp_path / "runs")
    first = Milestone("test_accuracy", 0.01)
    short = request(6, first)
    (early,) = carry_out([short], store, HERE)
    assert (early.status, len(early.history)) == ("done", 1)  # it stopped where the milestone was reached
    never = request(5, Milestone("test_accuracy", 1.0), first)
    outcomes = carry_out([short, never, request(3)], store, HERE)  # one run for all three
    assert [len(outcome.history) for outcome in outcomes] == [1, 5, 3]
    assert len(list(store.folder.iterdir())) == 1
    assert rows(outcomes[0].folder) == alone(tmp_path / "alone", 5)
    (folder,) = store.folder.iterdir()
    before = (folder / "metrics.jsonl").stat().st_mtime_ns
    carry_out([short, never, request(3)], store, HERE)
    assert (folder / "metrics.jsonl").stat().st_mtime_ns == before  # nothing was run twice


def test_a_last_round_is_not_evaluated_out_of_turn(tmp_path):
    """A run that ends early has exactly the evaluations of a longer one."""
    store = RunStore(tmp_path / "runs")
    every = {"eval_every": 2, "eval_train_every": 3}
    carry_out([request(4, rounds=4, **every)], store, HERE)
    (outcome,) = carry_out([request(6, rounds=6, **every)], store, HERE)
    assert rows(outcome.folder) == alone(tmp_path / "alone", 6, **every)


def test_a_run_that_diverged_is_remembered_and_shown(tmp_path):
    store = RunStore(tmp_path / "runs")
    wild = request(9, method="fedavg", lr=1e30, hyper={"weight_decay": 1e10})
    (outcome,) = carry_out([wild], store, HERE)
    assert outcome.status == "diverged"
    assert "diverged" in outcome.why
    said = (outcome.folder / DIVERGED_FILE).stat().st_mtime_ns
    (again,) = carry_out([wild], store, HERE)
    assert (again.status, again.why) == ("diverged", outcome.why)
    assert (outcome.folder / DIVERGED_FILE).stat().st_mtime_ns == said


def test_a_job_that_keeps_nothing_remembers_that_it_diverged(tmp_path):
    wild = request(9, method="fedavg", lr=1e30, hyper={"weight_decay": 1e10})
    folder = tmp_path / "run"
    (why,) = run_jobs([Job("wild", wild.experiment.to_json(), folder, discards=True)], num_processes=1, quiet=True)
    assert "diverged" in why
    assert (folder / DIVERGED_FILE).exists()


def test_a_budget_stops_and_the_same_command_goes_on(tmp_path):
    store, lengths = RunStore(tmp_path / "runs"), []
    for _ in range(2):
        (outcome,) = carry_out([request(ENDLESS)], store, Work(jobs=1, quiet=True, budget=Budget(0.5 / 60)))
        assert outcome.status == "unfinished"
        lengths.append(len(outcome.history))
    assert 0 < lengths[0] < lengths[1]
    assert rows(outcome.folder) == alone(tmp_path / "alone", lengths[1])


def test_discarded_checkpoints_leave_the_history(tmp_path):
    store = RunStore(tmp_path / "runs")
    (outcome,) = carry_out([request(2)], store, replace(HERE, discard=True))
    assert not (outcome.folder / "checkpoints").exists()
    assert carry_out([request(2)], store, HERE)[0].status == "done"
    (longer,) = carry_out([request(3)], store, HERE)  # from the start, because nothing was left to go on from
    assert rows(longer.folder) == alone(tmp_path / "alone", 3)


def test_a_run_that_has_enough_discards_its_checkpoints_itself_and_one_that_has_not_keeps_them(tmp_path):
    """Not at the end of the campaign: the disk would be full by then."""
    config = replace(TINY, rounds=4).to_json()
    done, short = tmp_path / "done", tmp_path / "short"
    jobs = [Job("", config, folder, (Goal(needed),), discards=True) for folder, needed in ((done, 2), (short, 9))]
    assert run_jobs(jobs, num_processes=1, quiet=True) == ["", ""]
    assert [row["round"] for row in rows(done)] == [1, 2]
    assert not (done / "checkpoints").exists()
    assert (short / "checkpoints").exists()


def test_a_run_that_another_process_extends_keeps_its_checkpoints(tmp_path):
    store = RunStore(tmp_path / "runs")
    (outcome,) = carry_out([request(2)], store, HERE)
    with FileLock(outcome.folder / ".lock"):
        carry_out([request(2)], store, replace(HERE, discard=True))
        assert (outcome.folder / "checkpoints").exists()
    carry_out([request(2)], store, replace(HERE, discard=True))
    assert not (outcome.folder / "checkpoints").exists()


def test_a_discarded_run_that_is_needed_further_keeps_what_it_had(tmp_path):
    """It starts again, and may be stopped before it is there."""
    store = RunStore(tmp_path / "runs")
    (outcome,) = carry_out([request(4)], store, replace(HERE, discard=True))
    had = rows(outcome.folder)
    carry_out([request(6)], store, HERE)
    assert (outcome.folder / "metrics.old.jsonl").read_text().count("\n") == 4
    assert rows(outcome.folder)[:4] == had


HUNGRY = """
import torch

class Hungry(torch.nn.Module):
    room = 40

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 10)

    def forward(self, x):
        Hungry.room -= 1
        if Hungry.room < 0:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 854.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which "
                "5.62 MiB is free. Process 558 has 66.00 MiB memory in use."
            )
        return self.inner(x.flatten(1))
"""


def test_a_full_gpu_is_one_sentence_and_the_run_goes_on(tmp_path, monkeypatch):
    """As torch says it where there is a GPU: the place where it runs out is the model's."""
    (tmp_path / "hungry.py").write_text(HUNGRY)
    monkeypatch.syspath_prepend(tmp_path)
    store = RunStore(tmp_path / "runs")
    needed = request(9, model="hungry:Hungry", checkpoint_every=1)
    (outcome,) = carry_out([needed], store, HERE)
    assert outcome.why == (
        "CUDA out of memory. Tried to allocate 854.00 MiB: give the GPU fewer runs at a time (--jobs); "
        "the same command resumes from the last checkpoint"
    )
    assert 0 < len(outcome.history) < 9
    importlib.import_module("hungry").Hungry.room = ENDLESS
    (outcome,) = carry_out([needed], store, HERE)
    assert outcome.status == "done"
    assert rows(outcome.folder) == alone(tmp_path / "alone", 9, model="hungry:Hungry", checkpoint_every=1)


FLAGS = ["--model", "mlp", "--num-clients", "20", "--cohort-size", "2", "--batch-size", "40", "--local-epochs", "1"]
FLAGS += ["--device", "cpu"]


def test_a_sweep_halves_and_never_sees_the_test_set(tmp_path, command):
    grid = ["--set", "method=fedavg,fedlada", "--set", "lr=0.0001,0.01,0.1", "--set", "alpha=0.3"]
    out = tmp_path / "swept"
    done = command("sweep", *grid, *FLAGS, "--rounds", 9, "--halving", 3, "--jobs", 1, "--json", "--out", out)
    result = json.loads(done.out)
    table = result["table"]["rows"]
    assert result["table"]["notes"][0].endswith("held out; the test set was not evaluated.")
    assert [row[-1] for row in table] == ["9", "3", "1", "1", "1", "1"]
    scores = {}
    for folder in (out / "runs").iterdir():
        lines = rows(folder)
        assert not any(name.startswith("test_") for row in lines for name in row)
        config = json.loads((folder / "config.json").read_text())
        assert config["validation"] == 0.1
        scores[config["method"], config["lr"]] = [row["validation_accuracy"] for row in lines]
    assert len(scores) == 6  # alpha is FedLADA's alone: FedAvg is there once for each rate
    assert sorted(map(len, scores.values())) == sorted(int(row[-1]) for row in table)
    # Who went on was among the best third at the cut, by hand.
    cut = min(map(len, scores.values()))
    at_cut = {key: values[cut - 1] for key, values in scores.items()}
    survivors = [key for key, values in scores.items() if len(values) > cut]
    assert min(at_cut[key] for key in survivors) >= max(at_cut[key] for key in scores if key not in survivors)
    winner = max((key for key in scores if len(scores[key]) == 9), key=lambda key: scores[key][-1])
    assert (result["best"]["values"]["method"], result["best"]["values"]["lr"]) == winner
    assert result["best"]["score"] == scores[winner][-1]
    assert f"--method {winner[0]}" in result["command"]
    assert "--validation" not in result["command"]
    full = json.loads(command("sweep", *grid, *FLAGS, "--rounds", 9, "--jobs", 1, "--json", "--out", out).out)
    ours = [float(row[-2]) for row in full["table"]["rows"]]
    assert ours == sorted(ours, reverse=True)
    assert len(ours) == 6


def test_a_sweep_without_held_out_data_says_that_the_test_set_was_evaluated(tmp_path, command):
    asked = ["sweep", "--set", "lr=0.1", *FLAGS, "--rounds", 1, "--jobs", 1, "--json", "--out", tmp_path]
    (note,) = json.loads(command(*asked, "--select", "train_loss", "--validation", 0).out)["table"]["notes"]
    assert note.endswith("last train_loss of 1 seed; the test set was evaluated, but nothing was chosen by it.")


def test_a_sweep_of_which_every_run_diverged_fails(tmp_path, command):
    asked = ["sweep", *FLAGS, "--method", "fedavg", "--rounds", 2, "--jobs", 1, "--quiet"]
    run = command(*asked, "--set", "lr=1e30,1e35", "--out", tmp_path / "wild", code=1)
    assert run.err.splitlines()[-1].startswith("fedlada: Every run diverged, so there is no best")
    assert "Every run diverged" in (tmp_path / "wild" / "table.md").read_text()
    assert "Every run" not in command(*asked, "--set", "lr=0.1,1e35", "--out", tmp_path / "one").err


def test_a_sweep_varies_each_name_alone(tmp_path, command):
    grid = ["--set", "alpha=0.2,0.3,0.4", "--set", "clip_norm=none,1", "--alpha", 0.3, "--clip-norm", 5]
    asked = ["sweep", *grid, *FLAGS, "--rounds", 1, "--each-alone", "--only-show", "--out", tmp_path]
    table = json.loads(command(*asked, "--json").out)["table"]
    assert table["columns"][1:3] == ["alpha", "clip_norm"]
    tried = sorted(tuple(row[1:3]) for row in table["rows"])
    assert tried == [("0.2", "5"), ("0.3", "1"), ("0.3", "5"), ("0.3", "none"), ("0.4", "5")]
    assert "--each-alone" in (tmp_path / "command.txt").read_text()
    assert "leave method out of --set" in command(*asked, "--set", "method=fedavg,fedlada", code=2).err


def test_a_sweep_of_a_sample_is_the_same_every_time(tmp_path, command):
    grid = ["--set", "alpha=0.1,0.2,0.3,0.4", "--set", "lr=0.01,0.02,0.03,0.04", "--set", "v_init=1e-8,1e-6,1e-4"]
    asked = ["sweep", *grid, *FLAGS, "--rounds", 1, "--sample", 5, "--only-show", "--json"]
    first, again = (json.loads(command(*asked, "--out", tmp_path / name).out)["table"] for name in ("a", "b"))
    assert first == again
    drawn = {tuple(row[1:4]) for row in first["rows"]}
    assert len(drawn) == 5
    assert all(len({row[axis] for row in drawn}) > 1 for axis in range(3))  # not a corner of the grid


def test_a_key_press_saves_and_the_same_command_goes_on(tmp_path, command):
    out = tmp_path / "swept"
    arguments = ["sweep", "--set", "lr=0.1", *FLAGS, "--jobs", "1", "--out", str(out)]

    def press():
        wait_until(lambda: any(len(path.read_bytes()) for path in out.rglob("metrics.jsonl")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    stopped = command(*arguments, "--rounds", ENDLESS, code=130)
    thread.join()
    assert "saving the run; the same command resumes it" in stopped.err
    (folder,) = (out / "runs").iterdir()
    saved = len(rows(folder))
    assert (folder / "checkpoints" / f"round-{saved:06d}.json").exists()
    command(*arguments, "--rounds", saved + 2)
    assert len(rows(folder)) == saved + 2


def test_a_killed_sweep_loses_nothing_and_its_workers_end(tmp_path, command):
    """SIGKILL of the parent: two workers hold two runs, end with it, and the same command goes on to the same bits."""
    arguments = ["sweep", "--set", "lr=0.1,0.01", *FLAGS, "--checkpoint-every", "3", "--out", str(tmp_path / "swept")]
    store = tmp_path / "swept" / "runs"
    with running([*arguments, "--rounds", ENDLESS, "--jobs", 2]) as process:
        wait_until(lambda: sum(num_rows(one) > 4 for one in store.glob("*")) == 2, process)
        process.kill()
    for folder in store.iterdir():
        wait_until(lambda folder=folder: is_free(folder))
    longest = max(num_rows(folder) for folder in store.iterdir())
    command(*arguments, "--rounds", longest + 1, "--jobs", 1, "--quiet")
    for folder in store.iterdir():
        lr = json.loads((folder / "config.json").read_text())["lr"]
        expected = alone(tmp_path / f"alone-{lr}", longest + 1, lr=lr, validation=0.1)
        assert rows(folder) == expected


def is_free(folder):
    """Whether no process holds a run's folder."""
    try:
        with FileLock(folder / ".lock", timeout=0):
            return True
    except Timeout:
        return False
