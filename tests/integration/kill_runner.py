"""Kills real runs with SIGKILL and lets them go on, again and again; says what was lost.

    python kill_runner.py random METHOD FOLDER SEED NUM_KILLS     at random moments
    python kill_runner.py every-write METHOD FOLDER               at each single write to the disk, one after another

A program of its own, so that each run is a fork of a process that has imported everything and started nothing.
Prints one JSON object: the number of kills, and `problems`, which should be empty.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import safetensors.torch
import sklearn.datasets  # noqa: F401  (imported before the fork)
import torch

import fedlada.cli
from fedlada.runs import checkpoints

ROUNDS = 9 if sys.argv[1:2] == ["random"] else 5  # each single write of a run is tried, so that one is shorter
FLAGS = "--model mlp --local-steps 2 --num-clients 6 --cohort-size 2 --batch-size 5 --checkpoint-every 2 --quiet"


def start(arguments: list[str], die_at_write: int | None = None) -> int:
    """Fork a process that runs `fedlada` with these arguments; its number."""
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        if die_at_write is not None:
            die_at(die_at_write)
        sys.argv = ["fedlada", *arguments]
        fedlada.cli.main()
    except SystemExit as exit:
        os._exit(exit.code if isinstance(exit.code, int) else 1)
    finally:
        os._exit(99)


def die_at(number: int) -> None:
    """Let this process kill itself just before its `number`-th step of writing: sync, rename, append, remove."""
    left = [number]

    def counted(function):
        def wrapper(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    os.replace, os.fsync = counted(os.replace), counted(os.fsync)
    Path.unlink, Path.open, Path.write_text = map(counted, (Path.unlink, Path.open, Path.write_text))
    checkpoints.digest = counted(checkpoints.digest)


def wait(child: int, seconds: float | None = None) -> int | None:
    """The exit code; -9 where the process was killed, by itself or after so many seconds."""
    end = None if seconds is None else time.monotonic() + seconds
    while end is not None and time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
    if end is not None:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def command(folder: Path, method: str) -> list[str]:
    """Start, or go on where there is something to go on from."""
    if (folder / "config.json").exists():
        return ["resume", str(folder), "--quiet"]
    # With codes for one method: what clients could not send is a memory too.
    codes = ["--messages", "lean:delta=top0.2"] if method == "fedlada" else []
    return ["run", "--method", method, "--rounds", str(ROUNDS), *FLAGS.split(), *codes, "--out", str(folder)]


def result(folder: Path) -> tuple[list[dict[str, object]], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """All that must not depend on kills: the rounds, the model, the whole last checkpoint."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]
    manifest = json.loads((folder / "checkpoints" / f"round-{ROUNDS:06d}.json").read_text())
    state = {}
    for name in [manifest["server"], *manifest["kept"].values()]:
        for key, tensor in safetensors.torch.load_file(folder / "checkpoints" / name).items():
            state[f"{name} {key}"] = tensor
    return rows, safetensors.torch.load_file(folder / "model.safetensors"), state


def check(folder: Path, expected, problems: list[str], what: str) -> None:
    rows, model, state = result(folder)
    if rows != expected[0]:
        problems.append(f"{what}: the metrics differ")
    for ours, theirs, name in ((model, expected[1], "model"), (state, expected[2], "checkpoint")):
        # A memory's file is named by the round in which it was written, which kills may change.
        ours, theirs = (
            {key.split("-round-")[0] + key.split(" ")[-1]: value for key, value in one.items()}
            for one in (ours, theirs)
        )
        if ours.keys() != theirs.keys() or any(not torch.equal(ours[key], theirs[key]) for key in ours):
            problems.append(f"{what}: the {name} differs")
    leftovers = [path.name for path in folder.rglob("*.part")]
    if leftovers:
        problems.append(f"{what}: left {leftovers}")


def random_kills(method: str, folder: Path, expected, seconds: float, seed: int, wanted: int) -> dict[str, object]:
    moments, kills, lives, problems = random.Random(seed), 0, 0, []
    while kills < wanted:
        place = folder / f"life{lives}"
        lives += 1
        while (code := wait(start(command(place, method)), moments.uniform(0, 1.3 * seconds))) == -signal.SIGKILL:
            kills += 1
        if code != 0:
            problems.append(f"life {lives} after {kills} kills: exit code {code}")
            break
        check(place, expected, problems, f"life {lives}")
    return {"kills": kills, "lives": lives, "problems": problems}


def kills_at_every_write(method: str, folder: Path, expected) -> dict[str, object]:
    kills, problems = 0, []
    while True:
        place = folder / "life"
        shutil.rmtree(place, ignore_errors=True)
        code = wait(start(command(place, method), die_at_write=kills + 1))
        if code == 0:
            return {"kills": kills, "problems": problems}
        if code != -signal.SIGKILL:
            problems.append(f"write {kills + 1}: exit code {code}")
        kills += 1
        code = wait(start(command(place, method)))
        if code != 0:
            problems.append(f"resumed after a kill at write {kills}: exit code {code}")
        else:
            check(place, expected, problems, f"killed at write {kills}")


def main() -> None:
    kind, method, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    begin = time.monotonic()
    if (code := wait(start(command(folder / "whole", method)))) != 0:
        print(json.dumps({"kills": 0, "problems": [f"the run that nobody killed ended with {code}"]}))
        return
    seconds = time.monotonic() - begin
    expected = result(folder / "whole")
    if kind == "random":
        report = random_kills(method, folder, expected, seconds, int(sys.argv[4]), int(sys.argv[5]))
    else:
        report = kills_at_every_write(method, folder, expected)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
