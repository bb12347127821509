"""Runs as one small file: tables, pages and longer runs come out of it as they do out of the runs' folders."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import rows
from fedlada.data.sources import CONTENT_BY_NAME, DATASETS
from fedlada.runs.archived import archived_notes
from fedlada.runs.folder import discard_states
from fedlada.workbench.campaign import archive as archives
from fedlada.workbench.campaign.archive import Archive, adopt_archive, read_archive
from fedlada.workbench.campaign.archived_run import ArchivedRun, shortened
from fedlada.workbench.campaign.request import Goal, Request
from fedlada.workbench.campaign.run import Work, carry_out
from fedlada.workbench.campaign.store import RunStore, runs_in
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.curves import all_curves
from fedlada.workbench.report.records import read_runs
from fedlada.workbench.report.watch import LiveReport

TINY = Experiment(
    model="mlp",
    num_clients=20,
    cohort_size=2,
    batch_size=40,
    rounds=100,
    eval_every=2,
    eval_train_every=4,
    device="cpu",
)
HERE = Work(jobs=1, quiet=True)


def request(needed, **changes):
    return Request("tiny", "tiny", replace(TINY, **changes), Goal(needed))


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take long and are not looked at here."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The store of a run of four rounds, and an archive of it."""
    place = tmp_path_factory.mktemp("four")
    carry_out([request(4)], RunStore(place / "runs"), HERE)
    packed(place / "runs").write(place / "runs.json")
    return place / "runs", place / "runs.json"


def packed(*stores, archive=None):
    runs = [ArchivedRun.of_folder(run, {"hardware": "a test"}) for store in stores for run in runs_in(store)]
    return (archive or Archive()).with_runs(runs)


def page_of(path):
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])


def test_tables_and_pages_are_made_again(tmp_path, command):
    """F7 has losses and drifts to more digits than any other table; its runs are evaluated in every round."""
    asked = ["reproduce", "F7", "--scale", "smoke", "--device", "cpu", "--json", "--jobs", 1]
    first = json.loads(command(*asked, "--out", tmp_path / "a").out)["targets"]
    said = command("pack", tmp_path / "a", "--out", tmp_path / "runs.json", "--made", "hardware=a test").out
    assert said.startswith(f"5 runs in {tmp_path / 'runs.json'}, ")
    again = command(*asked, "--merge", tmp_path / "runs.json", "--out", tmp_path / "b")
    assert json.loads(again.out)["targets"] == first
    before, after = (page_of(tmp_path / name / "report.html") for name in "ab")
    note = after["notes"][-1]
    assert note.startswith("Runs from an archive (fedlada 0.1.0; hardware a test) have")
    assert after["notes"] == [*before["notes"], note]
    assert [one["group"] for one in after["runs"]] == [one["group"] for one in before["runs"]]
    assert all(not (run / "checkpoints").exists() for run in runs_in(tmp_path / "b"))
    # As if they were a GPU's: shown where there is none, because nothing has to be run.
    (tmp_path / "gpu.json").write_text(
        (tmp_path / "runs.json").read_text().replace('"device":"cpu"', '"device":"cuda"')
    )
    on_gpu = [*asked, "--device", "cuda", "--merge", tmp_path / "gpu.json", "--out", tmp_path / "c"]
    assert json.loads(command(*on_gpu).out)["targets"] == first
    # Packed again from what came out of it, the file is the same file.
    command("pack", tmp_path / "b", "--out", tmp_path / "again.json", "--made", "hardware=a test")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "runs.json").read_bytes()


FLAGS = [
    "--model",
    "mlp",
    "--num-clients",
    20,
    "--cohort-size",
    2,
    "--batch-size",
    40,
    "--eval-every",
    2,
    "--rounds",
    6,
]
FLAGS += ["--device", "cpu", "--jobs", 1]


