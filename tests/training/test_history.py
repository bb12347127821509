"""Histories: of whole runs, of a part of one, and of none."""

from __future__ import annotations

import pytest

from fedlada.training.history import History

HISTORY = History(
    [{"round": round, "test_accuracy": round / 10, "bytes_up": round, "bytes_down": 100} for round in range(1, 11)]
)


def test_bytes_to_a_target_of_a_slice_are_those_of_its_rounds():
    part = HISTORY[5:]
    assert (part.rounds_to(0.8), part.bytes_to(0.8)) == (8, 6 + 7 + 8 + 300)
    assert (part.rounds_to(0.1), part.bytes_to(0.1)) == (6, 6 + 100)
    assert HISTORY[:5].bytes_to(0.8) is None
    assert HISTORY[::2].bytes_to(0.5) == 1 + 3 + 5 + 300
    assert HISTORY.bytes_to(0.8) == sum(range(1, 9)) + 800


def test_a_frame_of_no_rounds():
    pytest.importorskip("pandas")
    frame = History([]).to_pandas()
    assert len(frame) == 0
    assert frame.index.name == "round"
    assert list(HISTORY.to_pandas().index) == list(range(1, 11))
