"""Nodes that come back as another client while their connection still counts as alive."""

from __future__ import annotations

from fedlada.flower import wire
from small_federation import QUICK, assert_same_bits, grid_of, replayed, strategy_of


def test_a_node_that_is_another_client_now_is_asked_as_that(caplog):
    """The node of client 1 restarts with index 4, whose own node is gone; Flower's id of it stays."""
    grid = grid_of("fedavg")

    def restart(_simulation, row):
        if row["round"] == 1:
            grid.leave(4)
            (node,) = [one for one in grid._nodes.values() if one.node_config["partition-id"] == 1]
            node.node_config["partition-id"] = 4
        if row["round"] == 3:
            grid.join(1)

    strategy = strategy_of("fedavg", replies=QUICK, cohort_size=None)
    real = strategy.run(grid, 5, callbacks=[restart], progress=False)
    assert [(row["clients"], row["refused"], row["lost"]) for row in real.history] == [
        ([0, 1, 2, 3, 4], [], []),
        ([0, 2, 3], [1], [4]),
        ([0, 2, 3, 4], [], [1]),
        ([0, 1, 2, 3, 4], [], []),
        ([0, 1, 2, 3, 4], [], []),
    ]
    assert "client 1 is refused: it is for client 1, and this node is client 4" in caplog.text
    assert_same_bits(real, replayed(real.history, "fedavg"))


def test_a_node_that_says_that_it_has_moved_is_only_greeted_again():
    """Whoever claims it is where it was: nobody else loses its place."""

    def fault(who, asked, reply):
        if asked.metadata.message_type == "train" and who == 1 and asked.content[wire.HEADER]["round"] == 2:
            reply.content[wire.HEADER]["status"] = "moved"
        return [reply]

    strategy = strategy_of("fedavg", replies=QUICK, cohort_size=None)
    real = strategy.run(grid_of("fedavg", fault=fault), 3, progress=False)
    assert [row["refused"] for row in real.history] == [[], [1], []]
    assert [row["clients"] for row in real.history] == [[0, 1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_a_newcomer_takes_the_place_of_a_node_that_is_gone_at_once():
    """It came while the old node still counted as connected, and was refused; nobody waits for its next greeting."""
    grid = grid_of("fedavg")
    old = list(grid.get_node_ids())[1]

    def replace_one(_simulation, row):
        if row["round"] == 1:
            grid.join(1)
        if row["round"] == 2:
            del grid._nodes[old]

    strategy = strategy_of("fedavg", replies=QUICK, cohort_size=None)
    real = strategy.run(grid, 4, callbacks=[replace_one], progress=False)
    assert [row["lost"] for row in real.history] == [[], [], [], []]
