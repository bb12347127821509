"""Lines of metrics on a disk that is full for a while."""

from __future__ import annotations

import json
import resource
from contextlib import contextmanager

import pytest

from fedlada.runs.client_metrics import FILE, append_values, read_values
from fedlada.runs.files import CannotWrite
from fedlada.runs.metrics import append_row, read_rows


@contextmanager
def files_of_at_most(size):
    """A write that would make a file longer is cut short there, as on a full disk."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def row(round):
    nobody = {"clients": [], "lost": [], "refused": []}
    return {"round": round, "bytes_up": 10, "bytes_down": 10, "train_loss": 0.5, **nobody}


@pytest.mark.parametrize("first", [1, 2])
def test_a_line_that_was_cut_short_is_written_again(first, tmp_path):
    path = tmp_path / "metrics.jsonl"
    for round in range(1, first):
        append_row(path, row(round))
    before = path.read_bytes() if path.exists() else b""
    with files_of_at_most(len(before) + 40), pytest.raises(CannotWrite, match="everything saved before it is intact"):
        append_row(path, row(first))
    assert path.read_bytes() == before
    for round in (first, first + 1):
        append_row(path, row(round))
    assert read_rows(path) == [row(round) for round in range(1, first + 2)]


def test_a_line_of_clients_too(tmp_path):
    values = [{"round": round, "client_accuracy": [0.25] * 20} for round in (1, 2, 3)]
    append_values(tmp_path, values[0])
    with files_of_at_most((tmp_path / FILE).stat().st_size + 40), pytest.raises(CannotWrite):
        append_values(tmp_path, values[1])
    for one in values[1:]:
        append_values(tmp_path, one)
    assert read_values(tmp_path) == [json.loads(json.dumps(one)) for one in values]
