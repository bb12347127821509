"""Flower's own grid for deployments, over a SuperLink that stands in this process."""

# ruff: noqa: N802 (methods have the names of Flower's requests)

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import GetNodesResponse, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid


@dataclass
class Deflated:
    """A reply as it is stored on a SuperLink."""

    message: Message
    tree: ObjectTree
    contents: dict[str, bytes]

    @classmethod
    def of(cls, message: Message) -> Deflated:
        contents = {object_id: one.deflate() for object_id, one in get_all_nested_objects(message).items()}
        return cls(message, get_object_tree(message), contents)


@dataclass
class InProcessLink:
    """Everything that `HttpGrid` asks of a SuperLink; its nodes answer when their replies are pulled."""

    app: object
    num_nodes: int
    fault: object = None
    objects: dict[str, bytes] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)
    num_pulled: int = 0

    def grid(self) -> HttpGrid:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        grid = HttpGrid("127.0.0.1:1", insecure=True, token="none")
        grid._run = SimpleNamespace(run_id=1)
        grid._client = self
        return grid

    def GetNodes(self, _request):
        return GetNodesResponse(nodes=[NodeInfo(node_id=100 + client) for client in range(self.num_nodes)])

    def PushMessages(self, request):
        ids = [message.metadata.message_id for message in request.messages_list]
        wanted = {one.object_id for tree in request.message_object_trees for one in iterate_object_tree(tree)}
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=sorted(wanted))

    def PushObject(self, request):
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullMessages(self, request):
        replies = [self._reply(message_id) for message_id in request.message_ids]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(one.message)) for one in replies],
            message_object_trees=[one.tree for one in replies],
        )

    def PullObject(self, request):
        self.num_pulled += 1
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()

    def _reply(self, message_id: str) -> Deflated:
        message = inflate_object_from_contents(message_id, dict(self.objects))
        message.metadata.__dict__["_message_id"] = message_id
        client = message.metadata.dst_node_id - 100
        node = Context(1, message.metadata.dst_node_id, {"partition-id": client}, RecordDict(), {})
        reply = self.app(message, node)
        if self.fault is not None:
            self.fault(client, message, reply)
        found = Deflated.of(reply)
        reply.metadata.__dict__["_message_id"] = found.tree.object_id
        self.objects |= found.contents
        return found
