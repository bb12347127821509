"""The program that keeps a SuperNode connected, around a node that does what is asked of it."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

KEEP = Path(__file__).parents[2] / "examples" / "flower-app" / "keep.py"
NODE = """
import os, pathlib, subprocess, sys, time
here = pathlib.Path(sys.argv[1])
with open(here / "starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
starts = len((here / "starts").read_text().split())
if starts == 1:  # it gives up and goes on as a process
    print("WARNING: Giving up reconnection after 30.79 seconds and 2 tries.", flush=True)
elif starts == 2:
    print("ERROR: SSL/TLS handshake error detected.", flush=True)
elif starts == 3:  # it dies, and what it started holds its output
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (here / "child").write_text(str(child.pid))
    sys.exit(3)
else:
    print("connected", flush=True)
time.sleep(600)
"""


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_node_that_gave_up_or_died_is_started_again_and_leaves_nothing(number, tmp_path):
    node = tmp_path / "node.py"
    node.write_text(NODE)
    command = [sys.executable, KEEP, "--pause", "0", sys.executable, node, tmp_path]
    keep = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    limit = threading.Timer(100, keep.kill)
    limit.start()
    try:
        said = []
        for line in keep.stdout:
            said.append(line)
            if line == "connected\n":
                break
        keep.send_signal(number)
        assert keep.wait() == 0
    finally:
        keep.kill()
        keep.communicate()
        limit.cancel()
    assert [line for line in said if line.startswith("keep")] == [
        f"keep: it ended with {code}; starting it again in 0 s\n" for code in (-signal.SIGTERM, -signal.SIGTERM, 3)
    ]
    started = [*map(int, (tmp_path / "starts").read_text().split()), int((tmp_path / "child").read_text())]
    assert len(started) == 5
    end = time.monotonic() + 30
    while any(map(is_running, started)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, started))


@pytest.mark.parametrize(("arguments", "sentence"), [([], "give the command"), (["/nowhere/node"], "/nowhere/node")])
def test_what_cannot_be_started_is_one_sentence(arguments, sentence):
    run = subprocess.run([sys.executable, KEEP, *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode in (1, 2)
    assert sentence in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
