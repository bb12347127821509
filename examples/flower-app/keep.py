"""Keep a SuperNode connected: start it, and start it again when it has ended or has given up.

    python keep.py flower-supernode --superlink server.example.org:9092 ...

A SuperNode of flwr 1.41 whose TLS handshake fails stops trying and does not end: the server was stalled for a while, or
has another certificate authority. A supervisor such as systemd then sees a running process and does nothing.
SIGTERM, SIGINT and SIGHUP end this program and the SuperNode.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading

GIVEN_UP = (b"Giving up reconnection", b"SSL/TLS handshake error detected")
"""What a SuperNode says when it stops trying: the first after several tries, the second after the first try too."""
TIME_TO_END = 20.0
"""Seconds until it is killed."""


def run_once(command: list[str], stopping: threading.Event) -> int:
    """Run it until it ends, gives up or is to stop; pass its output on."""
    # In a session of its own, so that nothing that it started stays behind.
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    has_given_up = threading.Event()
    threading.Thread(target=pass_on, args=(node, has_given_up), daemon=True).start()
    while node.poll() is None and not has_given_up.is_set() and not stopping.is_set():
        stopping.wait(1.0)
    node.terminate()  # so that it leaves, and its next start is admitted at once
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(TIME_TO_END)
    with contextlib.suppress(ProcessLookupError):  # it has left nothing behind
        os.killpg(node.pid, signal.SIGKILL)
    return node.wait()


def pass_on(node: subprocess.Popen[bytes], has_given_up: threading.Event) -> None:
    for line in node.stdout or ():
        with contextlib.suppress(OSError):  # nobody reads: a node that could not write would stall
            print(line.decode(errors="replace"), end="", flush=True)
        if any(said in line for said in GIVEN_UP):
            has_given_up.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds before the next start")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="flower-supernode and its options")
    given = parser.parse_args()
    if not given.command:
        parser.error("give the command that starts the SuperNode")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    while not stopping.is_set():
        try:
            code = run_once(given.command, stopping)
        except OSError as error:
            sys.exit(f"keep: {error}")
        if not stopping.is_set():
            print(f"keep: it ended with {code}; starting it again in {given.pause:g} s", flush=True)
            stopping.wait(given.pause)


if __name__ == "__main__":
    main()
