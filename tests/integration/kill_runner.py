"""Kills real runs and lets them go on, again and again; says what was lost.

    python kill_runner.py random METHOD FOLDER SEED NUM_KILLS     at random moments
    python kill_runner.py every-write METHOD FOLDER PART PARTS    at each single write to the disk, one after another;
                                                                  of PARTS equal parts of them only this one, from 0

Kills before two writes that leave the same files behind are one: a run that goes on finds nothing else.

Moments are those of the run's own processor time, so that they mean the same on a machine that is busy. A program of
its own, so that each run is a fork of a process that has imported everything and started nothing.
Prints one JSON object: the number of kills, and `problems`, which should be empty.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

import fedlada.workbench.cli
import fedlada.workbench.cli.run  # a command is imported when it is asked for, else in every fork
from fedlada.runs import checkpoints
from fedlada.training.resolve import resolve_method
from fedlada.workbench.experiment import Experiment

ROUNDS = 7 if sys.argv[1:2] == ["random"] else 5  # each single write of a run is tried, so that one is shorter
NOTES = "states"
FLAGS = "--model mlp --local-steps 2 --num-clients 6 --cohort-size 2 --batch-size 5 --checkpoint-every 2 --quiet"


def start(
    arguments: list[str], before_write: Callable[[int], None] | None = None, die_after: float | None = None
) -> int:
    """Fork a process that runs `fedlada` with these arguments; its number. It can be told when to die."""
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        if before_write is not None:
            interrupt_writes(before_write)
        if die_after is not None:  # the system ends it by SIGPROF, which nobody here handles: as sudden as SIGKILL
            signal.setitimer(signal.ITIMER_PROF, die_after)
        sys.argv = ["fedlada", *arguments]
        fedlada.workbench.cli.main()
    except SystemExit as exit:
        os._exit(exit.code if isinstance(exit.code, int) else 1)
    finally:
        os._exit(99)


def interrupt_writes(call: Callable[[int], None]) -> None:
    """Let this process call that just before its n-th step of writing: sync, rename, append, remove."""
    done = [0]

    def counted(function):
        def wrapper(*args, **kwargs):
            done[0] += 1
            call(done[0])
            return function(*args, **kwargs)

        return wrapper

    os.replace, os.fsync = counted(os.replace), counted(os.fsync)
    Path.unlink, Path.open, Path.write_text = map(counted, (Path.unlink, Path.open, Path.write_text))
    checkpoints.digest = counted(checkpoints.digest)


def die_at(number: int) -> Callable[[int], None]:
    """Kill this process just before that write."""
    return lambda write: os.kill(os.getpid(), signal.SIGKILL) if write == number else None


def note_files(folder: Path, notes: Path) -> Callable[[int], None]:
    """Add a line for every write: the digest of all files as they are before it."""

    def note(_: int) -> None:
        digest = hashlib.sha256()
        for place, _, names in sorted(os.walk(folder)):
            for path in (f"{place}/{name}" for name in sorted(names)):
                with open(path, "rb") as file:  # not Path.open, which counts as a write
                    digest.update(f"{path}\0".encode() + hashlib.sha256(file.read()).digest())
        with open(notes, "a") as file:
            file.write(f"{digest.hexdigest()}\n")

    return note


def wait(child: int) -> int:
    """The exit code; the negative number of a signal where that ended the process."""
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
        while True:
            moment = moments.uniform(1e-3, seconds)
            if (code := wait(start(command(place, method), die_after=moment))) != -signal.SIGPROF:
                break
            kills += 1
        if code != 0:
            problems.append(f"life {lives} after {kills} kills: exit code {code}")
            break
        check(place, expected, problems, f"life {lives}")
    return {"kills": kills, "lives": lives, "problems": problems}


def kills_at_every_write(method: str, folder: Path, expected, part: int, parts: int) -> dict[str, object]:
    states = (folder / NOTES).read_text().splitlines()
    problems: list[str] = []
    writes = [states.index(state) + 1 for state in dict.fromkeys(states)][part::parts]
    for write in writes:
        place = folder / "life"
        shutil.rmtree(place, ignore_errors=True)
        code = wait(start(command(place, method), die_at(write)))
        if code != -signal.SIGKILL:
            problems.append(f"write {write}: exit code {code}")
        code = wait(start(command(place, method)))
        if code != 0:
            problems.append(f"resumed after a kill at write {write}: exit code {code}")
        else:
            check(place, expected, problems, f"killed at write {write}")
    return {"kills": len(writes), "writes": len(states), "problems": problems}


def main() -> None:
    kind, method, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    whole = folder / "whole"
    note = note_files(whole, folder / NOTES) if kind == "every-write" else None
    resolve_method(Experiment(method=method).build_method())  # its check is remembered, else in every fork
    if (code := wait(start(command(whole, method), note))) != 0:
        print(json.dumps({"kills": 0, "problems": [f"the run that nobody killed ended with {code}"]}))
        return
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    expected = result(whole)
    if kind == "random":
        report = random_kills(method, folder, expected, seconds, int(sys.argv[4]), int(sys.argv[5]))
    else:
        report = kills_at_every_write(method, folder, expected, int(sys.argv[4]), int(sys.argv[5]))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
