"""A federation inside one process, to test apps and misbehaving nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

Fault = Callable[[int, Message, Message], Iterable[Message]]
"""Maps the client's index, the message and the true reply to the replies that arrive: none, another, several."""

APP_RAISED = 2
"""Flower's error code for an app that raised an error."""


class InProcessGrid(Grid):
    """Calls a `ClientApp` directly, as node 0 to `num_nodes - 1`; each keeps its own context between messages.

    Replies arrive in reverse order, because real ones arrive in any order.
    """

    def __init__(
        self,
        app: ClientApp,
        num_nodes: int,
        *,
        node_config: Mapping[str, Any] | None = None,
        run_config: Mapping[str, Any] | None = None,
        fault: Fault | None = None,
    ) -> None:
        self.app = app
        self.node_config = dict(node_config or {})
        self.num_nodes = num_nodes
        self.run_config = dict(run_config or {})
        self.fault = fault
        self._nodes: dict[int, Context] = {}
        self._arrived: dict[str, list[Message]] = {}
        self._run: Any = None
        self._counter = 0
        _be_a_server()
        for client in range(num_nodes):
            self.join(client)

    def join(self, client: int) -> None:
        """Connect a node of that index, with a new node id and only the state on its disk."""
        self._counter += 1
        node_id = 1_000_000 + 1_103_515_245 * self._counter % (2**31 - 1)  # a prime: no id twice, and in no order
        config = {"partition-id": client, "num-partitions": self.num_nodes, **self.node_config}
        self._nodes[node_id] = Context(0, node_id, config, RecordDict(), self.run_config)

    def leave(self, client: int) -> None:
        """Disconnect the node of that index silently."""
        self._nodes = {
            node_id: context
            for node_id, context in self._nodes.items()
            if context.node_config["partition-id"] != client
        }

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self._counter += 1
            message_id = f"message-{self._counter}"
            message.metadata.__dict__["_message_id"] = message_id  # as Flower's own grids do it
            self._arrived[message_id] = list(self._answers(message))
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, the last first."""
        return [reply for message_id in reversed(list(message_ids)) for reply in self._arrived.pop(message_id, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answers(self, message: Message) -> Iterable[Message]:
        context = self._nodes.get(message.metadata.dst_node_id)
        if context is None:
            return []
        try:
            reply = self.app(message, context)
        except Exception as error:
            reply = Message(Error(APP_RAISED, str(error)), reply_to=message)
        return [reply] if self.fault is None else self.fault(int(context.node_config["partition-id"]), message, reply)


def _be_a_server() -> None:
    """Set the server's identity, which Flower's executables set and which messages need."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
