"""What a federation does when nodes are late, wrong, double, hostile or gone; each fault has a line in the log."""

from __future__ import annotations

import io
import re
import shutil
import struct
import threading
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from torch import nn

from fedlada import TrainingDiverged, cohorts, recipes
from fedlada.flower import (
    InProcessGrid,
    MethodStrategy,
    Replies,
    TooFewReplies,
    client_app,
    engine,
    inbox,
    nodes,
    rounds,
    wire,
)
from small_federation import (
    QUICK,
    SETTINGS,
    X,
    Y,
    assert_same_bits,
    grid_of,
    load,
    plain,
    replayed,
    simulate,
    strategy_of,
)
from tasks import small_net

METHOD = recipes.scaffold()
ROUNDS = 5


def in_round(round, client, change):
    """A fault of one client in one round of training; `change` turns its reply into what arrives."""

    def fault(who, asked, reply):
        header = asked.content.config_records.get(wire.HEADER, {})
        hit = asked.metadata.message_type == "train" and who == client and header.get("round") == round
        return change(reply) if hit else [reply]

    return fault


def vectors(reply, change):
    """The reply with its first vector changed."""
    record = reply.content[wire.VECTORS]
    name = next(iter(record))
    record[name] = change(record[name])
    return [reply]


def of_numbers(change):
    return lambda reply: vectors(reply, lambda array: Array(change(array.numpy())))


def without(name):
    def change(reply):
        del reply.content[name]
        return [reply]

    return change


def field(name, value, record=wire.HEADER):
    def change(reply):
        reply.content[record][name] = value
        return [reply]

    return change


def lying_array(array):
    """Says it is what is expected, and promises a terabyte in its own header."""
    huge = Array(np.zeros(2, np.float32)).data.replace(b"(2,), ", b"(250000000000,), ")
    return Array(array.dtype, array.shape, array.stype, huge)


def zip_array(array):
    """A zip archive of exactly the right length: numpy's own reader would open it."""
    smallest = io.BytesIO()
    zipfile.ZipFile(smallest, "w").close()
    padded = io.BytesIO()
    with zipfile.ZipFile(padded, "w") as archive:
        archive.comment = b"c" * (len(array.data) - len(smallest.getvalue()))
    return Array(array.dtype, array.shape, array.stype, padded.getvalue())


def other_stype(array):
    return Array(array.dtype, array.shape, "torch", array.data)


def petabytes(array):
    huge = Array(np.zeros(2, np.uint8)).data.replace(b"(2,), ", b"(2000000000000000,), ")
    return Array(array.dtype, array.shape, array.stype, huge)


def too_long(_array):
    return Array(np.zeros(1 << 21, np.uint8))


def deep_header(_array):
    """A header that is nested deeper than anybody can follow."""
    head = b'{"about":{"a":' + b"[" * 960 + b"]" * 960 + b'},"vectors":{}}'
    body = struct.pack("<4sHI", b"FLDM", 1, len(head)) + head
    return Array(np.frombuffer(body + struct.pack("<I", zlib.crc32(body)), np.uint8))


def plant_nan(numbers):
    numbers[3] = np.nan
    return numbers


FAULTS = {
    "is lost": (lambda _reply: [], "lost", "client 1 did not answer within 0.3 s"),
    "nan": (of_numbers(plant_nan), "refused", "holds a NaN or an infinity"),
    "shape": (of_numbers(lambda numbers: numbers[:-1]), "refused", "of shape (66,), not float32 of (67,)"),
    "precision": (of_numbers(lambda numbers: numbers.astype(np.float64)), "refused", "is float64 of shape"),
    "liar": (lambda reply: vectors(reply, lying_array), "refused", "bytes, which are not those of its shape"),
    "zip": (lambda reply: vectors(reply, zip_array), "refused", "the vector delta cannot be read: the magic string"),
    "stype": (lambda reply: vectors(reply, other_stype), "refused", "is written as 'torch' and not as 'numpy.ndarray'"),
    "no vectors": (without(wire.VECTORS), "refused", "holds the vector records none"),
    "no header": (without(wire.HEADER), "refused", "has no record 'fedlada'"),
    "no metrics": (without(wire.METRICS), "refused", "its metric 'num-examples' must be of type int, got None"),
    "stale": (field("round", 2), "refused", "it answers for client 1 in round 2"),
    "another client": (field("client", 0), "refused", "it answers for client 0 in round 3"),
    "another run": (field("run", "x"), "refused", "of the run x"),
    "another format": (field("format", 99), "refused", "install the same version of fedlada"),
    "steps": (field("num-steps", 1, wire.METRICS), "refused", "it says num-steps 1"),
    "data grew": (field("num-examples", 10**6, wire.METRICS), "refused", "its 1000000 samples make 166667"),
    "no samples": (field("num-examples", 0, wire.METRICS), "refused", "it says it has 0 samples"),
    "many lines": (field("run", "x\ny\x1b[2J" + "z" * 10**6), "refused", "of the run x y?[2Jzzz"),
    "not a number": (field("train-loss", 1, wire.METRICS), "refused", "'train-loss' must be of type float"),
}


