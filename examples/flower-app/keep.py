"""Keep a SuperNode connected: start it, and start it again when it has ended or has given up.

    python keep.py flower-supernode --superlink server.example.org:9092 ...

A SuperNode of flwr 1.41 whose TLS handshake fails stops trying and does not end: the server was stalled for a while, or
has another certificate authority. A supervisor such as systemd then sees a running process and does nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType

GIVEN_UP = b"Giving up reconnection"
"""What a SuperNode says before it stops trying."""
TIME_TO_END = 20.0
"""Seconds until it is killed."""


def run_once(command: list[str]) -> int:
    """Run it until it ends or gives up, and pass its output on."""
    # In a session of its own, so that nothing that it started stays behind.
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    has_given_up = threading.Event()
    threading.Thread(target=pass_on, args=(node, has_given_up), daemon=True).start()
    try:
        while node.poll() is None and not has_given_up.wait(1.0):
            pass
    finally:
        end(node)
    return node.returncode


def pass_on(node: subprocess.Popen[bytes], has_given_up: threading.Event) -> None:
    for line in node.stdout or ():
        print(line.decode(errors="replace"), end="", flush=True)
        if GIVEN_UP in line:
            has_given_up.set()


def end(node: subprocess.Popen[bytes]) -> None:
    """End the SuperNode: SIGTERM lets it leave, so that its next start is admitted at once."""
    node.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(TIME_TO_END)
    with contextlib.suppress(ProcessLookupError):  # also when it has left nothing behind
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def stop(number: int, _: FrameType | None) -> None:
    """Leave `run_once` by its `finally`."""
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds before the next start")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="flower-supernode and its options")
    given = parser.parse_args()
    if not given.command:
        parser.error("give the command that starts the SuperNode")
    signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            code = run_once(given.command)
            print(f"keep: it ended with {code}; starting it again in {given.pause:g} s", flush=True)
            time.sleep(given.pause)
    except KeyboardInterrupt:
        sys.exit(130)
    except FileNotFoundError as error:
        sys.exit(f"keep: {error}")


if __name__ == "__main__":
    main()
