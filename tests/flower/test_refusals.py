"""What leaves a node when something fails on it: never the text of an error that may hold its data."""

from __future__ import annotations

import shutil

import pytest

from fedlada import recipes
from fedlada.flower import InProcessGrid, TooFewReplies, client_app
from small_federation import QUICK, load, strategy_of
from tasks import small_net

pytestmark = pytest.mark.slow

SECRET = "Jane Doe, HIV+"


class Row(Exception):
    """An error of the user's own."""


ERRORS = [ValueError, OSError, KeyError, RuntimeError, TypeError, UnicodeError, Row, SystemExit]


def raises(error, *, after=0):
    """A function that fails with the secret in its text, after so many good calls."""
    calls = []

    def fail(*_arguments, **_names):
        calls.append(1)
        if len(calls) > after:
            raise error(SECRET)
        return load(*_arguments)

    return fail


def sent_by(app, *, rounds=1, **settings) -> str:
    """All that a single node sends in a run, as text; the run may end for lack of replies."""
    sent = []

    def listen(_who, _asked, reply):
        sent.append(repr(reply.error.reason if reply.has_error() else dict(reply.content)))
        return [reply]

    strategy = strategy_of("fedavg", replies=QUICK, num_clients=1, cohort_size=None, **settings)
    try:
        strategy.run(InProcessGrid(app, 1, fault=listen), rounds, progress=False)
    except TooFewReplies as error:
        sent.append(str(error))
    return "\n".join(sent)


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_load_data_leave_by_their_type_alone(error, caplog):
    for after in (0, 1):  # in the greeting, in training
        sent = sent_by(client_app(small_net(), raises(error, after=after), method="fedavg"))
        assert f"loading this node's data failed ({error.__name__}); see the node's log" in sent
        assert "Jane" not in sent
    assert any(SECRET in str(record.exc_info[1]) for record in caplog.records if record.exc_info)


PLACES = {
    "the model": (lambda: {"model": raises(ValueError)}, "making this node's model failed (ValueError)"),
    "the method": (lambda: {"method": raises(ValueError)}, "making this node's method failed (ValueError)"),
    "the index": (lambda: {"client": raises(KeyError)}, "finding this node's client index failed (KeyError)"),
    "the loss": (lambda: {"loss": raises(ValueError)}, "failed (ValueError); see the node's log"),
    "a modifier": (lambda: {"mods": [raises(ValueError)]}, "train on this node failed (ValueError)"),
    "load_test": (lambda: {"load_test": raises(ValueError)}, "loading this node's data failed (ValueError)"),
}


@pytest.mark.parametrize("place", PLACES)
def test_errors_of_any_code_of_the_user_leave_by_their_type_alone(place):
    make, sentence = PLACES[place]
    app = client_app(**{"model": small_net(), "load_data": load, "method": "fedavg"} | make())
    sent = sent_by(app, eval_clients_every=1)
    assert sentence in sent
    assert "Jane" not in sent


def test_a_lost_memory_is_named_without_its_path(tmp_path):
    method = recipes.scaffold()
    seen = []

    def listen(_who, asked, reply):
        seen.append(repr(dict(reply.content)))
        if asked.metadata.message_type == "train":
            shutil.rmtree(tmp_path, ignore_errors=True)
        return [reply]

    grid = InProcessGrid(client_app(small_net(), load, method=method, memory=tmp_path), 1, fault=listen)
    with pytest.raises(TooFewReplies, match="it has lost its memory of round 1"):
        strategy_of(method, replies=QUICK, num_clients=1, cohort_size=None).run(grid, 4, progress=False)
    assert str(tmp_path) not in "".join(seen)


def test_a_memory_that_cannot_be_written_is_named_without_its_path(tmp_path):
    method, file = recipes.scaffold(), tmp_path / "file"
    file.touch()
    grid = InProcessGrid(client_app(small_net(), load, method=method, memory=file / "memory"), 1)
    with pytest.raises(TooFewReplies, match=r"saving this node's client state failed \(NotADirectory") as error:
        strategy_of(method, replies=QUICK, num_clients=1, cohort_size=None).run(grid, 3, progress=False)
    assert str(tmp_path) not in str(error.value)


def test_a_client_index_that_is_no_number_stays_on_the_node():
    sent = sent_by(client_app(small_net(), load, method="fedavg", client=lambda _context: SECRET))
    assert "this node's client index must be a whole number, got str" in sent
    assert "Jane" not in sent


def test_own_refusals_keep_their_sentence():
    sent = sent_by(client_app(small_net(), load, method="fedprox"))
    assert "it has the method fedprox" in sent
    sent = sent_by(client_app(small_net(), load, method="fedavg", client=lambda _context: 7))
    assert "it says it is client 7" in sent