@pytest.fixture(scope="module")
def healthy():
    return simulate(METHOD, ROUNDS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_client_is_left_out_of_its_round_alone(name, tmp_path, caplog):
    """Round 3 goes on without it, its memory stays what it was, and the rest is what the simulation of it gives."""
    change, place, said = FAULTS[name]
    everyone = {"cohort_size": None}
    grid = grid_of(METHOD, tmp_path, in_round(3, 1, change))
    real = strategy_of(METHOD, replies=QUICK, **everyone).run(grid, ROUNDS, progress=False)
    assert [row["clients"] for row in real.history] == [[0, 1, 2, 3, 4]] * 2 + [[0, 2, 3, 4]] + [[0, 1, 2, 3, 4]] * 2
    assert real.history[2][place] == [1]
    assert said in caplog.text
    assert_same_bits(real, replayed(real.history, METHOD))


CODED_FAULTS = {
    "stype": (other_stype, "is written as 'torch' and not as 'numpy.ndarray'"),
    "zip": (zip_array, "its array 'message' cannot be read: the magic string"),
    "petabytes": (petabytes, "17 bytes, which are not those of its shape"),
    "too long": (too_long, "bytes, and at most"),
    "deep": (deep_header, "cannot be read"),
}


def test_hostile_bytes_in_codes_are_refused(caplog):
    """A client for each kind, in rounds 2 and 3; the run goes on to the bits of a simulation without them."""
    method, kinds = recipes.fedavg(), list(CODED_FAULTS.values())

    def fault(who, asked, reply):
        round = asked.content[wire.HEADER].get("round", 0)
        hit = {(2, 1): 0, (2, 2): 1, (2, 3): 2, (3, 1): 3, (3, 2): 4}.get((round, who))
        return [reply] if hit is None else vectors(reply, kinds[hit][0])

    strategy = strategy_of(method, messages="int8", replies=QUICK, cohort_size=None)
    real = strategy.run(grid_of(method, fault=fault), 4, progress=False)
    assert [row["refused"] for row in real.history] == [[], [1, 2, 3], [1, 2], []]
    for _, sentence in kinds:
        assert sentence in caplog.text
    assert_same_bits(real, replayed(real.history, method, messages="int8"))


def test_absurd_sizes_and_unreadable_answers_do_not_end_a_run(caplog):
    """Samples beyond counting, an update whose norm overflows, an answer that Flower itself cannot read."""
    method, double = recipes.fedavg(), torch.float64

    def fault(who, asked, reply):
        if asked.metadata.message_type == "query" and who == 3:
            reply.content[wire.HEADER]["num_examples"] = 2**63 - 1
        if asked.metadata.message_type == "train" and who == 1:
            reply.content[wire.VECTORS]["delta"] = Array(np.full(67, 1e200))
        if asked.metadata.message_type == "train" and who == 2:
            broken.add(asked.metadata.message_id)
        return [reply]

    grid, broken = grid_of(method, fault=fault, dtype=double), set()
    honest = grid.pull_messages

    def pull(message_ids):
        if broken & set(message_ids):
            raise ValueError("Unknown object type")
        return honest(message_ids)

    grid.pull_messages = pull
    strategy = strategy_of(method, replies=replace(QUICK, nodes=4), cohort_size=None, dtype=double)
    (row,) = strategy.run(grid, 1, progress=False).history
    assert (row["clients"], row["refused"], row["lost"]) == ([0, 4], [1], [2, 3])
    assert "it says it has 9223372036854775807 samples" in caplog.text
    assert "client 1 is refused: the norm of its update is infinite" in caplog.text
    assert "cannot be read and is dropped: Unknown object type" in caplog.text


def test_a_greeting_that_cannot_be_read_is_not_asked_for_again_at_once():
    broken, honest = [], (grid := grid_of("fedavg")).pull_messages

    def pull(message_ids):
        if set(broken) & set(message_ids):
            raise ValueError("Unknown object type")
        return honest(message_ids)

    def fault(who, asked, reply):
        broken.extend([asked.metadata.message_id] if who == 2 else [])
        return [reply]

    grid.fault, grid.pull_messages = fault, pull
    with pytest.raises(TooFewReplies, match=r"4 of the 5 nodes .* its answer cannot be read"):
        strategy_of("fedavg", replies=QUICK).run(grid, 1, progress=False)
    assert len(broken) == 1


class Stalled:
    """Messages whose replies are announced and never uploaded: Flower's grid waits for them inside a pull."""

    def __init__(self, grid, is_hit):
        self.is_hit, self.ids, self.given_up = is_hit, set(), threading.Event()
        grid.fault, self.honest, grid.pull_messages = self.announce, grid.pull_messages, self.pull

    def announce(self, who, asked, reply):
        if self.is_hit(who, asked):
            self.ids.add(asked.metadata.message_id)
        return [reply]

    def pull(self, message_ids):
        if self.ids & set(message_ids):
            self.given_up.wait(30)
        return self.honest(message_ids)


@pytest.fixture
def stalled(monkeypatch):
    """A grid with stalled uploads, which end with the test."""
    monkeypatch.setattr(inbox, "LAST_PASS", 0.3)
    made = []
    yield lambda grid, is_hit: made.append(Stalled(grid, is_hit))
    for one in made:
        one.given_up.set()


@pytest.mark.parametrize("on_missing", ["drop", "wait"])
def test_an_upload_that_never_ends_holds_up_nobody(on_missing, stalled, tmp_path, caplog):
    """Client 0 is fetched first; the replies behind it are taken, and the round ends at its limit."""
    grid = grid_of(METHOD, tmp_path)
    stalled(grid, lambda who, asked: who == 0 and asked.content[wire.HEADER].get("round") == 2)
    policy = replace(QUICK, on_missing=on_missing)
    real = strategy_of(METHOD, replies=policy, cohort_size=None).run(grid, 3, progress=False)
    assert [row["lost"] for row in real.history] == [[], [0], []]
    assert [row["clients"] for row in real.history] == [[0, 1, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert "client 0 did not answer within 0.3 s" in caplog.text
    assert_same_bits(real, replayed(real.history, METHOD))


def test_a_greeting_that_never_ends_holds_up_nobody(stalled):
    grid = grid_of("fedavg")
    stalled(grid, lambda who, asked: who == 2 and asked.metadata.message_type == "query")
    strategy = strategy_of("fedavg", replies=replace(QUICK, nodes=4), cohort_size=None)
    (row,) = strategy.run(grid, 1, progress=False).history
    assert (row["clients"], row["lost"]) == ([0, 1, 3, 4], [2])


def test_a_reply_counts_for_the_message_that_it_was_fetched_for(caplog):
    """Client 1 answers a message of client 0, whose own reply is fetched later."""
    stolen = []

    def fault(who, asked, reply):
        if asked.metadata.message_type == "train" and who == 0:
            stolen.append(Message(reply.content, reply_to=asked))
            return []
        return stolen if asked.metadata.message_type == "train" and who == 1 else [reply]

    strategy = strategy_of("fedavg", replies=QUICK, cohort_size=None)
    (row,) = strategy.run(grid_of("fedavg", fault=fault), 1, progress=False).history
    assert (row["clients"], row["lost"]) == ([2, 3, 4], [0, 1])
    assert "came twice or unasked" in caplog.text


def test_an_app_that_raises_an_error_is_not_asked_again_in_its_round(caplog):
    calls = []

    def load_badly(context):
        calls.extend([1] if context.node_config["partition-id"] == 1 else [])
        if calls == [1, 1, 1] and context.node_config["partition-id"] == 1:  # the greeting, round 1, round 2
            raise RuntimeError("the disk is on fire")
        return load(context)

    grid = InProcessGrid(client_app(small_net(), load_badly, method="fedavg"), 5)
    strategy = strategy_of("fedavg", replies=replace(QUICK, on_missing="wait"), cohort_size=None)
    real = strategy.run(grid, 3, progress=False)
    assert [row["refused"] for row in real.history] == [[], [1], []]
    assert "client 1 is refused: loading this node's data failed (RuntimeError); see the node's log" in caplog.text


def test_an_answer_that_comes_twice_counts_once(tmp_path, caplog, healthy):
    twice = in_round(3, healthy.history[2]["clients"][0], lambda reply: [reply, reply])
    real = strategy_of(METHOD).run(grid_of(METHOD, tmp_path, twice), ROUNDS, progress=False)
    assert plain(real.history) == plain(healthy.history)
    assert_same_bits(real, healthy)
    assert "came twice or unasked" in caplog.text


def test_an_answer_that_comes_too_late_is_not_looked_at(tmp_path, caplog):
    held = []

    def late(who, asked, reply):
        if asked.metadata.message_type != "train" or who != 1:
            return [reply]
        held.append(reply)
        # Its first answer arrives together with its second, a round later.
        return [] if len(held) == 1 else [reply, held[0]]

    strategy = strategy_of(METHOD, replies=QUICK, cohort_size=None)
    real = strategy.run(grid_of(METHOD, tmp_path, late), ROUNDS, progress=False)
    assert real.history[0]["lost"] == [1]
    assert [row["clients"] for row in real.history[1:]] == [[0, 1, 2, 3, 4]] * 4
    assert_same_bits(real, replayed(real.history, METHOD))
    assert "did not answer within" in caplog.text
    assert "came twice or unasked" in caplog.text


def test_who_waits_asks_again(tmp_path, caplog, healthy):
    """With "wait" the same round is asked again, to the bits of a run without faults."""
    asked = []

    def forget_the_first(reply):
        asked.append(reply)
        return [] if len(asked) == 1 else [reply]

    forgets = in_round(3, healthy.history[2]["clients"][0], forget_the_first)
    policy = Replies(on_missing="wait", time_limit=0.3, patience=20)
    real = strategy_of(METHOD, replies=policy).run(grid_of(METHOD, tmp_path, forgets), ROUNDS, progress=False)
    assert plain(real.history) == plain(healthy.history)
    assert_same_bits(real, healthy)
    assert "asked again" in caplog.text


NEEDS_ALL = replace(QUICK, minimum=5)


def from_round(round, client, change=lambda _reply: []):
    """A fault of one client in this and all later rounds of training."""

    def fault(who, asked, reply):
        header = asked.content.config_records.get(wire.HEADER, {})
        hit = asked.metadata.message_type == "train" and who == client and header.get("round") >= round
        return change(reply) if hit else [reply]

    return fault


def test_a_round_with_too_few_answers_is_skipped_and_loses_nothing(tmp_path, caplog):
    """Server and clients stay as they were: the bits are those of a simulation whose third cohort is empty."""
    grid = grid_of(METHOD, tmp_path / "memory", in_round(3, 1, lambda _reply: []))
    strategy = strategy_of(METHOD, replies=NEEDS_ALL, cohort_size=None)
    real = strategy.run(grid, ROUNDS, out=tmp_path / "run", progress=False)
    assert [row["clients"] for row in real.history] == [[0, 1, 2, 3, 4]] * 2 + [[]] + [[0, 1, 2, 3, 4]] * 2
    assert real.history[2]["lost"] == [0, 1, 2, 3, 4]
    assert "round 3 has 4 usable answers and needs 5: 1 clients did not answer" in caplog.text
    assert_same_bits(real, replayed(real.history, METHOD))


def test_a_run_resumes_after_a_skipped_round_to_the_same_bits(tmp_path):
    out, grid = tmp_path / "run", grid_of(METHOD, tmp_path / "memory", in_round(2, 1, lambda _reply: []))
    settings = {"out": out, "checkpoint_every": 1, "progress": False}
    strategy_of(METHOD, replies=NEEDS_ALL, cohort_size=None).run(grid, 2, **settings)
    real = strategy_of(METHOD, replies=NEEDS_ALL, cohort_size=None).run(grid, 4, **settings)
    assert [len(row["clients"]) for row in real.history] == [5, 0, 5, 5]
    assert_same_bits(real, replayed(real.history, METHOD))


def test_three_rounds_in_a_row_with_too_few_answers_end_the_run_and_lose_nothing(tmp_path):
    grid = grid_of(METHOD, tmp_path / "memory", from_round(2, 1))
    strategy = strategy_of(METHOD, replies=NEEDS_ALL, cohort_size=None)
    for last in (4, 6):  # each start counts anew
        with pytest.raises(TooFewReplies, match=f"round {last} has 4 usable answers and needs 5.* round 3 in a row"):
            strategy.run(grid, 8, out=tmp_path / "run", progress=False)
    grid.fault = None
    whole = strategy.run(grid, 8, out=tmp_path / "run", progress=False)
    assert [len(row["clients"]) for row in whole.history] == [5, 0, 0, 0, 0, 5, 5, 5]
    assert_same_bits(whole, replayed(whole.history, METHOD))


def test_a_round_that_counts_ends_a_row_of_skipped_ones():
    def fault(who, asked, reply):
        is_lost = who == 1 and asked.content[wire.HEADER].get("round", 3) % 3 != 0
        return [] if is_lost else [reply]

    strategy = strategy_of("fedavg", replies=NEEDS_ALL, cohort_size=None)
    real = strategy.run(grid_of("fedavg", fault=fault), 6, progress=False)
    assert [len(row["clients"]) for row in real.history] == [0, 0, 5, 0, 0, 5]


def test_a_minimum_is_never_lowered(caplog):
    """Cohorts of 0, 1 and 2 clients, two answers needed: nobody is asked where they cannot count."""
    drawn = cohorts.Scheduled([[], [3], [0, 1], [1], [2], [4]])
    method, trained = recipes.fedavg(), []

    def note(who, asked, reply):
        trained.extend([who] if asked.metadata.message_type == "train" else [])
        return [reply]

    strategy = strategy_of(method, replies=replace(QUICK, minimum=2), cohorts=drawn, cohort_size=None)
    real = strategy.run(grid_of(method, fault=note), 6, progress=False)
    assert [row["clients"] for row in real.history] == [[], [], [0, 1], [], [], []]
    assert [row["idle"] for row in real.history] == [[], [3], [], [1], [2], [4]]
    assert trained == [0, 1]
    assert "round 2 has a cohort of 1 and needs 2. The round is skipped" in caplog.text  # three in a row end no run
    assert_same_bits(real, replayed(real.history, method))


def test_empty_cohorts_are_no_failures():
    """Four in a row, as a simulation may draw them."""
    drawn = cohorts.Scheduled([[], [], [], [], [0, 1]])
    strategy = strategy_of("fedavg", replies=QUICK, cohorts=drawn, cohort_size=None)
    real = strategy.run(grid_of("fedavg"), 5, progress=False)
    assert plain(real.history) == plain(simulate("fedavg", 5, cohorts=drawn, cohort_size=None).history)


def test_a_round_without_its_nodes_is_skipped(caplog):
    grid = grid_of("fedavg")

    def move(_simulation, row):
        if row["round"] == 1:
            grid.leave(1)
            grid.leave(2)
        if row["round"] == 2:
            grid.join(1)
            grid.join(2)

    strategy = strategy_of("fedavg", replies=replace(QUICK, minimum=4), cohort_size=None)
    real = strategy.run(grid, 3, callbacks=[move], progress=False)
    assert [(row["clients"], row["lost"], row["idle"]) for row in real.history] == [
        ([0, 1, 2, 3, 4], [], []),
        ([], [1, 2], [0, 3, 4]),
        ([0, 1, 2, 3, 4], [], []),
    ]
    assert "round 2 has 3 of its 5 clients connected and needs 4. The round is skipped" in caplog.text


def test_who_is_refused_is_asked_again_where_answers_are_too_few():
    """The app of client 1 raises an error twice: the third answer is as good as any other."""
    method, asked, broken = recipes.fedavg(), [], without(wire.VECTORS)
    policy = Replies(minimum=5, time_limit=0.2, patience=20)

    def fail_twice(reply):
        asked.append(reply)
        return broken(reply) if len(asked) < 3 else [reply]

    grid = grid_of(method, fault=in_round(2, 1, fail_twice))
    real = strategy_of(method, replies=policy, cohort_size=None).run(grid, 2, progress=False)
    assert [row["refused"] for row in real.history] == [[], []]
    assert_same_bits(real, simulate(method, 2, cohort_size=None))
    grid.fault = from_round(2, 1, broken)
    with pytest.raises(TooFewReplies, match=r"1 were refused for other reasons; client 1: .* set a smaller `minimum`"):
        strategy_of(method, replies=replace(policy, patience=0.5), cohort_size=None).run(grid, 4, progress=False)


def test_a_client_that_diverges_is_told_apart_from_broken_ones():
    method = recipes.fedavg()

    def fault(who, asked, reply):
        change = field("status", "diverged") if who == 0 else without(wire.VECTORS)
        return change(reply) if asked.metadata.message_type == "train" else [reply]

    strategy = strategy_of(method, replies=replace(QUICK, patience=0.2), cohort_size=None)
    with pytest.raises(TooFewReplies, match="1 had a NaN or an infinity, 4 were refused for other reasons"):
        strategy.run(grid_of(method, fault=fault), 3, progress=False)


@pytest.mark.parametrize("told", [[1], [1, 2]])
def test_few_clients_cannot_say_that_the_run_has_diverged(told, caplog):
    """All others are silent in round 1: it is skipped, and the run goes on."""

    def fault(who, asked, reply):
        if asked.content[wire.HEADER].get("round") != 1:
            return [reply]
        return field("status", "diverged")(reply) if who in told else []

    strategy = strategy_of("fedavg", replies=replace(QUICK, patience=0.2), cohort_size=None)
    real = strategy.run(grid_of("fedavg", fault=fault), 2, progress=False)
    assert [row["refused"] for row in real.history] == [told, []]
    assert f"{len(told)} had a NaN or an infinity" in caplog.text


def test_most_clients_can_say_that_the_run_has_diverged():
    def fault(who, asked, reply):
        if asked.metadata.message_type != "train":
            return [reply]
        return field("status", "diverged")(reply) if who in (1, 2, 3) else []

    strategy = strategy_of("fedavg", replies=replace(QUICK, patience=0.2), cohort_size=None)
    with pytest.raises(TrainingDiverged, match="the updates of all 3 clients were NaN or infinite"):
        strategy.run(grid_of("fedavg", fault=fault), 1, progress=False)


def test_the_only_client_can_say_that_the_run_has_diverged():
    grid = grid_of("fedavg", num_nodes=1, fault=in_round(1, 0, field("status", "diverged")))
    strategy = MethodStrategy(small_net(), "fedavg", num_clients=1, replies=QUICK, **{**SETTINGS, "cohort_size": 1})
    with pytest.raises(TrainingDiverged, match="the updates of all 1 clients were NaN or infinite"):
        strategy.run(grid, 1, progress=False)


@pytest.mark.parametrize("is_gone", [False, True])
def test_who_waits_goes_on_when_patience_is_over(is_gone):
    """A silent node and one that has left are the same: the round has one deadline, then it needs the minimum."""
    method = recipes.fedavg()
    grid = grid_of(method)

    def fault(who, asked, reply):
        if asked.metadata.message_type != "train" or who != 1:
            return [reply]
        if is_gone:
            grid.leave(1)
        return []

    grid.fault = fault
    policy = Replies(time_limit=0.1, patience=0.4, on_missing="wait")
    real = strategy_of(method, replies=policy, cohort_size=None).run(grid, 2, progress=False)
    assert [row["lost"] for row in real.history] == [[1], [1]]
    needs_all = strategy_of(method, replies=replace(policy, minimum=5, nodes=4), cohort_size=None)
    with pytest.raises(TooFewReplies, match="has 4 "):
        needs_all.run(grid, 3, progress=False)


class Clock:
    """A time that passes only where somebody waits."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("way", ["silent", "gone", "comes back late"])
def test_no_round_outlasts_its_patience(way, monkeypatch):
    clock, asked, ended = Clock(), [], []
    for module in (engine, inbox, nodes, rounds):
        monkeypatch.setattr(module, "time", clock)
    grid = grid_of("fedavg")

    def fault(who, message, reply):
        if message.metadata.message_type != "train" or who != 1:
            return [reply]
        asked.append(clock.now)
        if way != "silent":
            grid.leave(1)
        return []

    def sleep(seconds):
        clock.now += seconds
        if way == "comes back late" and clock.now > 24 and len(asked) == 1:
            grid.join(1)

    def note(simulation, _row):
        ended.append((clock.now, simulation.engine.nodes.deadline))

    clock.sleep, grid.fault = sleep, fault
    policy = Replies(time_limit=10, patience=25, on_missing="wait")
    real = strategy_of("fedavg", replies=policy, cohort_size=None).run(grid, 1, callbacks=[note], progress=False)
    assert real.history[0]["lost"] == [1]
    assert len(asked) == (1 if way == "gone" else 2)
    ((end, deadline),) = ended
    assert end == pytest.approx(deadline)


def test_fewer_nodes_than_needed():
    grid = grid_of(METHOD)
    grid.leave(2)
    with pytest.raises(TooFewReplies, match=r"4 of the 5 nodes that are needed were there within 0.6 s"):
        strategy_of(METHOD, replies=QUICK).run(grid, 1, progress=False)
    real = strategy_of(METHOD, replies=replace(QUICK, nodes=4), cohort_size=None).run(grid, 1, progress=False)
    assert real.history[0]["lost"] == [2]


def test_who_waits_is_told_again_why_nodes_cannot_take_part(caplog, monkeypatch):
    monkeypatch.setattr("fedlada.flower.nodes.SPEAK_EVERY", 0.0)
    caplog.set_level("INFO")
    with pytest.raises(TooFewReplies, match=r"0 of the 5 nodes .* s; node \d+: it has the method fedavg"):
        strategy_of("fedcm", replies=QUICK).run(grid_of("fedavg"), 1, progress=False)
    told = [one.getMessage() for one in caplog.records if "waiting for nodes" in one.getMessage()]
    beginning = "waiting for nodes: 0 of 5 are there; not there: clients 0, 1, 2, 3, 4; node "
    assert re.search(rf"^{beginning}\d+: it has the method fedavg", told[-1])


def test_who_waits_is_told_for_whom(caplog, monkeypatch):
    monkeypatch.setattr("fedlada.flower.nodes.SPEAK_EVERY", 0.0)
    caplog.set_level("INFO")
    grid = grid_of(METHOD)
    grid.leave(2)
    with pytest.raises(TooFewReplies):
        strategy_of(METHOD, replies=QUICK).run(grid, 1, progress=False)
    assert caplog.messages[-1] == "waiting for nodes: 4 of 5 are there; not there: client 2"


def test_nobody_waits_aloud_for_a_client_without_a_node(caplog, monkeypatch):
    monkeypatch.setattr("fedlada.flower.nodes.SPEAK_EVERY", 0.0)
    caplog.set_level("INFO")
    grid = grid_of(METHOD)
    ids = dict(enumerate(grid.get_node_ids()))
    grid.leave(2)
    del ids[4]
    with pytest.raises(TooFewReplies):
        strategy_of(METHOD, replies=QUICK, node_ids=ids).run(grid, 1, progress=False)
    assert caplog.messages[-1] == "waiting for nodes: 3 of 4 are there; not there: client 2"


def test_nodes_come_and_go(tmp_path, caplog):
    """A node that comes back has another id at Flower and is the same client, with the memory on its disk."""
    grid = grid_of(METHOD, tmp_path)

    def move(_simulation, row):
        if row["round"] == 1:
            grid.leave(1)
        if row["round"] == 3:
            grid.join(1)

    strategy = strategy_of(METHOD, replies=QUICK, cohort_size=None)
    real = strategy.run(grid, ROUNDS, callbacks=[move], progress=False)
    assert [row["lost"] for row in real.history] == [[], [1], [1], [], []]
    assert_same_bits(real, replayed(real.history, METHOD))
    assert "client 1 has gone" in caplog.text


def test_a_lost_memory_is_said_and_left_out(tmp_path, caplog):
    def lose(_simulation, row):
        if row["round"] == 2:
            for folder in tmp_path.glob("*/client-000001"):
                shutil.rmtree(folder)

    strategy = strategy_of(METHOD, replies=QUICK, cohort_size=None)
    real = strategy.run(grid_of(METHOD, tmp_path), 4, callbacks=[lose], progress=False)
    assert [row["refused"] for row in real.history] == [[], [], [1], [1]]
    assert "it has lost its memory of round 2" in caplog.text


def test_a_memory_with_another_bit_is_lost(tmp_path, caplog):
    def flip(_simulation, row):
        if row["round"] == 2:
            for path in tmp_path.glob("*/client-000001/*.safetensors"):
                content = bytearray(path.read_bytes())
                content[-3] ^= 1
                path.write_bytes(content)

    strategy = strategy_of(METHOD, replies=QUICK, cohort_size=None)
    real = strategy.run(grid_of(METHOD, tmp_path), 3, callbacks=[flip], progress=False)
    assert [row["refused"] for row in real.history] == [[], [], [1]]
    assert "it has lost its memory of round 2" in caplog.text
    assert "is damaged" in caplog.text


def test_a_client_whose_memory_is_lost_can_begin_anew(tmp_path):
    settings = {"cohort_size": None, "replies": QUICK}

    def run(rounds, **changes):
        grid = grid_of(METHOD, tmp_path / "memory")
        strategy = strategy_of(METHOD, **settings, **changes)
        return strategy.run(grid, rounds, out=tmp_path / "run", checkpoint_every=1, progress=False).history

    run(2)
    (lost,) = (tmp_path / "memory").glob("*/client-000001")
    shutil.rmtree(lost)
    assert run(3)[-1]["refused"] == [1]
    anew = run(5, forget=[1])
    assert [row["refused"] for row in anew[3:]] == [[], []]
    assert anew[3]["forgotten"] == [1]
    assert run(6)[-1]["refused"] == []  # its new memory is known to the next start
    with pytest.raises(ValueError, match="forget must be indices of clients, 0 to 4"):
        run(7, forget=[5])


def test_another_loss_or_other_test_data_are_another_run(tmp_path):
    def run(**changes):
        arguments = {"test": (X, Y), **changes}
        strategy = MethodStrategy(small_net(), METHOD, num_clients=5, replies=QUICK, **SETTINGS, **arguments)
        return strategy.run(grid_of(METHOD, tmp_path / "memory"), 2, out=tmp_path / "run", progress=False)

    run()
    with pytest.raises(ValueError, match="the test data differ"):
        run(test=(X, 2 - Y))
    with pytest.raises(ValueError, match=r"holds another run .*loss"):
        run(loss=nn.MultiMarginLoss())


def test_nodes_with_different_losses_are_named_where_the_server_has_none(tmp_path, caplog):
    other = client_app(small_net(), load, method=METHOD, memory=tmp_path, loss=nn.MultiMarginLoss())
    grid = grid_of(METHOD, tmp_path)
    apps = [other, *[grid.app] * 4]
    grid.app = lambda message, context: apps[context.node_config["partition-id"]](message, context)
    MethodStrategy(small_net(), METHOD, num_clients=5, replies=QUICK, **SETTINGS).run(grid, 1, progress=False)
    assert "client 0: MultiMarginLoss" in caplog.text


def test_nodes_that_do_not_belong_are_not_asked(tmp_path, caplog):
    """Another model, loss or method, a number twice or out of range, no data, no number: each is named."""
    good = client_app(small_net(), load, method=METHOD, memory=tmp_path)
    strange = [
        (7, client_app(small_net(), lambda _context: (X, Y), method=METHOD), "but clients are 0 to 4"),
        (0, good, "client 0 is here already"),
        (1, client_app(nn.Linear(4, 3), load, method=METHOD), "its model has 15 parameters, the server's 67"),
        (1, client_app(nn.Sequential(small_net()), load, method=METHOD), "have other names, shapes or dtypes"),
        (1, client_app(small_net(), load, method=METHOD, dtype=torch.float64), "have other names, shapes or dtypes"),
        (1, client_app(small_net(num_features=8), load, method=METHOD), "fitting the model to this node's data failed"),
        (1, client_app(small_net(), load, method=METHOD, loss=nn.MultiMarginLoss()), "trains with the loss Multi"),
        (2, client_app(small_net(), load, method="fedavg"), "it has the method fedavg"),
        (3, client_app(small_net(), lambda _context: (X[:0], Y[:0]), method=METHOD), "there are no samples"),
        ("four", good, "must have a whole number `partition-id`, got str"),
        (4, client_app(small_net(), lambda _context: Path("/none").read_text(), method=METHOD), "(FileNotFoundError)"),
    ]
    grid = InProcessGrid(good, 5)
    apps = {}

    def come(_simulation, row):
        if row["round"] > 1:
            return
        for client, app, _ in strange:
            grid.join(client)
            apps[list(grid.get_node_ids())[-1]] = app

    grid.app = lambda message, context: apps.get(context.node_id, good)(message, context)
    real = strategy_of(METHOD, replies=QUICK).run(grid, 3, callbacks=[come], progress=False)
    for _, _, sentence in strange:
        assert sentence in caplog.text, sentence
    assert_same_bits(real, simulate(METHOD, 3))


def test_a_run_that_diverges_says_so():
    method = recipes.fedavg(clip_norm=None)

    def no_number(output, y):
        return F.cross_entropy(output, y) * torch.nan

    with pytest.raises(TrainingDiverged, match="try a smaller learning rate"):
        strategy_of(method, replies=QUICK, loss=no_number).run(grid_of(method, loss=no_number), 3, progress=False)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"minimum": 0}, "minimum must be a whole number of at least 1"),
        ({"time_limit": 0}, "time_limit must be positive"),
        ({"on_missing": "hope"}, "on_missing must be one of drop, wait"),
        ({"nodes": 0}, "nodes must be"),
        ({"patience": -1}, "patience must be positive"),
    ],
)
def test_wrong_policies_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Replies(**changes)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="cohort_size is 9, but there are only 5 clients"):
        strategy_of(METHOD, cohort_size=9)
    with pytest.raises(ValueError, match=r"call strategy\.run"):
        strategy_of(METHOD).configure_train(1, ArrayRecord(), ConfigRecord(), grid_of(METHOD))


def test_a_node_checks_what_it_is_asked(tmp_path):
    """A broadcast that was changed on its way, or is for somebody else, is not trained on."""
    grid = grid_of(METHOD, tmp_path)
    seen = []

    def look(who, asked, reply):
        if asked.metadata.message_type == "train":
            asked.content[wire.HEADER]["client"] = 4 if who != 4 else 3
            seen.append(wire.read_header(grid.app(asked, grid._nodes[asked.metadata.dst_node_id]), wire.Done))
            asked.content[wire.HEADER]["client"] = who
            asked.content[wire.VECTORS]["params"] = Array(np.full(67, np.inf, np.float32))
            answered = grid.app(asked, grid._nodes[asked.metadata.dst_node_id])
            assert isinstance(answered, Message)
            seen.append(wire.read_header(answered, wire.Done))
        return [reply]

    grid.fault = look
    strategy_of(METHOD, cohort_size=1).run(grid, 1, progress=False)
    assert [done.status for done in seen] == ["moved", "refused"]
    assert "and this node is client" in seen[0].reason
    assert "holds a NaN or an infinity" in seen[1].reason


def test_more_answers_than_a_cohort_has_clients_are_refused():
    with pytest.raises(ValueError, match="minimum=4 answers cannot come from 3 clients a round"):
        strategy_of(recipes.fedavg(), cohort_size=3, replies=Replies(minimum=4))
    with pytest.raises(ValueError, match="minimum=6 answers cannot come from 5 clients a round"):
        strategy_of(recipes.fedavg(), cohort_size=None, replies=Replies(minimum=6))


def finite_lie(which, number):
    """In round 2 client 1 answers with the same huge number everywhere in one vector."""

    def change(reply):
        record = reply.content[wire.VECTORS]
        (name,) = (name for name in record if name.endswith(which))
        record[name] = Array(np.full_like(record[name].numpy(), number))
        return [reply]

    return in_round(2, 1, change)


def fifteen_rounds(fault=None, **options):
    method = recipes.fedlada(beta1=0.0, v_init=1e-4)
    settings = {name: value for name, value in SETTINGS.items() if name != "combiner"} | {"cohort_size": 5}
    strategy = MethodStrategy(small_net(), method, num_clients=5, test=(X, Y), **settings, **options)
    return strategy.run(grid_of(method, fault=fault), 15, progress=False).history


@pytest.fixture(scope="module")
def honest():
    """The loss in the end if nobody lies."""
    return fifteen_rounds()[-1]["test_loss"]


@pytest.mark.parametrize(("which", "number"), [("delta", 1e30), ("delta", 1e3), ("v", 1e30)])
def test_a_finite_lie_is_scaled_down_unless_the_bound_is_switched_off(which, number, honest, caplog):
    told = fifteen_rounds(finite_lie(which, number))
    ruined = fifteen_rounds(finite_lie(which, number), combiner="mean")
    assert 1 in told[1]["bounded"]
    assert "round 2: client 1" in caplog.text
    assert told[-1]["test_loss"] < 2 * honest < 0.1
    assert ruined[-1]["test_loss"] > 5 * told[-1]["test_loss"]


@pytest.mark.parametrize("number", [0.0, -1.0])
def test_second_moments_that_are_not_positive_are_refused(number, caplog):
    method = recipes.fedlada()
    strategy = strategy_of(method, cohort_size=5, replies=QUICK)
    real = strategy.run(grid_of(method, fault=finite_lie("v", number)), 3, progress=False)
    assert [row["refused"] for row in real.history] == [[], [1], []]
    assert "its vector v holds numbers that are not positive, and all must be" in caplog.text


@pytest.mark.parametrize("number", [1e-30, 1e6])
def test_another_number_of_steps_than_the_samples_make_is_refused(number, caplog):
    """FedNova divides by it."""
    method = recipes.fednova()
    strategy = strategy_of(method, cohort_size=5, replies=QUICK)
    real = strategy.run(grid_of(method, fault=finite_lie("steps", number)), 3, progress=False)
    assert [row["refused"] for row in real.history] == [[], [1], []]
    assert f"its upload says {number:g} steps, and its samples make" in caplog.text


def test_a_node_that_claims_steps_does_not_decide_about_the_mean_of_steps():
    """Its samples make them, so they are no lie in themselves; FedNova multiplies every update by their mean."""
    method, claimed = recipes.fednova(), 2**40
    steps = -(-claimed // SETTINGS["batch_size"])

    def fault(who, asked, reply):
        if who == 1 and asked.metadata.message_type == "train":
            reply.content[wire.METRICS].update({"num-examples": claimed, "num-steps": steps})
            record = reply.content[wire.VECTORS]
            record["extra.0.steps"] = Array(np.full(1, steps, np.float32))
        return [reply]

    def moved(lie):
        strategy = strategy_of(method, cohort_size=5, replies=QUICK)
        result = strategy.run(grid_of(method, fault=lie), 1, progress=False)
        assert result.history[0]["clients"] == [0, 1, 2, 3, 4]
        start = torch.cat([one.detach().reshape(-1) for one in small_net().parameters()])
        return float((result.server.params - start).norm())

    assert moved(None) / 10 < moved(fault) < 10 * moved(None)
