"""Hostile values of any size in error messages: shortened before they are formatted."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedlada.flower import wire
from fedlada.flower.exchange import in_short, in_words, one_line, reasons
from fedlada.flower.inbox import Inbox
from fedlada.methods.state import Upload

LONG = "x" * 50_000_000
MANY = 20_000
DONE = wire.Done(run="r", round=1, client=0)
LIKE = Upload(torch.zeros(2), ())
METRICS = {"loss": [1.5] * 1_000_000}


def reply(**records) -> Message:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Message(RecordDict(records), dst_node_id=1, message_type="train")


def header(**changes) -> Message:
    return reply(fedlada=ConfigRecord({"format": wire.FORMAT, **vars(DONE), **changes}))


def array(dtype="float32", shape=(2,), stype="numpy.ndarray"):
    return ArrayRecord({"delta": Array(dtype, shape, stype, Array(np.zeros(2, np.float32)).data)})


TINY = Array(np.zeros(1))
CALLS = {
    "a field": lambda: wire.read_header(header(round=LONG), wire.Done),
    "a field of bytes": lambda: wire.read_header(header(round=LONG.encode()), wire.Done),
    "a list": lambda: wire.read_header(header(round=[1.5] * 1_000_000), wire.Done),
    "the format": lambda: wire.read_header(header(format=LONG), wire.Done),
    "the reason": lambda: wire.check_done(header(status="refused", reason=LONG), ("r", 1, 0)),
    "the run": lambda: wire.check_done(header(run=LONG), ("r", 1, 0)),
    "a metric": lambda: wire.metric(reply(metrics=MetricRecord(METRICS)), "loss", float),
    "records": lambda: wire.vectors_of(reply(**{str(one): ArrayRecord() for one in range(MANY)})),
    "vectors": lambda: wire.unpack(ArrayRecord({str(one): TINY for one in range(MANY)}), LIKE),
    "one vector": lambda: wire.unpack(ArrayRecord({LONG: TINY}), LIKE),
    "dtype": lambda: wire.unpack(array(dtype=LONG), LIKE),
    "shape": lambda: wire.unpack(array(shape=(1,) * 1_000_000), LIKE),
    "stype": lambda: wire.unpack(array(stype=LONG), LIKE),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_message_is_short_whatever_was_sent(name):
    with pytest.raises(wire.WrongMessage) as error:
        CALLS[name]()
    assert len(str(error.value)) < 5000


@pytest.mark.parametrize("text", [LONG, "x " * 25_000_000, ValueError(LONG)])
def test_a_log_line_reads_the_beginning_of_a_text_alone(text):
    tracemalloc.start()
    try:
        line = one_line(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(line) < 510
    assert peak < 1_000_000


@pytest.mark.parametrize("text", ["\n".join(["a"] * 10_000_000) + "\nthe end  \n\n", LONG + "\nthe end"])
def test_of_a_traceback_the_end_alone_is_read(text):
    tracemalloc.start()
    try:
        assert in_short(Error(2, text)) == "the end"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_of_many_clients_the_first_are_named():
    assert [in_words([7]), in_words([2, 1])] == ["client 7", "clients 1, 2"]
    assert in_words(range(300)) == "clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 290 others"


def test_of_many_refusals_the_first_are_named():
    assert reasons({"node 1": "no", "node 2": "never"}) == "; node 1: no; node 2: never"
    assert len(reasons({f"node {one}": "no" * 200 for one in range(MANY)})) < 5000
    assert reasons({f"node {one}": "no" for one in range(300)}).endswith("; node 9: no; and 290 others")


def test_what_a_reply_says_that_it_answers_is_logged_in_short(caplog):
    said = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=LONG + "\n"))
    grid = SimpleNamespace(push_messages=lambda _messages: ["1"], pull_messages=lambda _ids: [said])
    box = Inbox(grid)
    box.push({0: None})
    assert box.pull(20.0) == []
    (line,) = caplog.messages
    assert line.endswith("came twice or unasked: ignored")
    assert len(line) < 600
