"""F8 is computed, and equals a transcription by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedlada.paper import dislocation


def by_hand(alpha, shared_rounds, adam_rate):
    """The fork in plain NumPy: both clients' paths, x^{t+1} of SGD and of Adam, g_a of the forked round."""
    stars = np.array([[4.0, 5.0], [5.0, 0.0]])
    curvature = np.array([[0.4, 2.0], [0.6, 1.6]])
    x, g_a, m, v = np.array([0.0, 1.0]), np.zeros(2), np.zeros(2), np.zeros(2)
    for t in range(shared_rounds + 1):
        ends, paths = [], []
        for i in range(2):
            own, path = x.copy(), [x.copy()]
            for _ in range(3):
                g = curvature[i] * (own - stars[i])
                own = own - 0.1 * (alpha * g + (1 - alpha) * g_a)
                path.append(own.copy())
            ends.append(own)
            paths.append(path)
        delta = x - (ends[0] + ends[1]) / 2
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta * delta
        if t == shared_rounds:
            break
        x = x - 1.0 * delta
        g_a = delta / (0.1 * 3)
    return np.array(paths), x - delta, x - adam_rate * m / (np.sqrt(v) + 1e-2), delta / (0.1 * 3)


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_fork_equals_the_transcription(alpha):
    own = dislocation.fork(alpha)
    for name, rate in ((dislocation.SAME_RATE, 1.0), (dislocation.PAPER_RATE, 0.1)):
        paths, by_sgd, by_adam, direction = by_hand(alpha, 4, rate)
        np.testing.assert_allclose(own.played[dislocation.SGD].paths.transpose(0, 1), paths, rtol=1e-12)
        np.testing.assert_allclose(own.played[dislocation.SGD].after.params, by_sgd, rtol=1e-12)
        np.testing.assert_allclose(own.played[name].after.params, by_adam, rtol=1e-12)
        np.testing.assert_allclose(own.played[name].pseudo_gradient, direction, rtol=1e-12)
    lengths = [np.linalg.norm(own.played[name].after.params - own.start.params) for name in own.methods]
    assert lengths[3] == pytest.approx(lengths[0], rel=1e-12)


def test_optimum_and_gradient_agree():
    star = dislocation.optimum()
    assert dislocation.global_gradient(star).abs().max() < 1e-14
    assert dislocation.excess(star) == 0
    # F in plain words, at a point of its own.
    point = np.array([1.0, -2.0])

    def loss(x):
        squares = (x - dislocation.OPTIMA.numpy()) ** 2
        return np.mean((dislocation.CURVATURES.numpy() * squares).sum(1) / 2)

    assert dislocation.excess(star.new_tensor(point)) == pytest.approx(loss(point) - loss(star.numpy()))


def test_table_states_what_the_sketch_claims():
    table, chart = dislocation.matching_dislocation()
    rows = {row[:2]: dict(zip(table.columns, row, strict=True)) for row in table.rows}

    def value(alpha, server, column):
        return float(rows[(alpha, server)][column])

    amended, plain = "alpha 0.1", "alpha 1 (not amended)"
    sgd, adam = dislocation.SGD, dislocation.SAME_RATE
    # At the SGD server's model the old direction is an approximation; at the adaptive one's there is a large gap,
    assert value(amended, sgd, "angle at x^(t+1)") < 15 < 60 < value(amended, adam, "angle at x^(t+1)")
    assert value(amended, adam, "gap at x^(t+1)") > 2 * value(amended, sgd, "gap at x^(t+1)")
    # which amended clients carry into the next round and others do not.
    assert value(amended, adam, "gap a round later") > 5 * value(plain, adam, "gap a round later")
    by_name = {series.name: series for series in chart.series}
    assert {"client 1", "client 2", "x*", "x*_1", "x*_2"} <= set(by_name)
    assert len(by_name["client 1"].x) == 4
    middle = [(a + b) / 2 for a, b in zip(by_name["client 1"].x, by_name["client 2"].x, strict=True)]
    assert by_name[f"step of {sgd}"].x[-1] == pytest.approx(middle[-1])  # the SGD server's model is the clients' mean
