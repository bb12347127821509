"""Signals that arrive while a command starts its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from fedlada.workbench.ending import held_back, let_through

CHILD = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
print("waits", flush=True)
signal.signal(signal.SIGINT, lambda *_: print("arrives", flush=True))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
"""


def start_a_child(steps):
    with held_back([signal.SIGINT]):
        os.kill(os.getpid(), signal.SIGINT)
        child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60)
        steps += child.stdout.split()
    steps.append("goes on")


def test_a_signal_that_is_held_back_arrives_afterwards():
    """Whichever thread takes it."""
    steps, ends = [], threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            start_a_child(steps)
    finally:
        signal.signal(signal.SIGINT, before)
        ends.set()
        thread.join()
    assert steps == ["waits", "arrives"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_process_that_was_started_meanwhile_lets_them_through():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    let_through([signal.SIGINT])
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
