"""A federation on this machine: a SuperLink with TLS, nodes that prove who they are, and runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from certificates import make_certificates, make_node_key

APP = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Otherwise the SuperLink and the nodes install the app's dependencies themselves.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}


class Federation:
    """Everything lies in `folder`: certificates, keys, logs, memories. Ends all that it started when it is left."""

    def __init__(self, folder: Path, *, app: Path = APP, insecure: bool = False) -> None:
        self.folder = folder.resolve()
        self.app = app
        self.insecure = insecure
        self.environment = {**os.environ, **SETTINGS, "FLWR_HOME": str(self.folder / "flwr")}
        # Flower looks for its other programs there.
        self.environment["PATH"] = f"{BIN}{os.pathsep}{self.environment.get('PATH', '')}"
        self.port = free_port()
        self.node_ids: dict[int, int] = {}
        """What Flower calls the node of each client; it stays with the node's key."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: list[TextIO] = []

    @property
    def keys(self) -> Path:
        """Certificates and keys."""
        return self.folder / "keys"

    def __enter__(self) -> Federation:
        try:
            self.start_superlink()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_superlink(self) -> None:
        """Certificates, then the SuperLink; returns when it listens."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        place = f'address = "127.0.0.1:{self.port}"\n'
        if self.insecure:
            options, trust = ["--insecure"], "insecure = true\n"
        else:
            make_certificates(self.keys, ["127.0.0.1", "localhost"])
            options = [*self._certificate(), "--enable-supernode-auth"]
            trust = f'root-certificates = "{self.keys / "ca.crt"}"\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{place}{trust}')
        self._start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", self.port,
            "--disable-runtime-dependency-installation", *options,
        )  # fmt: skip
        wait_until(lambda: listens(self.port) or self._dead("superlink"), 60, "the SuperLink does not listen")

    def start_node(self, client: int, *, key: str | None = None, ca: Path | None = None, register: bool = True) -> None:
        """Start the node of a client; its key is made and registered the first time.

        `key` names another key than its own (empty: none at all), `ca` another authority to trust.
        """
        name = f"node-{client}"
        key = name if key is None else key
        options: list[Any] = ["--insecure"]
        if not self.insecure:
            if key and not (self.keys / key).exists():
                make_node_key(self.keys / key)
                if register:
                    said = self.flwr("supernode", "register", self.keys / f"{key}.pub", "here", "--format", "json")
                    self.node_ids[client] = int(json.loads(said)["node-id"])
            options = ["--root-certificates", ca or self.keys / "ca.crt", *self._certificate()]
            options += ["--auth-supernode-private-key", self.keys / key] if key else []
        config = f'partition-id={client} memory="{self.folder / "memory" / name}"'
        self._start(
            name, "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1",
            "--port", free_port(), "--node-config", config, *options,
        )  # fmt: skip

    def run(self, name: str = "run", **config: Any) -> subprocess.Popen[bytes]:
        """Start a run of the app; its progress goes to the log of that name."""
        values = " ".join(f"{key.replace('_', '-')}={_toml(value)}" for key, value in config.items())
        return self._start(name, "flwr", "run", self.app, "here", "--stream", "--run-config", values)

    def flwr(self, *arguments: Any) -> str:
        """One command of Flower's own."""
        command = [str(BIN / "flwr"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def kill(self, name: str) -> None:
        """End a process and all that it started, at once."""
        process = self.processes.pop(name)
        kill_group(process)

    def stop(self, name: str, seconds: float = 30) -> None:
        """Ask a process to end and wait for it: a node says good-bye, and can come back at once."""
        process = self.processes[name]
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
        self.kill(name)

    def log(self, name: str) -> str:
        """What a process has said so far."""
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End everything."""
        # A SuperLink puts what it starts into sessions of their own: these are found by their parents.
        started = descendants([process.pid for process in self.processes.values()])
        for process in reversed(self.processes.values()):
            kill_group(process)
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes.clear()
        for log in self.logs:
            log.close()

    def _certificate(self) -> list[Any]:
        keys = self.keys
        return [
            "--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.pem",
            "--ssl-keyfile", keys / "server.key",
        ]  # fmt: skip

    def _start(self, name: str, program: str, *arguments: Any) -> subprocess.Popen[bytes]:
        log = (self.folder / "logs" / f"{name}.log").open("a")
        self.logs.append(log)
        command = [str(BIN / program), *map(str, arguments)]
        # A session of its own, so that it can be ended with all that it starts.
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True, cwd=self.folder
        )
        self.processes[name] = process
        return process

    def _dead(self, name: str) -> bool:
        if self.processes[name].poll() is None:
            return False
        raise RuntimeError(f"{name} ended at once: {self.log(name)[-2000:]}")


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, (str, Path)) else str(value)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and all in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def descendants(pids: list[int]) -> list[int]:
    """All processes that these started, and those that those started."""
    shown = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in shown.splitlines())
    found, last = set(pids), set[int]()
    while found != last:
        last = set(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return sorted(found - set(pids))


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Look again and again, at most so long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise} (within {seconds:g} s)")
        time.sleep(0.2)
