"""Starts Flower's apps without the seconds that importing takes: each is a fork of a process that has imported all.

Flower starts `flwr-clientapp` for every message and finds it by the path. A folder at the head of that path has
programs of these names, which ask this process for a fork. The fork runs Flower's own program with their arguments,
environment, working directory and files. It ends with the program that asked for it, however that ends.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APPS = ("flwr-clientapp", "flwr-serverapp")
BIN = Path(sys.executable).parent
ASKS = """#!{python} -IS
import json, os, socket, sys, time
link = socket.socket(socket.AF_UNIX)
for turn in range(600):
    try:
        link.connect({place!r})
        break
    except (FileNotFoundError, ConnectionRefusedError):  # it is still importing
        time.sleep(0.1)
request = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(request).to_bytes(8, "big")], [0, 1, 2])
link.sendall(request)
sys.exit(int(link.recv(8) or b"1"))
"""


@contextmanager
def warm_apps(environment: dict[str, str]) -> Iterator[int]:
    """Put these programs at the head of the environment's path; yields the process that forks."""
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "socket")
        for app in APPS:
            program = Path(folder) / app
            program.write_text(ASKS.format(python=sys.executable, place=place))
            program.chmod(0o755)
        server = subprocess.Popen([sys.executable, __file__, place], stdin=subprocess.PIPE, env=environment)
        environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
        try:
            yield server.pid
        finally:
            server.stdin.close()
            server.wait(timeout=60)


def serve(place: str) -> None:
    """Until standard input ends, as it does when whoever started this has died."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the forks' exit codes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(64)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            link, _ = listener.accept()
            size, files, _, _ = socket.recv_fds(link, 8, 3)
            request = b""
            while len(request) < int.from_bytes(size, "big") and (more := link.recv(2**16)):
                request += more
            if request and os.fork() == 0:
                listener.close()
                become(link, files, *json.loads(request))
            for file in files:
                os.close(file)
            link.close()


def become(link: socket.socket, files: list[int], words: list[str], folder: str, environment: dict[str, str]) -> None:
    """In the fork: run the program, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Who asked has died: SIGIO, and nobody handles it.
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([link], [], [], 0)[0]:
        os._exit(1)  # it had died before
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    program = str(BIN / Path(words[0]).name)
    sys.argv, sys.path[0] = [program, *words[1:]], str(BIN)
    code: object = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    fcntl.fcntl(link, fcntl.F_SETFL, 0)
    link.sendall(str(code if isinstance(code, int) else int(code is not None)).encode())
    os._exit(0)


if __name__ == "__main__":
    # Imported before the fork, else in every one.
    for name in ("flwr.superlink.cli", "flwr.supernode.cli", "fedlada.flower"):
        importlib.import_module(name)

    serve(sys.argv[1])
