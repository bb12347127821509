"""Runs over Flower as runs: folder, resume, weights, evaluation, schedules, Flower's own form and wrappers."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from safetensors import safe_open

from fedlada import cohorts, load_run, recipes
from fedlada.federation.schedules import Cosine, WarmUp
from fedlada.flower import MethodStrategy, TooFewReplies, server_app, wire
from fedlada.flower.arrays import NPY_HEADER
from fedlada.flower.exchange import log
from fedlada.flower.memory import Memories
from fedlada.flower.versions import Version, Versions
from fedlada.methods.state import Broadcast, Kept, Upload
from fedlada.runs.checkpoints import Checkpoints
from fedlada.runs.metrics import is_evaluated
from method_table import METHODS
from small_federation import (
    CLIENTS,
    QUICK,
    SETTINGS,
    X,
    Y,
    assert_same_bits,
    grid_of,
    plain,
    replayed,
    simulate,
    strategy_of,
)
from tasks import small_net


class Killed(BaseException):
    """What a test raises where a process would die."""


@pytest.mark.parametrize("name", ["fedlada", "scaffold", "fedadam"])
def test_a_server_killed_anywhere_goes_on_to_the_same_bits(name, tmp_path):
    """Killed in the middle of each round in turn, with a checkpoint every second round: memories go back with it."""
    method, rounds, out = METHODS[name].method(), 5, tmp_path / "run"
    grid = grid_of(method, tmp_path / "memory")
    at = iter(range(1, rounds + 1))
    die_in = [next(at)]

    def die(who, asked, reply):
        header = asked.content.config_records.get(wire.HEADER, {})
        if asked.metadata.message_type == "train" and header["round"] == die_in[0] and who > 1:
            die_in[0] = next(at, None)  # after some clients have trained, and have written their new memories
            shutil.copytree(out, tmp_path / "at-the-kill")
            raise Killed
        return [reply]

    grid.fault = die
    result = None
    for _ in range(rounds + 1):
        try:
            strategy = strategy_of(method, cohort_size=None)
            result = strategy.run(grid, rounds, out=out, checkpoint_every=2, progress=False)
        except Killed:
            # An error is no kill: on its way out the run has saved itself. Back to what a dead process leaves.
            shutil.rmtree(out)
            shutil.move(tmp_path / "at-the-kill", out)
    simulated = simulate(method, rounds, cohort_size=None)
    assert die_in == [None]
    assert plain(result.history) == plain(simulated.history)
    assert_same_bits(result, simulated)


def test_memories_that_no_server_can_ask_for_are_forgotten(tmp_path):
    method = recipes.scaffold()
    strategy = strategy_of(method, cohort_size=None)
    strategy.run(grid_of(method, tmp_path / "m"), 7, out=tmp_path / "run", checkpoint_every=3, progress=False)
    versions = sorted(path.name.partition("-")[2] for path in (tmp_path / "m").glob("*/client-000000/round-*"))
    # In round 7 there were the checkpoints of rounds 3 and 6.
    assert [name[:6] for name in versions] == ["000003", "000006", "000007"]


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_checkpoints_are_not_looked_up_for_each_client(name, tmp_path, monkeypatch):
    looked_up, rounds = [], Checkpoints.rounds

    def counted(self):
        looked_up[-1] += 1
        return rounds(self)

    monkeypatch.setattr(Checkpoints, "rounds", counted)
    method = METHODS[name].method()
    for cohort_size in (1, 5):
        looked_up.append(0)
        grid, out = grid_of(method, tmp_path / f"memory-{cohort_size}"), tmp_path / f"run-{cohort_size}"
        strategy_of(method, cohort_size=cohort_size).run(grid, 4, out=out, checkpoint_every=2, progress=False)
    assert looked_up[0] == looked_up[1]


def test_the_version_of_a_client_is_found_without_a_walk():
    class Searched(list):
        def __iter__(self):
            raise AssertionError("all versions are read")

    versions = Versions()
    versions.accepted = {0: Searched(Version(round, "a") for round in (2, 5, 9))}
    assert [versions.of(0, until) for until in (1, 2, 8, 9, 20)] == [
        None,
        Version(2, "a"),
        Version(5, "a"),
        Version(9, "a"),
        Version(9, "a"),
    ]


def test_a_run_keeps_the_level_of_its_log_that_was_set():
    try:
        log.setLevel(logging.ERROR)
        strategy_of("fedavg").run(grid_of("fedavg"), 1, progress=False)
        assert log.level == logging.ERROR
        log.setLevel(logging.NOTSET)
        strategy_of("fedavg").run(grid_of("fedavg"), 1, progress=False)
        assert log.level == logging.INFO
    finally:
        log.setLevel(logging.INFO)


def test_a_grid_has_as_many_nodes_as_it_was_given():
    grid = grid_of("fedavg", num_nodes=10_100)
    ids = list(grid.get_node_ids())
    assert len(ids) == 10_100
    assert ids[:100] != sorted(ids[:100])  # as Flower's, in no order


@pytest.mark.parametrize("attempt", ["", "0123456789abcdef"])
def test_names_of_memories(attempt):
    assert Version.parse(Version(12, attempt).text) == Version(12, attempt)
    for text in ("", "0-", "3", "3-../../x", "-1-", "3-0123", "3-0123456789ABCDEF"):
        with pytest.raises(ValueError, match="does not name a memory"):
            Version.parse(text)


def test_a_late_task_removes_nothing_that_its_successor_can_name(tmp_path):
    """The old server had checkpoints of rounds 10 and 20 and was in round 28; the new one, from 20 on, is in 26."""
    memories, old, new = Memories(tmp_path, "run", 1), "a" * 16, "b" * 16
    kept = Kept(({"control": torch.ones(2)},))
    ours = [Version(round, new) for round in (21, 25)]
    theirs = [Version(round, old) for round in (3, 10, 15, 20, 27)]
    for version in (Version(2, ""), *theirs, *ours):
        memories.save(version, kept, needed=memories.versions())
    memories.save(Version(28, old), kept, needed=[Version(round, old) for round in (10, 20, 27)])
    assert memories.versions() == sorted([*theirs[1:2], *theirs[3:], *ours, Version(28, old)])
    memories.save(Version(26, new), kept, needed=[Version(20, old), Version(25, new)])
    # What is left of the old server goes when the checkpoints have passed it.
    left = [Version(20, old), Version(25, new), Version(26, new), Version(27, old), Version(28, old)]
    assert memories.versions() == left
    memories.save(Version(40, new), kept, needed=[Version(30, new), Version(39, new)])
    assert memories.versions() == [Version(40, new)]


def test_a_late_task_of_a_dead_server_changes_no_memory(tmp_path):
    """The server dies in round 4; its successor's round 3, and so 4, is another one; then the old task is worked on."""
    method, out, grid = recipes.scaffold(), tmp_path / "run", grid_of(recipes.scaffold(), tmp_path / "memory")
    old = []

    def die(who, asked, reply):
        header = asked.content.config_records.get(wire.HEADER, {})
        if asked.metadata.message_type == "train" and header["round"] == 4:
            old.extend([asked] if who == 1 else [])
            if who == 4:
                shutil.copytree(out, tmp_path / "at-the-kill")
                raise Killed
        return [reply]

    def work_late(who, asked, reply):
        header = asked.content.config_records.get(wire.HEADER, {})
        if asked.metadata.message_type == "train" and (header["round"], who) == (3, 0):
            return []
        if asked.metadata.message_type == "train" and (header["round"], who) == (4, 1):
            grid.app(old[0], grid._nodes[asked.metadata.dst_node_id])
        return [reply]

    settings = {"out": out, "checkpoint_every": 2, "progress": False}
    grid.fault = die
    with pytest.raises(Killed):
        strategy_of(method, cohort_size=None, replies=QUICK).run(grid, 6, **settings)
    shutil.rmtree(out)
    shutil.move(tmp_path / "at-the-kill", out)
    grid.fault = work_late
    result = strategy_of(method, cohort_size=None, replies=QUICK).run(grid, 6, **settings)
    assert [row["lost"] for row in result.history] == [[], [], [0], [], [], []]
    assert_same_bits(result, replayed(result.history, method))