def test_rounds_between_evaluations_are_thinned_and_nobody_stumbles(tmp_path, command):
    asked = ["sweep", "--set", "method=fedavg,fedlada", "--select", "validation_loss", *FLAGS, "--json", "--out"]
    first = json.loads(command(*asked, tmp_path / "a").out)["table"]
    command("pack", tmp_path / "a", "--out", tmp_path / "runs.json")
    assert json.loads(command(*asked, tmp_path / "b", "--merge", tmp_path / "runs.json").out)["table"] == first
    for by in ("mean", "best"):  # the training loss is known in every round, but an archive has not all of them
        again = [*asked[:-1], "--only-show", "--select", "train_loss", "--by", by, "--out"]
        ours, theirs = (json.loads(command(*again, tmp_path / name).out)["best"] for name in "ba")
        assert ours == {**theirs, "score": pytest.approx(theirs["score"], abs=1e-5)}
    whole, thin = ({run.name: rows(run) for run in runs_in(tmp_path / name)} for name in "ab")
    assert whole.keys() == thin.keys()
    every = ("round", "bytes_up", "bytes_down", "nd_up", "nd_down")
    nobody = {"clients": [], "lost": [], "refused": [], "idle": []}
    for name, own in whole.items():
        for theirs, ours in zip(own, thin[name], strict=True):
            kept = {key: theirs[key] for key in every} | nobody
            if theirs["round"] % 2 == 0:
                kept["validation_accuracy"] = theirs["validation_accuracy"]
                for loss in ("validation_loss", "train_loss", "drift"):
                    assert ours.pop(loss) == pytest.approx(theirs[loss], rel=1e-3, abs=1e-5)
            assert ours == kept
    before, after = (page_of(tmp_path / name / "report.html")["runs"] for name in "ab")
    for theirs, ours in zip(before, after, strict=True):
        assert ours["summary"]["megabytes"] == theirs["summary"]["megabytes"]
        assert ours["summary"]["seconds"] == pytest.approx(theirs["summary"]["seconds"], abs=1e-3)
        assert ours["clients"]["drawn"] == []  # not: never
    charts = all_curves(read_runs([tmp_path / "b" / "runs"]))
    assert {one.x for one in charts["train_loss-by-rounds"].series} == {(2.0, 4.0, 6.0)}
    command("report", tmp_path / "b" / "runs", "--out", tmp_path / "page.html")
    assert "from an archive" in page_of(tmp_path / "page.html")["notes"][0]
    live = LiveReport(tmp_path / "b", "live")
    assert "from an archive" in json.loads(live.index().content)["notes"][-1]


def test_a_run_that_is_needed_further_begins_again(four, tmp_path):
    store = RunStore(tmp_path / "runs")
    assert adopt_archive(store, four[1], [request(4)]).taken
    assert carry_out([request(4)], store, HERE)[0].status == "done"
    (outcome,) = carry_out([request(6)], store, HERE)
    assert not (outcome.folder / "archived.json").exists()
    carry_out([request(6)], RunStore(tmp_path / "alone"), HERE)
    assert rows(outcome.folder) == rows(tmp_path / "alone" / outcome.folder.name)
    # Ours has every round now: an archive of as many must not replace it, and it may replace one that is thinned.
    packed(store.folder).write(tmp_path / "six.json")
    assert not adopt_archive(store, tmp_path / "six.json", [request(6)]).taken
    thin = RunStore(tmp_path / "thin")
    assert adopt_archive(thin, tmp_path / "six.json", [request(6)]).taken == thin.adopt([store.folder]).taken
    assert rows(thin.path(request(6))) == rows(outcome.folder)


def test_a_run_is_not_resumed_to_where_it_already_is(tmp_path, command):
    whole, store, file = request(4, rounds=4), RunStore(tmp_path / "runs"), tmp_path / "runs.json"
    carry_out([whole], RunStore(tmp_path / "own"), HERE)
    packed(tmp_path / "own").write(file)
    adopt_archive(store, file, [whole])
    folder = store.path(whole)
    before = rows(folder)
    said = command("resume", folder, "--quiet", code=2).err
    assert "is finished and its checkpoints are gone: its 4 rounds can still be read; give more rounds" in said
    assert rows(folder) == before
    assert (folder / "archived.json").exists()
    assert "the run starts over; the metrics as they were" in command("resume", folder, "--rounds", 5, "--quiet").err
    assert len(rows(folder)) == 5
    assert (folder / "metrics.old.jsonl").exists()


