"""Memory and bytes of a federation over Flower: 2, 4 and 8 real nodes with TLS, and up to 32 in one process.

    python benchmarks/flower_memory.py --out benchmarks/results/flower_arm_202611.md

FedLADA (three vectors down, two up) on one wide layer of 4,004,000 parameters; two rounds, all nodes in each. Memory is
each process's highest (VmHWM), bytes are those of metrics.jsonl and, beside them, those that the SuperLink counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APP = ROOT / "benchmarks" / "flower-app"
sys.path[:0] = [str(ROOT / "examples" / "flower-app"), str(APP)]

VECTOR = 4_004_000 * 4
ROUNDS = 2
PROGRAMS = ("flower-superlink", "flwr-serverapp", "flower-supernode", "flwr-clientapp")


def highest(pids: list[int], seen: dict[str, int]) -> None:
    """Note the highest memory of each program among these processes, in bytes."""
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        for program in PROGRAMS:
            if program in command and peak:
                seen[program] = max(seen.get(program, 0), 1024 * int(peak[1]))


def real(num_nodes: int) -> dict:
    """One federation of processes."""
    from federation import Federation, descendants

    seen: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with Federation(folder / "federation", app=APP) as federation:
            for client in range(num_nodes):
                federation.start_node(client)
            job = federation.run(num_clients=num_nodes, rounds=ROUNDS, out=folder / "run")
            while job.poll() is None:
                highest([*descendants([os.getpid()])], seen)
                time.sleep(0.3)
            counted = json.loads(federation.flwr("list", "here", "--format", "json"))
        rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return {"nodes": num_nodes, "memory": seen, "rows": rows, "counted": counted}


def in_process(num_nodes: int) -> dict:
    """One federation inside this process."""
    from wide import apps

    from fedlada.flower import InProcessGrid

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = apps.strategy_of(num_nodes).run(InProcessGrid(apps.client, num_nodes), ROUNDS, progress=False)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"nodes": num_nodes, "before": before, "after": after, "rows": list(result.history)}


def table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(
        [" | ".join(["", *heads, ""]).strip(), "|" + " --- |" * len(heads)] + [f"| {' | '.join(row)} |" for row in rows]
    )


def in_vectors(size: float) -> str:
    return f"{size / VECTOR:.2f}"


def report(reals: list[dict], inside: list[dict]) -> str:
    """The measurements as a page."""
    mb = 1e6
    lines = [
        "# Memory and bytes of a federation over Flower",
        "",
        f"{time.strftime('%d %B %Y')}; {os.cpu_count()} cores ({platform.machine()}), shared with other work; Python "
        f"{platform.python_version()}, torch {version('torch')}, flwr {version('flwr')}.",
        f"`python benchmarks/flower_memory.py`: FedLADA, {ROUNDS} rounds, all nodes in each, 4,004,000 parameters (one "
        f"vector is {VECTOR / mb:.1f} MB), TLS and node keys, everything on one machine.",
        "",
        "## Real nodes",
        "",
    ]
    rows = []
    for one in reals:
        last, memory = one["rows"][-1], one["memory"]
        rows.append(
            [
                str(one["nodes"]), in_vectors(last["bytes_down"]), in_vectors(last["bytes_up"]),
                *(f"{memory.get(program, 0) / mb:.0f}" for program in PROGRAMS),
                " / ".join(f"{row['seconds']:.0f}" for row in one["rows"]),
            ]
        )  # fmt: skip
    heads = [
        "nodes S",
        "down a round, vectors",
        "up a round, vectors",
        *(f"{name}, MB" for name in PROGRAMS),
        "s a round",
    ]
    lines += [table(heads, rows), "", "Memory is the highest of the largest process of its kind (VmHWM).", ""]
    lines += ["What the SuperLink counted for each run:", ""]
    lines += [f"- {one['nodes']} nodes: `{json.dumps(_traffic(one['counted']))}`" for one in reals]
    first, last = reals[0], reals[-1]
    slope = (last["memory"]["flwr-serverapp"] - first["memory"]["flwr-serverapp"]) / (last["nodes"] - first["nodes"])
    lines += [
        "",
        f"The ServerApp grows by {in_vectors(slope)} vectors for each further node.",
        "",
        "## In one process",
        "",
    ]
    rows = [
        [str(one["nodes"]), in_vectors(one["rows"][-1]["bytes_down"]), in_vectors(one["rows"][-1]["bytes_up"]),
         f"{one['before'] / mb:.0f}", f"{one['after'] / mb:.0f}", f"{one['rows'][-1]['seconds']:.1f}"]
        for one in inside
    ]  # fmt: skip
    heads = ["nodes S", "down a round, vectors", "up a round, vectors", "MB before", "MB highest", "s a round"]
    slope = (inside[-1]["after"] - inside[0]["after"]) / (inside[-1]["nodes"] - inside[0]["nodes"])
    lines += [table(heads, rows), "", f"It grows by {in_vectors(slope)} vectors for each further node.", ""]
    return "\n".join(lines)


def _traffic(listing: dict) -> dict:
    """Whatever Flower says of the traffic and the work of a run."""
    runs = listing.get("runs", [listing])
    return {name: value for name, value in runs[0].items() if re.search("byte|traffic|runtime|elapsed", name)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nodes", default="2,4,8", help="real ones")
    parser.add_argument("--inside", default="2,8,32", help="in one process")
    parser.add_argument("--one-process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if arguments.one_process:
        print(json.dumps(in_process(arguments.one_process)))
        return
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured
    inside = []
    for number in map(
        int, arguments.inside.split(",")
    ):  # each in a fresh process, so that its highest memory is its own
        command = [sys.executable, __file__, "--one-process", str(number)]
        inside.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        print(f"{number} nodes in one process: measured", file=sys.stderr)
    reals = []
    for number in map(int, arguments.nodes.split(",")):
        reals.append(real(number))
        print(f"{number} real nodes: measured", file=sys.stderr)
    page = report(reals, inside)
    if arguments.out:
        arguments.out.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
