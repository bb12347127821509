"""A resumed run whose learning rate depends on the past."""

from __future__ import annotations

import pytest

import fedlada
from tasks import UNEQUAL, blobs, small_net


class Halved(fedlada.Observer):
    """Half the rate after every third round."""

    lr = 0.4

    def __call__(self, round):
        return self.lr

    def on_round(self, simulation, row):
        self.lr = 0.4 / 2 ** (row["round"] // 3)


class Restored(Halved):
    def on_start(self, simulation, num_rounds):
        self.lr = 0.4 / 2 ** (simulation.round // 3)


class Unready(Restored):
    """Has no rate before it is started."""

    lr = None

    def __call__(self, round):
        return 0.4 if round == 1 else 1.0 * self.lr


def run(rate, rounds, out=None):
    callbacks = [rate] if isinstance(rate, fedlada.Observer) else []
    settings = {"method": "fedavg", "partition": UNEQUAL, "lr": rate, "rounds": rounds, "out": out}
    return fedlada.simulate(small_net(), blobs(), callbacks=callbacks, **settings).history["lr"]


def test_a_rate_that_was_not_restored_is_noticed(tmp_path):
    run(Halved(), 4, tmp_path)
    said = r"the learning rate of round 4 was 0.2 and is 0.4 now.* rebuild that from simulation.history"
    with pytest.warns(UserWarning, match=said):
        assert run(Halved(), 5, tmp_path) == [0.4, 0.4, 0.4, 0.2, 0.4]


@pytest.mark.parametrize("kind", [Restored, Unready])
@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_a_restored_rate_is_not_complained_of(kind, rounds, tmp_path):
    """Also after a round in which it changed: it is then rightly not that of the last round."""
    run(kind(), rounds, tmp_path)
    assert run(kind(), 7, tmp_path) == run(kind(), 7)


def test_a_rate_that_depends_on_the_round_alone_is_not_complained_of(tmp_path):
    run(lambda round: 0.3 / round, 3, tmp_path)
    assert run(lambda round: 0.3 / round, 4, tmp_path) == pytest.approx([0.3, 0.15, 0.1, 0.075])


def test_a_finished_run_is_not_complained_of(tmp_path):
    run(Halved(), 4, tmp_path)
    run(Halved(), 4, tmp_path)
