"""Which node is which client: the operator may fix it, and no other node takes part then."""

from __future__ import annotations

import pytest

from fedlada.flower import Replies
from small_federation import QUICK, assert_same_bits, grid_of, simulate, strategy_of


def ids_of(grid):
    return dict(enumerate(grid.get_node_ids()))


def test_a_registered_node_cannot_take_the_place_of_another(caplog):
    """It connects first, and names another client."""
    grid = grid_of("fedlada")
    ids = ids_of(grid)
    grid.leave(2)
    grid.join(2)
    thief = list(grid.get_node_ids())[-1]
    ids[2], ids[4] = -1, thief  # the key of client 4, with another partition-id
    real = strategy_of("fedlada", node_ids=ids, replies=Replies(nodes=3, time_limit=0.3)).run(grid, 4, progress=False)
    assert "it says it is client 2, which node_ids gives to another node" in caplog.text
    assert not {2, 4} & {client for row in real.history for client in row["clients"]}


def test_nodes_that_are_not_named_are_never_asked():
    grid = grid_of("fedlada")
    ids = ids_of(grid)
    asked = set()
    grid.fault = lambda client, _message, reply: asked.add(client) or [reply]
    named = {client: ids[client] for client in (0, 1, 3)}
    real = strategy_of("fedlada", node_ids=named, replies=QUICK, cohort_size=5).run(grid, 2, progress=False)
    assert asked == {0, 1, 3}
    assert [row["clients"] for row in real.history] == [[0, 1, 3]] * 2
    assert [row["lost"] for row in real.history] == [[2, 4]] * 2


def test_with_all_named_a_run_has_the_same_bits():
    grid = grid_of("fedlada")
    real = strategy_of("fedlada", node_ids=ids_of(grid), replies=QUICK).run(grid, 3, progress=False)
    assert_same_bits(real, simulate("fedlada", 3))


@pytest.mark.parametrize(
    ("node_ids", "sentence"),
    [
        ({}, "node_ids maps clients, 0 to 4, to Flower's node ids, got {}"),
        ({5: 1}, "node_ids maps clients, 0 to 4, to Flower's node ids"),
        ({0: "7"}, "to Flower's node ids, got {0: '7'}"),
        ({0: True}, "to Flower's node ids, got {0: True}"),
        ({True: 7}, "to Flower's node ids, got {True: 7}"),
        ({"0": 7}, "to Flower's node ids, got {'0': 7}"),
        ([7, 8], r"to Flower's node ids, got \[7, 8\]"),
        ({0: 7, 1: 7}, "node_ids gives one node to two clients"),
    ],
)
def test_a_wrong_mapping_is_refused(node_ids, sentence):
    with pytest.raises(ValueError, match=sentence):
        strategy_of("fedlada", node_ids=node_ids)


def test_weights_by_examples_need_every_client():
    grid = grid_of("fedlada")
    named = {client: node for client, node in ids_of(grid).items() if client < 4}
    with pytest.raises(ValueError, match="names 4 of 5 clients"):
        strategy_of("fedlada", node_ids=named, weights="examples", replies=QUICK).run(grid, 1, progress=False)