def test_the_folder_is_that_of_any_run(tmp_path):
    method = recipes.fedlada()
    grid = grid_of(method)
    result = strategy_of(method).run(grid, 3, out=tmp_path, progress=False)
    stored = load_run(tmp_path, small_net())
    assert [row["round"] for row in stored.history] == [1, 2, 3]
    for name, tensor in stored.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["engine"], config["num_clients"], config["rounds"]) == ("flower", 5, 3)
    with pytest.raises(ValueError, match="holds another run"):
        strategy_of(method, lr=0.2).run(grid, 3, out=tmp_path, progress=False)
    strategy_of(method, replies=QUICK).run(grid, 4, out=tmp_path, progress=False)  # another policy is the same run


def test_mistakes_are_refused_before_any_node_is_waited_for(tmp_path):
    """Nobody is connected, and the server would wait for an hour."""

    class Deserted:
        """A grid that must not be looked at."""

    method, folder, file = recipes.fedavg(), tmp_path / "run", tmp_path / "file"
    strategy_of(method).run(grid_of(method), 1, out=folder, progress=False)
    file.write_text("")
    before = {path.name: path.read_bytes() for path in folder.glob("*.json*")}
    for changes, arguments, sentence in (
        ({"lr": 0.2}, {"out": folder}, "holds another run"),
        ({"weights": "examples"}, {"out": folder}, "weights is 'uniform' there and 'examples' here"),
        ({"weights": "examples", "combiner": "median"}, {}, "Median weights every client equally: use weights="),
        ({}, {"out": file}, "cannot be written"),
        ({}, {"out": tmp_path / "new", "checkpoint_every": 0}, "checkpoint_every must be"),
        ({}, {"checkpoint_every": 0}, "checkpoint_every must be"),
        ({}, {"rounds": 0}, "rounds must be"),
        ({}, {"callbacks": ["print"]}, "a callback must be a function"),
        ({}, {"callbacks": print}, "callbacks must be a list"),
    ):
        with pytest.raises(ValueError, match=sentence):
            strategy_of(method, **changes).run(Deserted(), **{"rounds": 2, "progress": False, **arguments})
    assert {path.name: path.read_bytes() for path in folder.glob("*.json*")} == before


