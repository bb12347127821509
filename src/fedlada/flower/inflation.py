"""A bound on the memory that a reply takes, checked before Flower puts its objects together.

Flower sends a message as a tree of objects, each of them once, under its digest. An array is an object that lists its
chunks, and it may list one chunk many times: a few megabytes that were sent can become terabytes.
"""

# ruff: noqa: N802 (methods have the names of Flower's requests)

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedlada.flower.exchange import log
from fedlada.flower.grid import InProcessGrid

RECORDS = 1 << 20
"""Most bytes of a reply besides the chunks of its arrays: header, metrics, names, lists of chunks.

Arrays may exceed their own bound by as much, so that small faults are found, and named, after inflation.
"""
OBJECTS = 1000
"""Most objects of a reply, and one more for each `SMALL_CHUNK` bytes of its vectors: each is a request."""
SMALL_CHUNK = 1 << 16
CHUNK = b"ArrayChunk  "
"""The head of a chunk: its type, no children, then its length."""
LONGEST_CHUNK_HEAD = 64


class TooLarge(ValueError):
    """A reply that would take more memory than any valid one."""


def bounded_grid(grid: Grid, most: int) -> Grid:
    """The grid, with replies of at most so many bytes of vectors; a grid inside this process inflates nothing."""
    if hasattr(type(grid), "_runtime_client"):
        return BoundedGrid(grid, most)
    if not isinstance(grid, InProcessGrid) and type(grid).__name__ != "InMemoryGrid":
        log.warning("the grid %s is not known: the memory of a reply is not bounded", type(grid).__name__)
    return grid


class Abandoned(RuntimeError):
    """A reply that nobody waits for any more."""


class BoundedGrid(Grid):
    """A grid that refuses a reply before it is inflated, with `TooLarge`."""

    def __init__(self, grid: Any, most: int) -> None:
        self.grid, self.most = grid, most
        self._fetching: dict[str, _MeasuringClient] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        # Flower's grid reads through its client. A copy for each call, so that calls may overlap.
        one, ids = copy.copy(self.grid), list(message_ids)
        one._client = client = _MeasuringClient(self.grid._runtime_client, self.most)
        self._fetching |= dict.fromkeys(ids, client)
        try:
            return list(one.pull_messages(ids))
        finally:
            for message_id in ids:
                self._fetching.pop(message_id, None)

    def abandon(self, message_id: str) -> None:
        """Stop fetching the reply to this message, and free what has arrived of it."""
        if (client := self._fetching.get(message_id)) is not None:
            client.is_abandoned = True

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()  # type: ignore[no-any-return]

    def get_nodes(self) -> Iterable[Any]:
        return self.grid.get_nodes()  # type: ignore[no-any-return]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)  # type: ignore[no-any-return]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.grid.send_and_receive(messages, timeout=timeout)  # type: ignore[no-any-return]


class _MeasuringClient:
    """Flower's client during one call: measures the objects of each reply on their way to the grid.

    A reply that is too large is not fetched further. It is refused where Flower confirms it, after fetching and before
    inflating, so that the SuperLink can forget it.
    """

    def __init__(self, client: Any, most: int) -> None:
        self._client, self._most = client, most + RECORDS
        self._most_objects = OBJECTS + most // SMALL_CHUNK
        self._lock = threading.Lock()  # objects are fetched by several threads
        self._crowded: set[str] = set()
        self.is_abandoned = False
        self._begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _begin(self) -> None:
        self._chunks: dict[str, int] = {}
        self._records: dict[str, bytes] = {}
        self._num_bytes = self._num_record_bytes = 0
        self._fault = ""
        self._nothing: Any = None

    def PullMessages(self, request: Any) -> Any:
        """The replies and the trees of their objects."""
        response = self._client.PullMessages(request)
        for tree in response.message_object_trees:
            if _has_more(tree, self._most_objects):
                self._crowded.add(tree.object_id)
                del tree.children[:]
        return response

    def PullObject(self, request: Any) -> Any:
        """One object, in any order; nothing more of a reply that is too large already."""
        if self.is_abandoned:
            raise Abandoned("nobody waits for it any more")
        if self._fault:
            return self._nothing
        response = self._client.PullObject(request)
        with self._lock:
            if fault := self._measured(request.object_id, response.object_content):
                response.object_content = b""
                self._nothing, self._fault = response, fault
        return response

    def ConfirmMessageReceived(self, request: Any) -> Any:
        """Flower's confirmation, the last request before it inflates the reply."""
        response = self._client.ConfirmMessageReceived(request)
        if request.message_object_id in self._crowded:
            raise TooLarge(f"it has more than {self._most_objects} objects")
        if self._fault:
            raise TooLarge(self._fault)
        needed = sum(map(self._joined, self._records.values()))
        if needed > self._most:
            raise TooLarge(f"its arrays would take {needed} bytes of memory, and at most {self._most} are possible")
        self._begin()
        return response

    def _measured(self, object_id: str, content: bytes) -> str:
        """Count an object; the fault if it is too much."""
        self._num_bytes += len(content)
        if content.startswith(CHUNK) and (head := content.find(b"\0", 0, LONGEST_CHUNK_HEAD)) >= 0:
            self._chunks[object_id] = len(content) - head - 1
        else:
            self._num_record_bytes += len(content)
            self._records[object_id] = content
        if self._num_record_bytes > RECORDS:
            return f"it has more than {RECORDS} bytes besides its arrays"
        if self._num_bytes > self._most:
            return f"it has more than {self._most} bytes"
        return ""

    def _joined(self, content: bytes) -> int:
        """The bytes of an array whose chunks are joined; 0 for another object."""
        head, _, body = content.partition(b"\0")
        if not head.startswith(b"Array "):
            return 0
        children = head.decode().split(" ")[1].split(",")
        chunks = [children[place] for place in json.loads(body)["arraychunk_ids"]]
        if not self._chunks.keys() >= set(chunks):
            raise TooLarge("one of its arrays consists of objects that are no chunks")
        return sum(self._chunks[one] for one in chunks)


def _has_more(tree: Any, most: int) -> bool:
    """Whether a tree has more objects than this."""
    found, waiting = 0, [tree]
    while waiting and found <= most:
        found += 1
        waiting += waiting.pop().children
    return found > most
