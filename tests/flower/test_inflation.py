"""Replies that are small on the wire and huge in memory: refused before they are inflated."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from in_process_link import InProcessLink

from fedlada import recipes
from fedlada.flower import client_app, inflation, wire
from small_federation import QUICK, assert_same_bits, load, replayed, simulate, strategy_of
from tasks import small_net

pytestmark = pytest.mark.slow

PATIENT = replace(QUICK, time_limit=20, patience=20)  # a slow processor is no fault
METHOD = recipes.fedavg()
MEGABYTE = 1 << 20


class Repeating(Array):
    """Names each of its chunks 500 times."""

    def slice_array(self):
        return super().slice_array() * 500


class OfArrays(Array):
    """Names another array as its chunk, which Flower would join as well."""

    def slice_array(self):
        inner = Array(np.zeros(1000, np.float32))
        return [(inner.object_id, inner)] * 1000


Repeating.__qualname__ = OfArrays.__qualname__ = Array.__qualname__  # as it is written into the object's head


def repeated_chunk(reply):
    """Half a megabyte on the wire, 250 in memory."""
    reply.content[wire.VECTORS]["delta"] = Repeating(np.zeros(MEGABYTE // 2 - 128, np.uint8))


def arrays_in_arrays(reply):
    reply.content[wire.VECTORS]["delta"] = OfArrays(np.zeros(67, np.float32))


def large_header(reply):
    reply.content[wire.HEADER]["reason"] = "x" * (2 * MEGABYTE)


def many_arrays(reply):
    reply.content[wire.VECTORS] = ArrayRecord({str(one): Array(np.full(2, one)) for one in range(1200)})


def large_array(reply):
    """As large on the wire as in memory."""
    numbers = np.random.default_rng(0).integers(0, 255, 12 * MEGABYTE, np.uint8)
    reply.content[wire.VECTORS] = ArrayRecord({"delta": Array(numbers)})


BOMBS = {
    "a chunk many times": (repeated_chunk, "its arrays would take 262144000 bytes of memory, and at most"),
    "arrays in arrays": (arrays_in_arrays, "one of its arrays consists of objects that are no chunks"),
    "a large header": (large_header, "it has more than 1048576 bytes besides its arrays"),
    "many arrays": (many_arrays, "it has more than 1000 objects"),
    "a large array": (large_array, "it has more than 1048"),
}


def link_of(bomb=None, **options) -> InProcessLink:
    """Client 1 answers in round 2 with that reply."""

    def fault(client, message, reply):
        round = message.content[wire.HEADER].get("round")
        if client == 1 and round == 2:
            bomb(reply)

    return InProcessLink(client_app(small_net(), load, method=METHOD), 5, fault if bomb else None, **options)


@pytest.mark.parametrize("name", BOMBS)
def test_a_reply_that_would_fill_the_memory_is_dropped_before_it_is_inflated(name, caplog):
    bomb, said = BOMBS[name]
    link = link_of(bomb)
    tracemalloc.start()
    try:
        real = strategy_of(METHOD, replies=PATIENT, cohort_size=None).run(link.grid(), 3, progress=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row["lost"] for row in real.history] == [[], [1], []]
    (line,) = [record.getMessage() for record in caplog.records if "cannot be read and is dropped" in record.message]
    assert said in line
    assert peak < 100 * MEGABYTE
    assert_same_bits(real, replayed(real.history, METHOD))


def test_a_refused_reply_is_confirmed_so_that_the_superlink_forgets_it():
    link = link_of(many_arrays)
    strategy_of(METHOD, replies=PATIENT, cohort_size=None).run(link.grid(), 3, progress=False)
    assert len(link.confirmed) == 5 + 3 * 5
    assert link.num_pulled < 1000


@pytest.mark.parametrize("messages", ["float32", "lean", "delta=top0.1"])
def test_honest_replies_pass_whatever_their_codec(messages, tmp_path):
    method = recipes.fedlada()
    link = InProcessLink(client_app(small_net(), load, method=method, memory=tmp_path), 5)
    real = strategy_of(method, messages=messages).run(link.grid(), 2, progress=False)
    assert_same_bits(real, simulate(method, 2, messages=messages))


def test_an_array_under_many_names_counts_once_in_the_traffic():
    array = Array(np.zeros(10))
    content = RecordDict({wire.VECTORS: ArrayRecord({str(one): array for one in range(3000)})})
    assert wire.packed_bytes(content) == len(array.data)


def test_a_grid_that_cannot_be_bounded_is_named(caplog):
    grid = link_of().grid()
    assert inflation.bounded_grid(grid, 100) is not grid
    assert not caplog.text
    unknown = SimpleNamespace()
    assert inflation.bounded_grid(unknown, 100) is unknown
    assert "the grid SimpleNamespace is not known: the memory of a reply is not bounded" in caplog.text


def test_vectors_with_the_same_bytes_cost_no_negative_bytes(tmp_path):
    """Flower sends equal objects once."""
    method = recipes.scaffold()

    def fault(_client, message, reply):
        if message.metadata.message_type == "train":
            record = reply.content[wire.VECTORS]
            record["extra.0.control_change"] = Array(record["delta"].numpy().copy())

    link = InProcessLink(client_app(small_net(), load, method=method, memory=tmp_path), 5, fault)
    (row,) = strategy_of(method, replies=PATIENT, cohort_size=None).run(link.grid(), 1, progress=False).history
    assert row["clients"] == [0, 1, 2, 3, 4]
    assert all(size >= 0 for size in row["bytes_by_vector"].values())