def test_a_run_that_can_go_on_is_left_alone(four, tmp_path):
    """An archive has less of it: only what has no checkpoint is replaced, and not by what is too short anyway."""
    store = RunStore(tmp_path / "runs")
    (begun,) = carry_out([request(2)], store, HERE)
    adopted = adopt_archive(store, four[1], [request(2), request(6)])
    assert (adopted.found, adopted.taken) == ({begun.folder.name}, set())
    own = rows(begun.folder)
    assert not adopt_archive(store, four[1], [request(4)]).taken
    thin = RunStore(tmp_path / "thin")
    assert adopt_archive(thin, four[1], [request(4)]).taken == {begun.folder.name}
    assert not store.adopt([thin.folder]).taken
    assert rows(begun.folder) == own
    assert carry_out([request(4)], store, HERE)[0].status == "done"  # it went on: its own first rounds are there
    assert rows(begun.folder)[:2] == own


def test_a_run_that_cannot_go_on_is_replaced_by_a_longer_one(four, tmp_path):
    store = RunStore(tmp_path / "runs")
    (begun,) = carry_out([request(2)], store, HERE)
    discard_states(begun.folder)
    assert not adopt_archive(store, four[1], [request(6)]).taken  # it begins again: the same command must not undo that
    assert adopt_archive(store, four[1], [request(4)]).taken == {begun.folder.name}
    (short,) = (replace(run, num_rounds=6) for run in read_archive(four[1]).runs)
    longer = replace(short, every_round={name: [1.0] * 6 for name in short.every_round})
    Archive([longer]).write(tmp_path / "six.json")
    assert adopt_archive(store, tmp_path / "six.json", [request(8)]).taken  # ours came from an archive too
    assert not adopt_archive(store, four[1], [request(4)]).taken


def test_a_run_that_goes_further_wins(four, tmp_path):
    store, path = tmp_path / "runs", tmp_path / "runs.json"
    carry_out([request(2), request(2, seed=1)], RunStore(store), HERE)
    lengths = []
    for stores in ([store], [four[0]], [store]):
        known = read_archive(path) if path.exists() else None
        packed(*stores, archive=known).write(path)
        lengths.append([(run.config["seed"], run.num_rounds) for run in read_archive(path).runs])
    assert lengths == [[(0, 2), (1, 2)], [(0, 4), (1, 2)], [(0, 4), (1, 2)]]
    (long,) = (run for run in read_archive(path).runs if run.config["seed"] == 0)
    other = replace(long, config={**long.config, "rounds": 50})
    assert len(Archive([long]).with_runs([other]).runs) == 1
    on_gpu = [replace(run, config={**run.config, "device": "cuda"}) for run in (long, other)]
    assert len(Archive(on_gpu[:1]).with_runs(on_gpu[1:]).runs) == 2  # there a short run may have other bits
    Archive([replace(long, num_rounds=0, every_round={}, measured={}), long]).write(path)
    adopt_archive(RunStore(tmp_path / "new"), path, [request(4)])
    assert len(rows(RunStore(tmp_path / "new").path(request(4)))) == 4


def test_what_is_said_of_runs_stays_with_them(four, tmp_path, command):
    path, wanted = tmp_path / "runs.json", [request(4), request(2, seed=1)]
    carry_out(wanted[1:], RunStore(tmp_path / "other"), HERE)
    command("pack", four[0], "--out", path, "--made", "hardware=GPU", "--made", "date=today")
    command("pack", tmp_path / "other", "--out", path, "--made", "hardware=laptop")
    assert json.loads(path.read_text())["made"] == [{"date": "today", "hardware": "GPU"}, {"hardware": "laptop"}]
    store = RunStore(tmp_path / "runs")
    adopt_archive(store, path, wanted)
    said = [archived_notes([store.path(one)]) for one in wanted]
    assert ["(fedlada 0.1.0; date today; hardware GPU)" in said[0][0], "(fedlada 0.1.0; hardware laptop)" in said[1][0]]
    assert archived_notes(store.path(one) for one in wanted) == [*said[0], *said[1]]
    before = path.read_bytes()
    # They were not made where they are packed again, neither as they were nor as they came out of an archive.
    command("pack", four[0], tmp_path / "other", "--out", path, "--made", "hardware=phone")
    assert path.read_bytes() == before
    command("pack", store.folder, "--out", tmp_path / "new.json", "--made", "hardware=phone")
    assert (tmp_path / "new.json").read_bytes() == before
    # Run again, it is a new run; one of which nothing was said can be spoken of later.
    (known,) = (run for run in read_archive(path).runs if run.num_rounds == 4)
    for old, made in ((replace(known, seconds=9.0), "phone"), (replace(known, made={}), "phone"), (known, "GPU")):
        (run,) = Archive([old]).with_runs([replace(known, made={"hardware": "phone"})]).runs
        assert (run.made["hardware"], run.seconds) == (made, known.seconds)


