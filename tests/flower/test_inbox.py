"""Replies that are announced and not uploaded: they cost little time, and nothing is kept of them."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import PullObjectResponse
from in_process_link import InProcessLink

from fedlada import recipes
from fedlada.flower import client_app, inbox, inflation, wire
from small_federation import QUICK, load, strategy_of
from tasks import small_net


class Clock:
    """A time that passes only where somebody waits for a reply."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize("patience", [0.0, 5.0])
def test_many_stalled_replies_cost_no_more_time_than_one(patience, monkeypatch):
    clock = Clock()

    class Pull:
        def __init__(self, _grid, message_id):
            self.replies, self.error, self.is_stalled = [], None, int(message_id) % 2

        def is_done(self, seconds):
            clock.now += max(0.0, seconds) if self.is_stalled else 0.0
            return not self.is_stalled

    monkeypatch.setattr(inbox, "time", clock)
    monkeypatch.setattr(inbox, "_Fetch", Pull)
    grid = SimpleNamespace(push_messages=lambda messages: [str(one) for one in range(len(messages))])
    box = inbox.Inbox(grid)
    box.push(dict.fromkeys(range(200)))
    box.pull(patience)
    assert clock.now <= inbox.ONE_BY_ONE + patience


class HalfUploaded(InProcessLink):
    """Client 1 announces its reply of round 2 and holds back the last of its objects."""

    held = ""

    def PullObject(self, request):  # noqa: N802
        if request.object_id == self.held:
            return PullObjectResponse(object_found=True, object_available=False)
        return super().PullObject(request)


@pytest.mark.slow
def test_nothing_is_kept_of_a_reply_that_nobody_waits_for(monkeypatch):
    monkeypatch.setattr(inbox, "LAST_PASS", 1.0)
    method = recipes.fedavg()

    def hold_back(client, message, reply):
        if client == 1 and message.content[wire.HEADER].get("round") == 2:
            link.held = reply.content[wire.METRICS].object_id

    link = HalfUploaded(client_app(small_net(), load, method=method), 5, hold_back)
    before = set(threading.enumerate())
    replies = replace(QUICK, time_limit=2, patience=20)
    real = strategy_of(method, replies=replies, cohort_size=None).run(link.grid(), 3, progress=False)
    assert [row["lost"] for row in real.history] == [[], [1], []]
    for one in set(threading.enumerate()) - before:
        one.join(30)
        assert not one.is_alive()
    assert kept() == 0


def kept() -> int:
    """Replies on their way."""
    gc.collect()
    return sum(type(one) is inflation._MeasuringClient for one in gc.get_objects())