@pytest.mark.parametrize("settings", [{}, {"weights": "examples"}, {"stop_at": {"test_loss": 1.2}}, {"patience": 1}])
def test_an_ended_run_is_loaded_without_nodes(settings, tmp_path):
    """Nobody is connected."""
    settings = {"lr": 0.5, **settings} if "patience" in settings else settings
    whole = strategy_of("fedavg", **settings).run(grid_of("fedavg"), 12, out=tmp_path, progress=False)
    assert (len(whole.history) == 12) == ("stop_at" not in settings and "patience" not in settings)
    again = strategy_of("fedavg", replies=QUICK, **settings).run(
        grid_of("fedavg", num_nodes=0), 12, out=tmp_path, progress=False
    )
    assert plain(again.history) == plain(whole.history)
    assert_same_bits(again, whole)
    with pytest.raises(TooFewReplies, match="0 of the 5 nodes that are needed were there"):
        strategy_of("fedavg", replies=QUICK, **{**settings, "stop_at": None, "patience": None}).run(
            grid_of("fedavg", num_nodes=0), 13, out=tmp_path, progress=False
        )


def test_a_schedule_within_another_is_part_of_the_run(tmp_path):
    method = recipes.fedavg()

    def warm(num_rounds):
        schedule = WarmUp(Cosine(0.05, num_rounds), 3)
        strategy_of(method, lr=schedule, lr_decay=1.0).run(grid_of(method), 1, out=tmp_path, progress=False)

    warm(4)
    warm(4)
    with pytest.raises(ValueError, match=r"schedule is .*num_rounds=4.* there and .*num_rounds=40"):
        warm(40)


def test_bytes_are_those_that_were_packed():
    method = recipes.fedlada()
    result = strategy_of(method).run(grid_of(method), 1, progress=False)
    vector, row = 67 * 4, result.history[0]
    assert (row["bytes_down"], row["bytes_up"]) == (3 * 3 * vector, 3 * 2 * vector)
    assert row["bytes_by_vector"]["down/(envelope)"] == 3 * 3 * NPY_HEADER
    assert all(sizes == [3 * (vector + 128), 2 * (vector + 128)] for sizes in row["bytes_by_client"].values())


def without_drift(rows):
    return [{**row, "drift": None} for row in plain(rows)]


RESIDUALS = "int8:direction=int4:delta=top0.3:control_change=top0.5:v=log8+every2"


@pytest.mark.parametrize(("name", "codes"), [("fedlada", RESIDUALS), ("scaffold", RESIDUALS), ("fedavg", "int4")])
def test_codes_are_those_of_the_simulation(name, codes, tmp_path):
    """Second moments in some rounds alone, residuals on the nodes' disks, noise: the same bits and the same bytes."""
    method = METHODS[name].method()
    real = strategy_of(method, messages=codes).run(grid_of(method), 5, progress=False, out=tmp_path / "run")
    simulated = simulate(method, 5, messages=codes)
    assert_same_bits(real, simulated)
    # The server never sees what a client wanted to send, only what arrived: it cannot know the drift.
    assert [row["drift"] for row in real.history] == [None] * 5
    assert without_drift(real.history) == without_drift(simulated.history)
    for row, other in zip(real.history, simulated.history, strict=True):
        for path, size in other["bytes_by_vector"].items():
            if "(envelope)" not in path and path != "down/v":  # nodes are always sent it
                assert row["bytes_by_vector"][path] == size, path
    again = strategy_of(method, messages=codes).run(grid_of(method), 5, progress=False)
    assert_same_bits(again, simulated)


