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


def test_a_metric_that_the_history_does_not_have_is_no_target_missed():
    for ask in (HISTORY.rounds_to, HISTORY.bytes_to, lambda _, metric: HISTORY.best(metric)):
        with pytest.raises(KeyError, match=r"the history has no column 'test_acuracy'; it has .*test_accuracy"):
            ask(0.5, "test_acuracy")
        with pytest.raises(KeyError, match="the history has no column 'nll'"):
            ask(0.5, "min:nll")
    assert History().rounds_to(0.5, "test_acuracy") is None  # as of `best`: nothing is known yet
    assert History([{"round": 1, "test_accuracy": None}]).rounds_to(0.5, "test_accuracy") is None
    assert History([{"round": 1, "test_loss": 0.5}]).rounds_to(0.5) is None


def test_a_frame_of_no_rounds():
    pytest.importorskip("pandas")
    frame = History([]).to_pandas()
    assert len(frame) == 0
    assert frame.index.name == "round"
    assert list(HISTORY.to_pandas().index) == list(range(1, 11))
