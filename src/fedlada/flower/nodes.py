"""The mapping of nodes to clients: Flower's node ids may change, a client's index never does."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedlada.flower import wire
from fedlada.flower.exchange import (
    MOST_READ,
    UNAVAILABLE,
    Replies,
    TooFewReplies,
    in_words,
    log,
    one_line,
    pauses,
    reasons,
)
from fedlada.flower.inbox import Inbox
from fedlada.flower.untrained import OTHER_UNTRAINED

SPEAK_EVERY = 30.0
"""Seconds between two log lines about missing nodes."""
GREET_AGAIN = 60.0
"""Seconds after which a refused node is asked again; a silent one, after the time limit."""

MOST_EXAMPLES = 1 << 40
"""Upper limit of a node's samples: larger numbers could overflow."""


def said_examples(number: int) -> int:
    """A node's number of samples; refuses one that cannot be."""
    if not 1 <= number <= MOST_EXAMPLES:
        raise wire.WrongMessage(f"it says it has {number} samples: 1 to {MOST_EXAMPLES} are possible")
    return number


def check_clients(name: str, clients: Collection[int], num_clients: int) -> Collection[int]:
    """The indices of clients; refuses anything else."""
    if isinstance(clients, str) or not isinstance(clients, Collection) or set(clients) - set(range(num_clients)):
        raise ValueError(f"{name} must be indices of clients, 0 to {num_clients - 1}, such as [0], got {clients!r}")
    return clients


def check_node_ids(node_ids: Mapping[int, int] | None, num_clients: int) -> Mapping[int, int] | None:
    """The node of each client; refuses an index that no client has, what is no node id, and a node that is given twice.

    An id in quotes would be waited for in vain.
    """
    if node_ids is None:
        return None
    pairs = list(node_ids.items()) if isinstance(node_ids, Mapping) else []
    are_numbers = all(type(one) is int for pair in pairs for one in pair)
    if not pairs or not are_numbers or set(node_ids) - set(range(num_clients)):
        raise ValueError(f"node_ids maps clients, 0 to {num_clients - 1}, to Flower's node ids, got {node_ids!r}")
    if len(set(node_ids.values())) < len(node_ids):
        raise ValueError("node_ids gives one node to two clients")
    return dict(node_ids)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Facts that the server and every node must agree on."""

    method: str
    """Its fingerprint."""
    seed: int
    num_params: int
    trained: str
    """A digest of the names, shapes and dtypes of the model's trained parameters."""
    untrained: str
    """The summary of the model's untrained parameters and buffers."""
    loss: str = ""
    """The loss, if the server knows it: it was given one, or test data."""