def test_a_damaged_message_in_codes_is_refused():
    method = recipes.fedlada()

    def damage(_who, asked, reply):
        if asked.metadata.message_type == "train":
            record = reply.content[wire.VECTORS]
            data = record["message"].numpy().copy()
            data[len(data) // 2] ^= 1
            record["message"] = Array(data)
        return [reply]

    grid = grid_of(method)
    grid.fault = damage
    with pytest.raises(TooFewReplies, match="checksum differs"):
        strategy_of(method, messages="lean", replies=QUICK).run(grid, 3, progress=False)


@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_weights_by_examples(name, tmp_path):
    """SCAFFOLD's step also depends on the weight of those who took part in that of all."""
    method = METHODS[name].method()
    real = strategy_of(method, weights="examples").run(grid_of(method, tmp_path), 3, progress=False)
    assert_same_bits(real, simulate(method, 3, weights="examples"))


def test_weights_by_examples_go_on_without_a_node_that_was_once_there(tmp_path):
    """Also from a folder of an older version, whose configuration does not name the codes."""
    method = recipes.fedavg()
    grid, settings = grid_of(method), {"weights": "examples", "cohort_size": None}
    strategy_of(method, **settings).run(grid, 2, out=tmp_path, progress=False)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["messages"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    grid.leave(4)
    strategy = strategy_of(method, replies=replace(QUICK, nodes=4), **settings)
    result = strategy.run(grid, 3, out=tmp_path, progress=False)
    assert [row["lost"] for row in result.history] == [[], [], [4]]
    assert_same_bits(result, replayed(result.history, method, weights="examples"))


def said_before(number):
    """Client 1 had this many samples when it was greeted; its replies are of those that it has now."""

    def fault(who, asked, reply):
        if who == 1 and asked.metadata.message_type == "query":
            reply.content[wire.HEADER]["num_examples"] = number
        return [reply]

    return fault


@pytest.mark.parametrize("name", ["fedcm", "scaffold"])
@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_new_samples_of_a_node_count_at_once(name, weights, tmp_path, caplog):
    """They are in the weights and steps of the same round, and in the folder: the bits are those of a simulation."""
    method, settings = METHODS[name].method(), {"weights": weights, "cohort_size": None}
    real = strategy_of(method, replies=QUICK, **settings).run(
        grid_of(method, tmp_path / "memory", said_before(2)), 3, out=tmp_path / "run", progress=False
    )
    simulated = simulate(method, 3, **settings)
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)
    assert f"client 1 had 2 samples and now has {len(CLIENTS[1])}" in caplog.text
    if weights == "examples":
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        assert config["examples"] == [len(own) for own in CLIENTS]


def test_a_run_resumes_with_the_new_samples_of_a_node_that_is_away(tmp_path):
    method, settings = recipes.scaffold(), {"weights": "examples", "cohort_size": None}
    grid = grid_of(method, tmp_path / "memory", said_before(2))
    strategy_of(method, **settings).run(grid, 2, out=tmp_path / "run", progress=False)
    grid.leave(1)
    strategy = strategy_of(method, replies=replace(QUICK, nodes=4), **settings)
    result = strategy.run(grid, 3, out=tmp_path / "run", progress=False)
    assert_same_bits(result, replayed(result.history, method, weights="examples"))


def test_a_node_comes_back_with_other_samples(tmp_path):
    """Also to a resumed run; client 1 is asked for the first time after it has come back."""
    method, settings = recipes.fedavg(), {"weights": "examples", "cohort_size": None, "replies": QUICK}
    drawn = cohorts.Scheduled([[0, 2, 3], [0, 1, 2], [1, 3, 4]])
    for stops in ([3], [1, 3]):
        grid, out = grid_of(method, fault=said_before(2)), tmp_path / str(len(stops))

        def come_back(_simulation, row, grid=grid):
            if row["round"] == 1:
                grid.fault = None
                grid.leave(1)
                grid.join(1)

        for rounds in stops:
            strategy = strategy_of(method, cohorts=drawn, **settings)
            result = strategy.run(grid, rounds, out=out, callbacks=[come_back], progress=False)
        assert [row["clients"] for row in result.history] == [[0, 2, 3], [0, 1, 2], [1, 3, 4]]
        assert_same_bits(result, replayed(result.history, method, weights="examples"))


def test_samples_claimed_in_a_reply_are_bounded_as_those_of_a_greeting():
    method, claimed = recipes.fedcm(), 2**40
    steps = -(-claimed // SETTINGS["batch_size"])

    def lies(kinds):
        def fault(who, asked, reply):
            if who == 1 and asked.metadata.message_type in kinds:
                if asked.metadata.message_type == "query":
                    reply.content[wire.HEADER]["num_examples"] = claimed
                else:
                    reply.content[wire.METRICS].update({"num-examples": claimed, "num-steps": steps})
            return [reply]

        return fault

    settings = {"cohort_size": 5, "weights": "examples", "replies": QUICK}
    greeted, replied = (
        strategy_of(method, **settings).run(grid_of(method, fault=lies(kinds)), 2, progress=False)
        for kinds in (("query", "train"), ("train",))
    )
    assert replied.history[0]["clients"] == [0, 1, 2, 3, 4]
    assert_same_bits(replied, greeted)


def test_a_wrong_evaluation_is_left_out(caplog):
    method = recipes.fedavg()
    wrong = {0: ("loss", float("nan")), 1: ("num-examples", 10**18), 2: ("accuracy", 7.0), 3: ("round", 9)}

    def fault(who, asked, reply):
        if asked.metadata.message_type == "evaluate" and who in wrong:
            name, value = wrong[who]
            reply.content[wire.HEADER if name == "round" else wire.METRICS][name] = value
        return [reply]

    (row,) = strategy_of(method, eval_clients_every=1).run(grid_of(method, fault=fault), 1, progress=False).history
    assert row["nodes_samples"] == len(CLIENTS[4])
    for sentence in ("its loss is nan", "on 1000000000000000000 samples", "its accuracy is 7.0", "it answers for"):
        assert sentence in caplog.text
    vector = 67 * 4
    # Evaluation is no part of the round's own traffic.
    assert (row["bytes_down"], row["nd_down"]) == (3 * vector, 1.0)
    assert row["bytes_by_vector"]["down/(evaluation)"] == 5 * (vector + NPY_HEADER)


def test_no_node_decides_an_evaluation(caplog):
    """One claims all samples there are, with no hit among them, one a loss beyond all measure."""
    method, said = recipes.fedavg(), {}
    lies = {0: {"num-examples": 2**40, "accuracy": 0.0}, 1: {"loss": 1e300}}

    def fault(who, asked, reply):
        if asked.metadata.message_type == "evaluate":
            said[who] = dict(reply.content[wire.METRICS]) | lies.get(who, {})
            reply.content[wire.METRICS].update(lies.get(who, {}))
        return [reply]

    (row,) = strategy_of(method, eval_clients_every=1).run(grid_of(method, fault=fault), 1, progress=False).history
    samples, losses, accuracies = (
        np.array([said[client][name] for client in range(5)]) for name in ("num-examples", "loss", "accuracy")
    )
    samples, losses = (np.minimum(one, 10 * np.median(one)) for one in (samples, losses))
    assert row["nodes_accuracy"] == pytest.approx(np.average(accuracies, weights=samples))
    assert row["nodes_loss"] == pytest.approx(np.average(losses, weights=samples))
    assert row["nodes_bounded"] == [0, 1]
    assert row["nodes_samples"] == samples.sum()
    assert "client 0 says samples 1.1e+12, counted as" in caplog.text
    assert "client 1 says loss 1e+300, counted as" in caplog.text


def test_losses_of_zero_do_not_hide_the_others():
    """Of a loss with a margin most nodes may have none left; the mean of the nodes' losses is still that of all."""
    said = {}

    def fault(who, asked, reply):
        if asked.metadata.message_type == "evaluate":
            if who != 3:
                reply.content[wire.METRICS]["loss"] = 0.0
            said[who] = dict(reply.content[wire.METRICS])
        return [reply]

    (row,) = strategy_of("fedavg", eval_clients_every=1).run(grid_of("fedavg", fault=fault), 1, progress=False).history
    samples, losses = (np.array([said[client][name] for client in range(5)]) for name in ("num-examples", "loss"))
    assert losses[3] > 0
    assert row["nodes_loss"] == pytest.approx(np.average(losses, weights=samples))
    assert row["nodes_bounded"] == []


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_a_node_that_claims_samples_decides_nothing(weights):
    """Its steps would make the global direction vanish, its weight would be all there is."""
    method, claimed = recipes.fedcm(), 2**40

    def fault(who, asked, reply):
        if who == 1 and asked.metadata.message_type == "query":
            reply.content[wire.HEADER]["num_examples"] = claimed
        elif who == 1 and asked.metadata.message_type == "train":
            steps = -(-claimed // SETTINGS["batch_size"])
            reply.content[wire.METRICS].update({"num-examples": claimed, "num-steps": steps})
        return [reply]

    settings = {"cohort_size": 5, "weights": weights, "replies": QUICK}
    honest, told, believed = (
        strategy_of(method, **settings, **options).run(grid_of(method, fault=lie), 2, progress=False)
        for lie, options in ((None, {}), (fault, {}), (fault, {"size_bound": None}))
    )
    assert told.history[1]["clients"] == [0, 1, 2, 3, 4]
    lengths = [float(one.server.shared[0]["direction"].norm()) for one in (honest, told, believed)]
    assert lengths[0] / 30 < lengths[1] < 30 * lengths[0]  # ten times the weight, and ten times the steps
    assert lengths[2] < 1e-6 * lengths[0]
    sizes = sorted(len(own) for own in CLIENTS)
    if weights == "examples":
        alone = simulate(method, 1, cohorts=cohorts.Scheduled([[1]]), cohort_size=None, weights=weights)
        first = [one.history[0]["train_loss"] for one in (alone, believed, told)]
        assert first[1] == pytest.approx(first[0], rel=1e-6)
        assert first[2] != pytest.approx(first[0], rel=1e-2)
    assert 10 * sizes[2] > sizes[-1], "nobody else is bounded"
    with pytest.raises(ValueError, match=r"size_bound must be at least 1, got 0.5"):
        strategy_of(method, size_bound=0.5)


def test_evaluation_on_the_nodes():
    method = recipes.fedavg()
    result = strategy_of(method, eval_clients_every=2).run(grid_of(method), 3, progress=False)
    assert [("nodes_loss" in row) for row in result.history] == [False, True, True]
    last = result.history[2]
    assert last["nodes_samples"] == len(Y)  # together the nodes hold what the server tests on
    assert last["nodes_accuracy"] == pytest.approx(last["test_accuracy"])
    assert last["nodes_loss"] == pytest.approx(last["test_loss"])


@pytest.mark.parametrize("settings", [{"stop_at": {"test_loss": 1.2}}, {"stop_after_seconds": 0.0}])
def test_the_nodes_evaluate_the_last_round_of_a_run_that_ends_early(settings, tmp_path):
    asked = []

    def note(who, asked_for, reply):
        asked.extend([who] if asked_for.metadata.message_type == "evaluate" else [])
        return [reply]

    strategy = strategy_of("fedavg", eval_clients_every=50, **settings)
    result = strategy.run(grid_of("fedavg", fault=note), 20, out=tmp_path, progress=False)
    assert len(result.history) < 20
    assert sorted(asked) == [0, 1, 2, 3, 4]
    assert result.history[-1]["nodes_loss"] == pytest.approx(result.history[-1]["test_loss"])
    assert load_run(tmp_path, small_net()).history[-1]["nodes_loss"] == result.history[-1]["nodes_loss"]


def test_the_evaluation_on_the_nodes_judges_a_run_without_test_data(tmp_path, capsys):
    method, rounds = recipes.fedavg(), 4
    strategy = MethodStrategy(small_net(), method, num_clients=5, eval_clients_every=2, **SETTINGS)
    history = strategy.run(grid_of(method), rounds, out=tmp_path).history
    assert history.judged_by == "nodes_accuracy"
    assert history.best() == max(history[1]["nodes_accuracy"], history[3]["nodes_accuracy"])
    _, best = load_run(tmp_path, small_net()).best()
    assert history[best - 1]["nodes_accuracy"] == history.best()
    lines = [line for line in capsys.readouterr().err.splitlines() if "round " in line and "training loss" in line]
    assert ["nodes loss" in line and "nodes accuracy" in line for line in lines] == [False, True, False, True]
    assert [is_evaluated(row) for row in history] == [False, True, False, True]
    assert "nodes accuracy" in str(history)


def test_test_data_judge_a_run_before_its_nodes_do(tmp_path, caplog):
    """Also where the nodes are evaluated first."""
    caplog.set_level("INFO")
    method = recipes.fedavg()
    for rounds in (2, 6):  # resumed
        strategy = strategy_of(method, eval_every=3, eval_clients_every=1)
        history = strategy.run(grid_of(method), rounds, out=tmp_path, progress=False).history
        assert history.judged_by == "test_accuracy"
        with safe_open(tmp_path / "checkpoints" / "best.safetensors", "pt") as file:
            assert file.metadata()["metric"] == "test_accuracy"
    assert [one for one in caplog.messages if "continues" in one] == ["the run continues after round 2"]


RISING = {"lr": lambda round: 0.05 * 4**round, "lr_decay": None}
"""Rates with which the loss goes up in the end."""


@pytest.mark.parametrize(
    "settings",
    [
        {"stop_at": {"test_accuracy": 0.4}},
        {"stop_at": {"test_loss": 0.9}, "eval_every": 2},
        {"patience": 2, **RISING},
        {"patience": 2, "best": "test_loss", "eval_every": 2, **RISING},
        {"stop_after_seconds": 0.0, "eval_every": 5},
    ],
    ids=["accuracy", "loss", "patience", "patience by loss", "seconds"],
)
def test_a_federation_ends_where_a_simulation_does(settings, tmp_path):
    method, rounds = recipes.scaffold(), 12
    simulated = simulate(method, rounds, out=tmp_path / "simulated", **settings)
    grid, out = grid_of(method, tmp_path / "memory"), tmp_path / "run"

    def run(fault=None):
        grid.fault = fault
        return strategy_of(method, **settings).run(grid, rounds, out=out, checkpoint_every=1, progress=False)

    def die(_who, asked, reply):
        if asked.metadata.message_type == "train" and asked.content[wire.HEADER]["round"] == 2:
            raise Killed
        return [reply]

    def fail(_who, asked, reply):
        assert asked.metadata.message_type == "query", "a run that has ended asks nobody"
        return [reply]

    if len(simulated.history) > 1:
        with pytest.raises(Killed):
            run(die)
    real = run()
    assert len(simulated.history) < rounds
    assert real.stopped == simulated.stopped
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)
    assert real.history.judged_by == simulated.history.judged_by
    kept = [load_run(folder, small_net()).best() for folder in (out, tmp_path / "simulated")]
    assert kept[0][1] == kept[1][1]
    assert load_run(out, small_net()).history.judged_by == simulated.history.judged_by
    if "stop_after_seconds" not in settings:  # a time that counts anew
        again = simulate(method, rounds, out=tmp_path / "simulated", **settings)
        assert run(fail).stopped == again.stopped


def test_the_evaluation_on_the_nodes_ends_a_run():
    method = recipes.fedavg()
    settings = {"num_clients": 5, "eval_clients_every": 1, **SETTINGS}
    whole = MethodStrategy(small_net(), method, **settings).run(grid_of(method), 4, progress=False).history
    target = whole[1]["nodes_loss"]
    stopped = MethodStrategy(small_net(), method, stop_at={"nodes_loss": target}, **settings)
    assert len(stopped.run(grid_of(method), 4, progress=False).history) == 2
    settings |= {"patience": 2, "best": "nodes_loss", **RISING}
    result = MethodStrategy(small_net(), method, **settings).run(grid_of(method), 12, progress=False)
    assert result.stopped.startswith("nodes loss did not improve in 2 evaluations")


@pytest.mark.parametrize(
    "settings", [{"stop_at": {"nodes_loss": 1.0}}, {"best": "nodes_loss"}, {"best": "test_recall"}]
)
def test_a_metric_that_no_round_has_is_refused_before_nodes_are_waited_for(settings):
    with pytest.raises(ValueError, match="is not measured in this run, which has train_loss, test_loss"):
        strategy_of("fedavg", **settings).run(grid_of("fedavg", num_nodes=0), 1, progress=False)
    without_data = MethodStrategy(small_net(), "fedavg", num_clients=5, patience=1, **SETTINGS)
    with pytest.raises(ValueError, match="'test_accuracy' is not measured in this run"):
        without_data.run(grid_of("fedavg", num_nodes=0), 1, progress=False)


def test_the_apps_of_twenty_lines():
    """`server_app` and `client_app` as Flower calls them."""
    done = []

    def note(_simulation, row):
        done.append(row["round"])

    app = server_app(small_net(), "fedcm", num_clients=5, rounds=2, callbacks=[note], **SETTINGS)
    app(grid_of("fedcm"), None)
    assert done == [1, 2]


def test_a_dtype_may_be_named_as_in_a_simulation():
    settings = {"dtype": "float64", "cohort_size": None}
    real = strategy_of("fedavg", **settings).run(grid_of("fedavg", dtype="float64"), 2, progress=False)
    assert real.server.params.dtype == torch.float64
    assert_same_bits(real, simulate("fedavg", 2, **settings))
    for wrong in (lambda: strategy_of("fedavg", dtype="half"), lambda: grid_of("fedavg", dtype="half")):
        with pytest.raises(ValueError, match="dtype must be one of float32, float64"):
            wrong()


def test_an_app_refuses_settings_that_it_does_not_have():
    with pytest.raises(TypeError, match=r"server_app\(\) got an unexpected keyword argument 'eval_evry'"):
        server_app(small_net(), "fedavg", num_clients=5, eval_evry=2)
    with pytest.raises(TypeError, match=r"server_app\(\) missing a required (keyword-only )?argument: 'num_clients'"):
        server_app(small_net(), "fedavg")


def test_an_app_may_run_without_progress(capsys):
    for progress in (False, True):
        app = server_app(small_net(), "fedavg", num_clients=5, rounds=1, progress=progress, **SETTINGS)
        app(grid_of("fedavg"), None)
        assert ("round 1/1" in capsys.readouterr().err) == progress


def test_flowers_own_form():
    method = recipes.fedlada()
    seen = []

    def evaluate(round, arrays):
        seen.append((round, list(arrays)))
        return MetricRecord({"mine": 1.5})

    first = small_net(seed=3)
    strategy = MethodStrategy(small_net(), method, num_clients=len(CLIENTS), test=(X, Y), **SETTINGS)
    result = strategy.start(grid_of(method), ArrayRecord(first.state_dict()), num_rounds=2, evaluate_fn=evaluate)
    assert seen == [(round, list(first.state_dict())) for round in (1, 2)]
    assert result.evaluate_metrics_serverapp[2]["test_mine"] == 1.5
    assert set(result.train_metrics_clientapp) == {1, 2}
    second = small_net()
    second.load_state_dict(result.arrays.to_torch_state_dict())


def vector_of(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def test_an_answer_in_parameters_is_where_the_client_ended():
    """Both ways by itself: in a run a wrong sign is turned round twice, and the wrapper sees another model."""
    params, delta = torch.linspace(-1, 2, 67), torch.linspace(3, -4, 67)
    broadcast, upload = Broadcast(params, ()), Upload(delta, ())
    record = wire.sent_upload(upload, broadcast, "params")
    assert torch.equal(torch.from_numpy(record["params"].numpy()), params - delta)
    received = wire.received_upload(record, broadcast, upload, "params")
    torch.testing.assert_close(received.delta, delta, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedadam"])
def test_central_differential_privacy(name):
    """Flower's wrapper clips what each client changed and puts noise on the mean, before the server's own step."""
    method = METHODS[name].method()
    plainly = strategy_of(method).run(grid_of(method), 1, progress=False)
    cases = {}
    for norm, noise in ((1e9, 0.0), (1e-3, 0.0), (1e-3, 5.0)):
        strategy = strategy_of(method)
        wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, noise, norm, SETTINGS["cohort_size"])
        cases[norm, noise] = strategy.run(grid_of(method), 1, progress=False, around=wrapper)
    start = vector_of(small_net())
    moved = {case: float((vector_of(result.model) - start).norm()) for case, result in cases.items()}
    # Without noise and with a wide norm it is the method itself, to rounding.
    torch.testing.assert_close(vector_of(cases[1e9, 0.0].model), vector_of(plainly.model), rtol=1e-5, atol=1e-6)
    if name != "fedadam":  # whose step is of one length, whatever it is given
        assert moved[1e-3, 0.0] <= 1e-3 * 1.01 * method.server.lr
    assert moved[1e-3, 5.0] > moved[1e-3, 0.0]


def test_differential_privacy_on_the_nodes():
    """`LocalDpMod` adds its noise before anything leaves the node; clipping on the nodes works with its wrapper."""
    method = recipes.fedavg()
    noisy = grid_of(method, mods=[LocalDpMod(clipping_norm=1e-6, sensitivity=1.0, epsilon=1.0, delta=1e-5)])
    strategy = strategy_of(method)
    wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e9, SETTINGS["cohort_size"])
    result = strategy.run(noisy, 1, progress=False, around=wrapper)
    assert float((vector_of(result.model) - vector_of(small_net())).norm()) > 1.0
    clipping = grid_of(method, mods=[fixedclipping_mod])
    strategy = strategy_of(method)
    wrapper = DifferentialPrivacyClientSideFixedClipping(strategy, 0.0, 1e-3, SETTINGS["cohort_size"])
    result = strategy.run(clipping, 1, progress=False, around=wrapper)
    assert float((vector_of(result.model) - vector_of(small_net())).norm()) <= 1.01e-3


@pytest.mark.parametrize("name", ["scaffold", "fedcm", "fedadam_amended", "localadam", "fedlada"])
def test_wrappers_are_refused_where_they_would_not_cover_what_is_sent(name):
    method = METHODS[name].method()
    strategy = strategy_of(method)
    wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, SETTINGS["cohort_size"])
    with pytest.raises(ValueError, match="know one vector down and one up"):
        strategy.run(grid_of(method), 1, progress=False, around=wrapper)
    with pytest.raises(ValueError, match="scale their noise for equal weights"):
        strategy_of(method, weights="examples").run(grid_of(method), 1, around=wrapper)


@pytest.mark.parametrize("name", ["feddyn", "fedspeed"])
def test_a_memory_of_the_clients_is_refused_with_a_wrapper(name):
    strategy = strategy_of(METHODS[name].method())
    wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, SETTINGS["cohort_size"])
    with pytest.raises(ValueError, match=f"do not cover what clients of {name} remember: use FedAvg"):
        strategy.run(grid_of(METHODS[name].method()), 1, progress=False, around=wrapper)


@pytest.mark.parametrize(("name", "changes"), [("fedexp", {}), ("fednova", {}), ("fedavg", {"combiner": "median"})])
def test_a_combiner_is_not_dropped_for_a_wrapper(name, changes):
    strategy = strategy_of(METHODS[name].method(), **changes)
    wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, SETTINGS["cohort_size"])
    with pytest.raises(ValueError, match=r"wrappers take a plain mean: .* would have no effect"):
        strategy.run(grid_of(METHODS[name].method()), 1, progress=False, around=wrapper)


def test_keys_are_never_overwritten(tmp_path):
    script = Path(__file__).parents[2] / "examples" / "flower-app" / "certificates.py"
    command = [sys.executable, str(script), str(tmp_path / "keys"), "--nodes", "1"]
    subprocess.run(command, check=True, capture_output=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    assert set(before) == {"ca.crt", "ca.key", "server.pem", "server.key", "node-0", "node-0.pub"}
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert "would be overwritten: choose another folder" in again.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()} == before
