"""Messages to nodes and their replies, fetched so that no reply holds up the others.

Flower's grid announces a reply before its vectors are uploaded. It then waits for them inside `pull_messages`, for more
than an hour if the node is slow enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedlada.flower.exchange import UNAVAILABLE, in_short, log, one_line, pauses
from fedlada.flower.inflation import BoundedGrid

ONE_BY_ONE = 1.0
"""Seconds of a pass in which a reply is fetched after the other; then the rest are begun at once."""
LAST_PASS = 5.0
"""Seconds after the time limit in which replies that arrived before it are still fetched."""


def ask(grid: Grid, messages: Mapping[int, Message], time_limit: float) -> dict[int, Message]:
    """Each client's first reply that arrived in time; missing clients are logged.

    An app that raised an error has replied with that error.
    """
    end = time.monotonic() + time_limit
    inbox = Inbox(grid)
    inbox.push(messages)
    replies: dict[int, Message] = {}
    for pause in pauses():
        is_last = time.monotonic() >= end
        for client, reply in inbox.pull(LAST_PASS if is_last else 0.0):
            if reply.has_error() and reply.error.code in UNAVAILABLE:
                log.warning("client %d did not answer: %s", client, in_short(reply.error))
            else:
                replies[client] = reply
        if is_last or not inbox.asked:
            break
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
    for client in inbox.asked.values():
        log.warning("client %d did not answer within %g s", client, time_limit)
    inbox.keep(set())
    return replies


class Inbox:
    """The messages that wait for a reply; each reply is fetched in a thread of its own."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.asked: dict[str, int] = {}
        """The receiver of each message that has no reply yet."""
        self._pulls: dict[str, _Fetch] = {}

    def push(self, messages: Mapping[int, Message]) -> None:
        """Send each receiver its message; one that could not be sent is logged."""
        # The ids come back in the order of the messages; one that could not be stored has none.
        ids = list(self.grid.push_messages(list(messages.values())))
        ids += [""] * (len(messages) - len(ids))
        for receiver, message_id in zip(messages, ids, strict=True):
            if message_id:
                self.asked[message_id] = receiver
            else:
                log.warning("client %d: its message could not be sent", receiver)

    def pull(self, patience: float = 0.0) -> list[tuple[int, Message]]:
        """The replies that have arrived, with their senders; `patience` is for all that are still being fetched."""
        # Apart from each other: Flower drops a whole batch if one reply is unreadable.
        begun = time.monotonic()
        for message_id in [one for one in self.asked if one not in self._pulls]:
            self._pulls[message_id] = _Fetch(self.grid, message_id)
            self._pulls[message_id].is_done(begun + ONE_BY_ONE - time.monotonic())
        end = time.monotonic() + patience
        done = [message_id for message_id, one in self._pulls.items() if one.is_done(end - time.monotonic())]
        return [found for message_id in done for found in self._taken(message_id, self._pulls.pop(message_id))]

    def keep(self, receivers: set[int]) -> None:
        """Forget the messages to all other receivers."""
        self.asked = {message_id: one for message_id, one in self.asked.items() if one in receivers}
        for message_id in [one for one in self._pulls if one not in self.asked]:
            del self._pulls[message_id]
            if isinstance(self.grid, BoundedGrid):
                self.grid.abandon(message_id)

    def _taken(self, message_id: str, pull: _Fetch) -> Iterator[tuple[int, Message]]:
        if isinstance(pull.error, OSError | httpx.HTTPError) or not isinstance(pull.error, Exception | None):
            raise pull.error  # the SuperLink cannot be reached
        if pull.error is not None:
            sender = self.asked.pop(message_id)
            log.warning("the answer of %d cannot be read and is dropped: %s", sender, one_line(pull.error))
        for reply in pull.replies:
            said = reply.metadata.reply_to_message_id
            if said == message_id and message_id in self.asked:
                yield self.asked.pop(message_id), reply
            else:
                log.warning("an answer to %s came twice or unasked: ignored", one_line(said) or "nothing")


class _Fetch:
    """A reply that is being fetched, as long as that takes."""

    def __init__(self, grid: Grid, message_id: str) -> None:
        self.replies: list[Message] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._fetch, args=(grid, message_id), daemon=True)
        self._thread.start()

    def is_done(self, seconds: float) -> bool:
        """Whether it has ended, after at most so many seconds."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _fetch(self, grid: Grid, message_id: str) -> None:
        try:
            self.replies = list(grid.pull_messages([message_id]))
        except BaseException as error:
            self.error = error
