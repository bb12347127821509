"""Run a federation on this machine, with TLS and nodes that prove who they are.

    python run.py --nodes 4 --rounds 8
    python run.py --nodes 4 --rounds 6 --kill 2 --check    kill a node on the way; compare with a simulation in the end
    python run.py --insecure                               without certificates and keys: for a look, never for data

Makes certificates and keys, starts a SuperLink, registers and starts the nodes, runs the app, shows how it goes, and
ends all that it started. `--folder` keeps everything: keys, logs, the run's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from federation import Federation, wait_until
from fedlada.methods.recipes import RECIPES

LIMIT = 1800.0


def main() -> int:
    arguments = parse()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="federation-"))
    if (folder / "keys").exists() or (folder / "flwr").exists():
        sys.exit(f"{folder} holds a federation already: choose another folder")
    if arguments.insecure:
        print("WITHOUT encryption and without keys: anybody who can reach the port can join and read", flush=True)
    # One thread each: a simulation has the same bits only with the same number of them.
    os.environ["OMP_NUM_THREADS"] = "1"
    config = {
        "method": arguments.method,
        "num_clients": arguments.nodes,
        "cohort_size": arguments.cohort_size or max(1, arguments.nodes - 1),
        "rounds": arguments.rounds,
        "seed": arguments.seed,
        "time_limit": arguments.time_limit,
        "out": arguments.out or folder / "run",
    }
    config["out"] = Path(config["out"]).resolve()
    with Federation(folder, insecure=arguments.insecure) as federation:
        code = train(federation, config, arguments.kill)
    if code:
        return code  # the logs that were spoken of stay
    if arguments.folder is None and arguments.out is not None:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"the run's folder is {config['out']}", flush=True)
    if arguments.kill is not None and not was_lost(config["out"], arguments.kill):
        print(f"client {arguments.kill} was to be killed, and no round lost it: nothing was shown", file=sys.stderr)
        return 1
    return check(config) if arguments.check else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedlada", choices=sorted(RECIPES))
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cohort-size", type=int, help="nodes per round (all but one)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds that a node has for an answer")
    parser.add_argument("--kill", type=int, metavar="CLIENT", help="kill this client's node in the middle of round 3")
    parser.add_argument(
        "--check", action="store_true", help="compare the weights with a simulation's; 1 if they differ"
    )
    parser.add_argument("--folder", type=Path, help="where keys and logs go; a new temporary folder by default")
    parser.add_argument("--out", type=Path, help="the run's folder")
    parser.add_argument("--insecure", action="store_true", help="without TLS and keys")
    arguments = parser.parse_args()
    for name in ("nodes", "rounds", "cohort_size"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if arguments.kill is not None and not 0 <= arguments.kill < arguments.nodes:
        parser.error(f"--kill names one of the clients 0 to {arguments.nodes - 1}, got {arguments.kill}")
    if arguments.out is not None and arguments.out.is_file():
        parser.error(f"--out is a folder, and {arguments.out} is a file")
    return arguments


def train(federation: Federation, config: dict, kill: int | None) -> int:
    """Start the nodes and the run, show its log until it ends; its exit code."""
    for client in range(config["num_clients"]):
        federation.start_node(client)
        print(f"node {client} is started{'' if federation.insecure else ' and registered'}", flush=True)
    # Without keys no node has an id that it keeps: anybody may claim to be any client.
    ids = ",".join(str(federation.node_ids[client]) for client in sorted(federation.node_ids))
    job = federation.run(**config, **({"node_ids": ids} if ids else {}))
    shown, end = 0, time.monotonic() + LIMIT
    while (running := job.poll() is None) or len(federation.log("run")) > shown:
        text = federation.log("run")
        for line in text[shown : text.rfind("\n") + 1].splitlines():
            if "fedlada:" in line or ": round " in line:
                print(line, flush=True)
        shown = max(shown, text.rfind("\n") + 1)
        if kill is not None and rounds_done(config["out"]) >= 2:
            kill_in_mid_round(federation, kill, job)
            kill = None
        if time.monotonic() > end:
            sys.exit(f"the run takes more than {LIMIT:g} s: see {federation.folder / 'logs'}")
        if not running:
            break
        time.sleep(0.5)
    if rounds_done(config["out"]) < config["rounds"]:
        print(federation.log("run")[-3000:], file=sys.stderr)
        print(f"the run ended before its last round: see {federation.folder / 'logs'}", file=sys.stderr)
        return 1
    return job.returncode


def kill_in_mid_round(federation: Federation, client: int, job: subprocess.Popen[bytes]) -> None:
    """Kill a node as soon as it is at work."""
    wait_until(lambda: bool(at_work(federation, client)) or job.poll() is not None, 90, "the node has no work")
    federation.kill(f"node-{client}")
    print(f"killed the node of client {client} at its work", flush=True)


def rounds_done(out: Path) -> int:
    path = out / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def was_lost(out: Path, client: int) -> bool:
    """Whether a round went on without this client because it did not answer."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return any(client in row["lost"] for row in rows)


def at_work(federation: Federation, client: int) -> set[str]:
    """The processes of a node that work on messages now."""
    group = str(federation.processes[f"node-{client}"].pid)
    shown = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True).stdout
    processes = [line.split(maxsplit=2) for line in shown.splitlines()]
    return {pid for pid, pgid, command in processes if pgid == group and "flwr-clientapp" in command}


def check(config: dict) -> int:
    """Simulate the cohorts that the federation had and compare every bit of the weights."""
    import torch
    from federated import server_app, task
    from safetensors.torch import load_file

    import fedlada
    from fedlada.data import load_digits

    torch.set_num_threads(1)
    rows = [json.loads(line) for line in (config["out"] / "metrics.jsonl").read_text().splitlines()]
    history = [row["clients"] for row in rows]
    settings = server_app.settings({name.replace("_", "-"): value for name, value in config.items()})
    del settings["cohort_size"]
    train_data, test = load_digits()
    result = fedlada.simulate(
        task.make_model,
        train_data,
        test=test,
        partition=task.shares(config["num_clients"]),
        cohorts=fedlada.cohorts.Scheduled(history),
        rounds=len(history),
        **settings,
    )
    trained, simulated = load_file(config["out"] / "model.safetensors"), result.model.state_dict()
    equal = trained.keys() == simulated.keys() and all(torch.equal(trained[name], simulated[name]) for name in trained)
    lost = [(row["round"], row["lost"]) for row in rows if row["lost"]]
    print(f"accuracy {rows[-1]['test_accuracy']:.4f}; cohorts {history}; lost (round, clients): {lost}")
    if not equal:
        print("the weights DIFFER from the simulation's for the same cohort history")
        return 1
    print(f"the weights equal the simulation's for the same cohort history, bit for bit ({len(history)} rounds)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