@pytest.fixture(scope="module")
def two_data_sets(tmp_path_factory):
    """Two files of arrays, and a campaign's folder for each, of the same two rounds on it."""
    place = tmp_path_factory.mktemp("data")
    x, y = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32), np.arange(200) % 2
    for name, labels in (("a", y), ("b", y[::-1])):
        np.savez(place / f"{name}.npz", x=x, y=labels)
        carry_out([on(place / f"{name}.npz")], RunStore(place / name / "runs"), HERE)
    return place


def on(file):
    return request(2, dataset="npz", data_dir=str(file))


def test_runs_on_different_data_are_different_runs(two_data_sets, tmp_path, command):
    place = two_data_sets
    said = command("pack", place / "a", place / "b", "--out", tmp_path / "both.json").out
    assert said.startswith("2 runs")
    command("pack", place / "a", "--out", tmp_path / "a.json")
    command("pack", place / "b", "--out", tmp_path / "b.json")
    elsewhere = shutil.copy(place / "a.npz", tmp_path / "other name.npz")
    for file, name in ((place / "a.npz", "a"), (place / "b.npz", "b"), (elsewhere, "a")):
        for archive in ("a", "b", "both"):
            store = RunStore(tmp_path / f"{archive} for {Path(file).name}")
            adopted = adopt_archive(store, tmp_path / f"{archive}.json", [on(file)])
            assert bool(adopted.found) == (archive in (name, "both"))
            if adopted.found:
                (theirs,) = runs_in(place / name)
                kept = [row["test_loss"] for row in rows(store.path(on(file))) if "test_loss" in row]
                assert kept == [shortened("test_loss", row["test_loss"]) for row in rows(theirs) if "test_loss" in row]
    # Both asked for at once, each gets its own.
    store = RunStore(tmp_path / "runs")
    assert len(adopt_archive(store, tmp_path / "both.json", [on(place / "b.npz"), on(place / "a.npz")]).taken) == 2
    command("pack", store.folder, "--out", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "both.json").read_bytes()


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("b.npz", "is named by its data and its version, fedlada 0."),
        ("c.npz", "must be packed where its data are, which alone tell what it was run on: there is no file"),
    ],
)
def test_data_that_no_name_tells_must_be_those_that_were_used(file, sentence, two_data_sets, tmp_path, command):
    (run,) = runs_in(two_data_sets / "a")
    moved = shutil.copytree(run, tmp_path / "runs" / run.name)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "data_dir": str(two_data_sets / file)}))
    errors = command("pack", tmp_path, "--out", tmp_path / "runs.json", code=2).err
    assert sentence in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs.json").exists()


def test_the_names_of_published_data_alone_tell_what_they_hold():
    """Of a data set added later somebody must say whether its name does: what a user has under it may be anything."""
    assert set(DATASETS) - CONTENT_BY_NAME == {"folder", "npz", "leaf", "docstrings", "shakespeare"}
    assert set(DATASETS) >= CONTENT_BY_NAME


