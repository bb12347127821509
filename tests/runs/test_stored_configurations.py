"""Folders stored by an earlier version: they go on, or the sentence says why not."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedlada
from fedlada import recipes
from fedlada.methods.combine import Combiner, Mean
from fedlada.runs.config import first_difference
from fedlada.runs.folder import RunFolder
from small_federation import grid_of, strategy_of
from tasks import UNEQUAL, blobs, small_net

UNKNOWN = "was stored by an earlier version, which did not record its number of threads: it resumes with 1"


class Doubled(Combiner):
    """The mean, twice."""

    def combine(self, uploads, weights):
        return Mean().combine([*uploads] * 2, None)


def from_python(folder, rounds, **changes):
    values = {"method": recipes.fedavg(), "lr": 0.05, "partition": UNEQUAL, "device": "cpu", **changes}
    return fedlada.simulate(small_net(), values.pop("train", blobs()), rounds=rounds, out=folder, **values)


def over_flower(folder, rounds, method=None):
    method = method or recipes.fedavg()
    return strategy_of(method).run(grid_of(method), rounds, out=folder, progress=False)


def without(folder, *names):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in config.items() if name not in names}))


@pytest.mark.parametrize("run", [from_python, over_flower])
def test_a_folder_without_newer_fields_goes_on_and_says_once_what_is_unknown(run, tmp_path, capsys, caplog):
    run(tmp_path, 1)
    without(tmp_path, "threads", "combiner")
    assert len(run(tmp_path, 2).history) == 2
    assert (capsys.readouterr().err + caplog.text).count(UNKNOWN) == 1
    caplog.clear()
    run(tmp_path, 3)
    assert UNKNOWN not in capsys.readouterr().err + caplog.text


def test_a_combiner_that_an_earlier_version_did_not_have_is_named(tmp_path):
    from_python(tmp_path, 1)
    without(tmp_path, "combiner")
    method = fedlada.FederatedMethod(name="fedavg", local=(), server=recipes.fedavg().server, combiner=Doubled())
    with pytest.raises(ValueError, match=r"combiner is 'Mean\(\)' there and 'Doubled\(\)' here"):
        from_python(tmp_path, 2, method=method)


def test_another_batch_of_evaluations_is_refused_with_the_reason(tmp_path):
    from_python(tmp_path, 1)
    with pytest.raises(ValueError, match="eval_batch_size is 1000 there and 7 here, and the last bits of the metrics"):
        from_python(tmp_path, 2, eval_batch_size=7)
    without(tmp_path, "eval_batch_size")
    assert len(from_python(tmp_path, 2).history) == 2
    said = first_difference({"eval_batch_size": 9}, {"eval_batch_size": 8})
    assert said == "eval_batch_size is 9 there and 8 here, and the last bits of the metrics depend on it"


@pytest.mark.parametrize("name", ["test", "validation"])
def test_other_test_data_are_refused(name, tmp_path):
    x, y = blobs()
    given = {name: (x[:50], y[:50])}
    from_python(tmp_path, 1, **given)
    from_python(tmp_path, 2, **given)
    from_python(tmp_path, 3)  # without test data nothing is mixed
    for other in ((x[50:], y[50:]), (x[:50], 2 - y[:50]), (x[:40], y[:40])):
        with pytest.raises(ValueError, match=rf"the {name} data differ from those of .*: give the same, or choose"):
            from_python(tmp_path, 4, **{name: other})
    assert len(fedlada.load_run(tmp_path, small_net()).history) == 3
    without(tmp_path, "evaluated_on")  # as an earlier version stored it
    assert len(from_python(tmp_path, 4, **{name: (x[50:], y[50:])}).history) == 4


def test_the_cause_is_named_and_not_a_digest(tmp_path):
    x, y = blobs()
    from_python(tmp_path, 1, partition=None)
    for changes, sentence in (
        ({"seed": 1}, r"\(seed is 0 there and 1 here\)"),
        ({"client_test": 0.2}, r"\(client_test is at its default there and 0.2 here\)"),
        ({"partition": UNEQUAL}, r"\(the partition differs: its clients hold different samples\)"),
        ({"partition": None, "train": (x[::-1].copy(), y)}, r"\(the training data differ\)"),
    ):
        with pytest.raises(ValueError, match=f"holds another run {sentence}: choose another folder"):
            from_python(tmp_path, 2, **{"partition": None, **changes})


def test_numpy_numbers_are_stored_as_plain_ones(tmp_path):
    whole = {"eval_every": 2, "eval_batch_size": 50, "personal_steps": 1, "personal_every": 2, "threads": 1}
    as_numpy = {name: np.int64(value) for name, value in whole.items()}
    from_python(tmp_path / "run", np.int64(2), client_test=0.3, **as_numpy)
    assert len(from_python(tmp_path / "run", 3, client_test=0.3, **whole).history) == 3
    method, out = recipes.fedavg(), tmp_path / "federation"
    for numbers in ({"eval_every": 2, "size_bound": 9.0}, {"eval_every": np.int64(2), "size_bound": np.float32(9)}):
        strategy_of(method, **numbers).run(grid_of(method), 2, out=out, progress=False)


def test_a_configuration_that_is_no_json_is_one_sentence(tmp_path):
    folder = RunFolder(tmp_path, {"made": object})
    with pytest.raises(ValueError, match="a run's configuration holds numbers and text, got <class 'object'>"):
        from_python(folder, 1)
