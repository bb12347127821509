"""A real federation on 127.0.0.1: SuperLink and nodes are processes, with TLS and keys.

One test, because the federation is started once: FedLADA undisturbed, then SCAFFOLD with a node and the server killed
on the way, while strangers knock at the door.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file

import fedlada

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "tests" / "flower-app"
sys.path[:0] = [str(ROOT / "examples" / "flower-app"), str(APP)]

from blobs import apps  # noqa: E402
from certificates import make_certificates  # noqa: E402
from run import was_lost  # noqa: E402

from federation import Federation, descendants, wait_until  # noqa: E402
from warm_apps import warm_apps  # noqa: E402

LIMIT = 400
STRANGERS = {
    "node-10": "All SuperNodes must be registered",  # without a key
    "node-11": "Failed to activate SuperNode",  # with a key that nobody registered
    "node-12": "CERTIFICATE_VERIFY_FAILED",  # it trusts another authority
}


def holder_of(file: Path) -> int:
    """The process that has this file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink() == file:
                return int(link.parts[2])
    raise AssertionError(f"nobody holds {file}")


def finish(federation: Federation, name: str) -> None:
    process = federation.processes[name]
    wait_until(lambda: process.poll() is not None, LIMIT, f"{name} does not end")


def start_strangers(federation: Federation) -> None:
    make_certificates(federation.folder / "others", ["127.0.0.1"])
    federation.start_node(10, key="")
    federation.start_node(11, key="unknown", register=False)
    federation.start_node(12, key="node-0", ca=federation.folder / "others" / "ca.crt")


def ids_of(federation: Federation) -> str:
    """Flower's ids of the clients' nodes, in the clients' order: a node that restarts keeps its own."""
    return ",".join(str(federation.node_ids[client]) for client in range(apps.NUM_CLIENTS))


def run_with_kills(federation: Federation, out: Path, time_limit: float) -> None:
    """Kill the server in round 2 and start it again, a node too; kill the other node in the middle of round 3."""
    hold = apps.hold(out)
    hold.write_text("1")
    config = {"method": "scaffold", "rounds": 3, "out": out, "time_limit": time_limit, "node_ids": ids_of(federation)}
    federation.run("killed", **config)
    wait_until(lambda: hold.read_text() == apps.AT_WORK, LIMIT, "no second round")
    server = holder_of(out / ".lock")
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not lives(server), LIMIT, "the server lives")
    federation.kill("killed")  # what shows its progress; the SuperLink itself takes a while to notice
    federation.stop("node-1")
    federation.start_node(1)
    hold.write_text("2")
    federation.run("resumed", **config)
    wait_until(lambda: hold.read_text() == apps.AT_WORK, LIMIT, "no third round")
    federation.kill("node-0")
    finish(federation, "resumed")


def lives(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has buried yet has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def rows_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def check_weights(out: Path, method: str, rounds: int) -> list[dict]:
    """The weights are those of a simulation with the same cohorts; the rounds are given back."""
    rows = rows_of(out)
    assert len(rows) == rounds
    result = fedlada.simulate(
        apps.make_model,
        apps.samples(),
        test=apps.samples(),
        method=method,
        partition=apps.SHARES,
        cohorts=fedlada.cohorts.Scheduled([row["clients"] for row in rows]),
        rounds=rounds,
        **apps.SETTINGS,
    )
    trained = load_file(out / "model.safetensors")
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(trained[name], tensor), name
    assert [row["test_loss"] for row in rows] == result.history["test_loss"]
    return rows


def test_a_real_federation_equals_the_simulation_whoever_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.4")  # a message waits for its process: 1 s without
    torch.set_num_threads(1)
    federation = Federation(tmp_path / "federation", app=APP)
    with warm_apps(federation.environment) as forking, federation:
        try:
            for client in range(apps.NUM_CLIENTS):
                federation.start_node(client)
            start_strangers(federation)
            federation.run("calm", method="fedlada", rounds=2, out=tmp_path / "calm", node_ids=ids_of(federation))
            finish(federation, "calm")
            # A killed node is waited for so long: no longer than this machine, busy or not, makes necessary.
            slowest = max(row["seconds"] for row in rows_of(tmp_path / "calm"))
            run_with_kills(federation, tmp_path / "rough", max(20.0, 2.5 * slowest))
        finally:
            for name in federation.processes:
                print(f"== {name}: {federation.log(name)[-2000:]}")
            started = descendants([forking, *(process.pid for process in federation.processes.values())])
        for name, sentence in STRANGERS.items():
            assert federation.processes[name].poll() == 1
            assert sentence in federation.log(name)
    check_weights(tmp_path / "calm", "fedlada", 2)
    rows = check_weights(tmp_path / "rough", "scaffold", 3)
    assert [row["clients"] for row in rows] == [[0, 1], [0, 1], [1]]  # the second from a memory on the disk
    assert rows[2]["lost"] == [0]
    assert (was_lost(tmp_path / "rough", 0), was_lost(tmp_path / "rough", 1)) == (True, False)
    assert started
    wait_until(lambda: not any(map(lives, started)), 10, "processes are left behind")