def test_a_compressed_archive(four, tmp_path, monkeypatch):
    """The same runs, and the same bytes each time; one that is damaged or unpacks to too much is refused."""
    plain, small = read_archive(four[1]), tmp_path / "runs.json.gz"
    plain.write(small)
    assert gzip.decompress(small.read_bytes()) == four[1].read_bytes()
    before = small.read_bytes()
    read_archive(small).write(small)
    assert small.read_bytes() == before
    for content in (before[:-20], b"x" + before, before[:40] + b"xxxx" + before[44:]):
        (tmp_path / "bad.json.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"the archive .*bad.json.gz cannot be read"):
            read_archive(tmp_path / "bad.json.gz")
    monkeypatch.setattr(archives, "ALWAYS_READ", 1000)
    with pytest.raises(ValueError, match="cannot be read: unpacked it has more than 1e-06 GB"):
        read_archive(small)


def test_committed_archives_can_be_read():
    folder = Path(__file__).parents[2] / "benchmarks" / "results"
    paths = [*folder.glob("runs_*.json"), *folder.glob("*.json.gz")]
    assert len(paths) > 2
    assert all(run.made and run.num_rounds for path in paths for run in read_archive(path).runs)


def test_a_run_that_diverged_is_kept_as_such(tmp_path):
    wild = request(8, method="fedavg", lr=1e30, hyper={"weight_decay": 1e10})
    (outcome,) = carry_out([wild], RunStore(tmp_path / "runs"), HERE)
    packed(tmp_path / "runs").write(tmp_path / "runs.json")
    store = RunStore(tmp_path / "again")
    adopt_archive(store, tmp_path / "runs.json", [wild])
    assert (store.outcome(wild).status, store.outcome(wild).why) == ("diverged", outcome.why)


def test_runs_are_named_anew_and_only_those_needed_come_out(four, tmp_path):
    """A field that an older version did not know has its default; a default of then is still that of then."""
    stored = json.loads(four[1].read_text())
    del stored["defaults"]["ordered"]
    stored["defaults"]["gone"] = 1
    path = tmp_path / "old.json"
    path.write_text(json.dumps(stored))
    needed, other = request(4), request(4, seed=1)
    adopted = adopt_archive(RunStore(tmp_path / "new"), path, [needed, other])
    assert (adopted.num_runs, len(adopted.found)) == (1, 1)
    assert RunStore(tmp_path / "new").outcome(needed).status == "done"
    assert not adopt_archive(RunStore(tmp_path / "new"), path, [other]).found
    assert not adopt_archive(RunStore(tmp_path / "new"), path, [request(4, device="cuda")]).found
    stored["defaults"]["image_size"] = 8  # which these data cannot be read with
    path.write_text(json.dumps(stored))
    assert not adopt_archive(RunStore(tmp_path / "new"), path, [needed]).found
    stored["defaults"]["image_size"] = None
    stored["defaults"]["weights"] = "examples"
    path.write_text(json.dumps(stored))
    assert not adopt_archive(RunStore(tmp_path / "other"), path, [needed]).found
    assert adopt_archive(RunStore(tmp_path / "other"), path, [request(4, weights="examples")]).found


def test_a_device_is_told_by_the_name_or_not_at_all(tmp_path):
    store = RunStore(tmp_path / "runs")
    (outcome,) = carry_out([request(2, device="auto")], store, HERE)
    kind = ArchivedRun.of_folder(outcome.folder, {}).config["device"]
    assert store.path(request(2, device=kind)) == outcome.folder
    other = shutil.copytree(outcome.folder, store.folder / ("0" * 20))
    with pytest.raises(ValueError, match="was run with --device auto, and which device that was is known only"):
        ArchivedRun.of_folder(other, {})


def test_what_is_shortened_is_shown_as_it_was():
    """Rounded to the nearest first, every twentieth figure would be rounded twice, the wrong way."""
    draw = random.Random(0)
    for _ in range(2000):
        value = draw.uniform(0, 3) * 10 ** draw.randint(-5, 2)
        loss, drift = shortened("test_loss", value), shortened("drift", value)
        assert shortened("test_loss_of_mean", value) == loss
        assert [f"{loss:.{digits}f}" for digits in (3, 4)] == [f"{value:.{digits}f}" for digits in (3, 4)]
        assert f"{drift:.4f}" == f"{value:.4f}"
        assert drift == pytest.approx(value, rel=1e-3)
        assert len(repr(loss)) <= 9
        assert (shortened("drift", drift), shortened("test_loss", loss)) == (drift, loss)
        assert shortened("test_accuracy", value) == value
    assert shortened("drift", 1e300) == 1e300


OWN = {"model": "mlp", "device": "cpu", "fedlada": "0.1.0"}


def changed(path, **values):
    stored = json.loads(path.read_text())
    run = {**stored["runs"][0], **values.pop("run", {})}
    return json.dumps({**stored, "runs": [run], **values})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda path: changed(path, format=2, fedlada="9.9"), "was written by fedlada 9.9, newer than this"),
        (lambda path: path.read_text()[:-40], "runs.json cannot be read: "),
        (lambda _: '{"format": 1}', "is not an archive of runs: name a file that `fedlada pack` has written"),
        (lambda path: changed(path, run={"bytes_up": [[5, 3]]}), "at its run 1: there are 3 numbers in the place of 4"),
        (lambda path: changed(path, run={"test_loss": {"steps": 3, "values": [1, 2]}}), "not of rounds 1 to 4"),
        (lambda path: changed(path, run={"test_loss": {"values": [1, 2]}}), "'steps' is missing"),
        (lambda path: changed(path, run={"bytes_up": [[5, 10**18]]}), f"{10**18} numbers in the place of 4"),
        (lambda path: changed(path, run={"rounds": 10**18}), f"it has {10**18} rounds, more than the 1000000"),
        (lambda path: changed(path, run={"rounds": "many"}), "'many' is not a whole number"),
        (lambda path: changed(path, run={"config": 3}), "is damaged at its run 1"),
        (lambda path: changed(path, run={"config": {"model": [1]}}), "at its run 1: its model is [1]"),
        (lambda path: changed(path, runs=[1]), "is damaged at its run 1"),
        (lambda path: changed(path, run={"config": {**OWN, "image_size": [1]}}), "[1] is not a number"),
        (lambda path: changed(path, run={"data": 7}), "at its run 1: its data are 7"),
        (lambda path: changed(path, made=[]), "at its run 1: it has origin 0, and the file has 0"),
        (lambda path: changed(path, made={"hardware": "GPU"}), "is damaged at its run 1"),
    ],
)
def test_a_wrong_archive_is_one_sentence(change, sentence, four, tmp_path, command):
    path = tmp_path / "runs.json"
    path.write_text(change(four[1]))
    before = path.read_bytes()
    asked = ["reproduce", "F1", "--scale", "smoke", "--device", "cpu", "--quiet"]
    for arguments in ([*asked, "--merge", path, "--out", tmp_path / "out"], ["pack", four[0], "--out", path]):
        errors = command(*arguments, code=2).err
        assert sentence in errors
        assert errors.count("\n") == 1
    assert path.read_bytes() == before