class Nodes:
    """The clients connected now. New nodes are asked to identify themselves; a round never waits for a newcomer."""

    def __init__(
        self,
        grid: Grid,
        shared: Shared,
        num_clients: int,
        time_limit: float,
        node_ids: Mapping[int, int] | None = None,
    ) -> None:
        self.grid = grid
        self.node_ids = node_ids
        """The node of each client, where the operator has named them; no other is asked."""
        self.time_limit = time_limit
        self.shared = shared
        self.num_clients = num_clients
        self.present: dict[int, int] = {}
        """The node of each connected client."""
        self.num_examples: dict[int, int] = {}
        """The last reported samples by client."""
        self.deadline = 0.0
        """Deadline of the current round."""
        self._refused: dict[int, tuple[str, float]] = {}
        self._inbox = Inbox(grid)
        self._losses: dict[int, str] = {}

    @property
    def left(self) -> float:
        """Seconds until the deadline of the current round; not above zero when it is over."""
        return self.deadline - time.monotonic()

    def refresh(self) -> None:
        """Update the connected clients, and identify newcomers."""
        here = set(self.grid.get_node_ids())
        if self.node_ids is not None:
            here &= set(self.node_ids.values())
        for client, node_id in list(self.present.items()):
            if node_id not in here:
                log.warning("client %d has gone (node %d)", client, node_id)
                del self.present[client]
                self._refused.clear()  # one of them may have claimed its place
        self._refused = {node_id: why for node_id, why in self._refused.items() if node_id in here}
        self._inbox.keep(here)
        resting = {node_id for node_id, (_, when) in self._refused.items() if time.monotonic() - when < GREET_AGAIN}
        known = set(self.present.values()) | resting | set(self._inbox.asked.values())
        greeting = wire.content(wire.Greeting(seed=str(self.shared.seed), untrained=self.shared.untrained))
        hello = {
            node_id: Message(greeting, dst_node_id=node_id, message_type=MessageType.QUERY, ttl=self.time_limit)
            for node_id in sorted(here - known)
        }
        if hello:
            self._inbox.push(hello)
        waiting = set(self._inbox.asked.values())
        heard = self._inbox.pull()
        for node_id in waiting - set(self._inbox.asked.values()) - {node_id for node_id, _ in heard}:
            self._refused[node_id] = ("its answer cannot be read", time.monotonic())
        for node_id, reply in heard:
            self._hear(node_id, reply)

    def wait_at_start(self, replies: Replies, *, need_numbers: bool) -> None:
        """Wait for the nodes that the first round needs; for all if every client's number of samples is needed."""
        there = self.num_clients if self.node_ids is None else len(self.node_ids)
        wanted = there if replies.nodes is None else min(replies.nodes, there)
        if need_numbers and len(self.num_examples) < self.num_clients:
            if there < self.num_clients:
                raise ValueError(
                    f'weights="examples" needs every client\'s number of samples, and node_ids names {there} of '
                    f"{self.num_clients} clients"
                )
            wanted = self.num_clients
        self.wait_for(range(self.num_clients), wanted, replies.patience)

    def wait_for(self, clients: Collection[int], wanted: int, patience: float, enough: int | None = None) -> None:
        """Wait until this many of these clients are connected; at the deadline, continue if the minimum is."""
        start = spoke = time.monotonic()
        for pause in pauses():
            self.refresh()
            here = [client for client in clients if client in self.present]
            if len(here) >= wanted:
                return
            now = time.monotonic()
            if now - start >= patience and len(here) >= (wanted if enough is None else enough):
                return
            if now - start >= patience:
                raise TooFewReplies(
                    f"{len(here)} of the {wanted} nodes that are needed were there within {patience:g} s"
                    f"{self._refusals()}"
                )
            if now - spoke >= SPEAK_EVERY:
                able = clients if self.node_ids is None else [one for one in clients if one in self.node_ids]
                away = in_words([client for client in able if client not in self.present])
                why = self._refusals()
                log.info("waiting for nodes: %d of %d are there; not there: %s%s", len(here), wanted, away, why)
                spoke = now
            time.sleep(min(pause, start + patience - now))

    def _refusals(self) -> str:
        return reasons({f"node {node_id}": why for node_id, (why, _) in self._refused.items()})

    def examples(self) -> list[int]:
        """Every client's number of samples, once all have reported it."""
        return [self.num_examples[client] for client in range(self.num_clients)]

    def take_number(self, client: int, num_examples: int) -> bool:
        """Note a client's number of samples; whether it had another one before."""
        before = self.num_examples.get(client, num_examples)
        self.num_examples[client] = num_examples
        if before != num_examples:
            log.warning("client %d had %d samples and now has %d", client, before, num_examples)
        return before != num_examples

    def _hear(self, node_id: int, reply: Message) -> None:
        if reply.has_error() and reply.error.code in UNAVAILABLE:
            return  # asked again if it is still there
        try:
            hello = self._checked(node_id, reply)
        except wire.WrongMessage as error:
            why = one_line(error)
            if self._refused.get(node_id, ("", 0.0))[0] != why:
                log.warning("node %d cannot take part: %s", node_id, why)
            self._refused[node_id] = (why, time.monotonic())
            return
        self._refused.pop(node_id, None)
        self._losses[hello.client] = hello.loss
        if len(set(self._losses.values())) > 1:
            losses = "; ".join(f"client {client}: {one_line(loss)}" for client, loss in sorted(self._losses.items()))
            log.warning("nodes train with different losses (%s): give server_app the loss", losses[:MOST_READ])
        self.present[hello.client] = node_id
        self.take_number(hello.client, hello.num_examples)
        log.info("client %d is here (node %d) with %d samples", hello.client, node_id, hello.num_examples)

    def _checked(self, node_id: int, reply: Message) -> wire.Hello:
        hello = wire.read_header(reply, wire.Hello)
        if hello.refused:
            raise wire.WrongMessage(hello.refused[:MOST_READ])
        if not 0 <= hello.client < self.num_clients:
            raise wire.WrongMessage(f"it says it is client {hello.client}, but clients are 0 to {self.num_clients - 1}")
        if self.node_ids is not None and self.node_ids.get(hello.client) != node_id:
            raise wire.WrongMessage(f"it says it is client {hello.client}, which node_ids gives to another node")
        shared = self.shared
        if hello.num_params != shared.num_params:
            raise wire.WrongMessage(f"its model has {hello.num_params} parameters, the server's {shared.num_params}")
        if hello.method != shared.method:
            raise wire.WrongMessage(f"it has the method {hello.method[:MOST_READ]}, the server {shared.method}")
        if hello.trained != shared.trained:
            raise wire.WrongMessage(
                "its model's parameters have other names, shapes or dtypes than the server's: make the same model, and "
                "give the same dtype, on both sides"
            )
        if hello.has_untrained != 1:
            raise wire.WrongMessage(OTHER_UNTRAINED)
        if shared.loss and hello.loss != shared.loss:
            raise wire.WrongMessage(
                f"it trains with the loss {one_line(hello.loss)}, the server has {shared.loss}: give both apps the same"
            )
        said_examples(hello.num_examples)
        if hello.client in self.present:
            raise wire.WrongMessage(f"client {hello.client} is here already: give each node its own partition-id")
        return hello