def test_a_run_of_a_newer_version_is_one_sentence(four, tmp_path):
    config = json.loads(four[1].read_text())["runs"][0]["config"]
    path = tmp_path / "runs.json"
    path.write_text(changed(four[1], run={"config": {**config, "format": 99, "fedlada": "9.9"}}))
    with pytest.raises(ValueError, match=r"runs.json cannot be read: the configuration was written by fedlada 9.9"):
        adopt_archive(RunStore(tmp_path / "runs"), path, [request(4)])


NOT_NAMED = "holds runs that are not named by their settings and data, as `fedlada reproduce` and `fedlada sweep` name"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pack", "empty", "--out", "runs.json"], "empty holds no runs"),
        (["pack", "nowhere", "--out", "runs.json"], "nowhere is not a folder of runs"),
        (["pack", "empty", "--out", "empty"], "empty is a folder: --out names the archive"),
        (["pack", "run", "--out", "runs.json"], f"run {NOT_NAMED}"),
        (["pack", "compared", "--out", "runs.json"], f"compared {NOT_NAMED}"),
        (["pack", "empty", "--out", "runs.json", "--made", "today"], "--made must be written like date=2026-11-15"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, sentence, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for folder in ("run", "compared/fedavg-seed0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    errors = command(*arguments, code=2).err
    assert sentence in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs.json").exists()
