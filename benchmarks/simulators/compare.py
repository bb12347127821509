"""Compare the speed of simulators of federated learning that all do the work of task.py.

    python benchmarks/simulators/compare.py --task digits --rounds 60 --repeats 3 --envs-dir DIR

fedlada and the handwritten loop run in the Python that runs this script; every other simulator runs in an
environment of its own, which is made under DIR if it is missing.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"  # on the command line of every pip, so that all simulators have the same torch
BASELINE = "handwritten"
WORKER_TIMEOUT_SECONDS = 1800
SECONDS_TO_END = 45
"""torchrun gives its processes 30."""

Result = dict[str, object]

LENGTHS = {"digits": (60, 3), "pfl": (6, 2)}
"""Rounds and repeats of each task, unless others are given: a round of `pfl` takes many times as long."""


@dataclass(frozen=True)
class Worker:
    """A script that measures one simulator, and the name of its environment (None: the calling Python)."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None
    processes: int = 1
    """Processes that torchrun starts."""


WORKERS = (
    Worker(BASELINE, "handwritten.py"),
    # fedlada takes these kernels by itself where they are faster: this row shows what its engine alone costs.
    Worker("handwritten, native kernels", "handwritten.py", ("--native-kernels",)),
    Worker("fedlada", "with_fedlada.py"),
    Worker("fedlada (2 processes)", "with_fedlada.py", processes=2),
    Worker("pfl", "with_pfl.py", environment="pfl"),
    Worker("pfl (2 processes)", "with_pfl.py", environment="pfl", processes=2),
    Worker("flower (1 actor)", "with_flower.py", ("--actors", "1"), environment="flower"),
    Worker("flower (2 actors)", "with_flower.py", ("--actors", "2"), environment="flower"),
)

ALONE = {worker.name for worker in WORKERS if worker.processes == 1 and "--actors" not in worker.arguments}
"""Those that do their work in one process."""


def parse_arguments() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description="Compare the speed of simulators of federated learning.")
    parser.add_argument("--task", choices=LENGTHS, default="digits", help="the work to do, see task.py")
    parser.add_argument("--rounds", type=int, help="rounds of a run; by default 60 for digits, 6 for pfl")
    parser.add_argument("--repeats", type=int, help="runs of every simulator; by default 3 for digits, 2 for pfl")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch in each process")
    parser.add_argument("--envs-dir", type=Path, default=Path("build/simulators"), help="where the environments are")
    parser.add_argument("--data-dir", type=Path, help="with cifar-10-batches-py, for pfl's task; by default noise")
    parser.add_argument("--output", type=Path, help="also write the results of all runs to this JSON file")
    args = parser.parse_args()
    rounds, repeats = LENGTHS[args.task]
    args.rounds, args.repeats = args.rounds or rounds, args.repeats or repeats
    return args


def python_of(worker: Worker, envs_dir: Path) -> str:
    """Return the Python that runs a worker; make its environment if it is missing or out of date."""
    if worker.environment is None:
        return sys.executable
    requirements = HERE / f"requirements-{worker.environment}.txt"
    folder = envs_dir.resolve() / worker.environment
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    # The stamp is written last, so that an installation that was interrupted is taken up again.
    stamp = folder / "installed.txt"
    wanted = f"{TORCH}\n{requirements.read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing the environment {worker.environment}", file=sys.stderr)
        if not python.exists():
            venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements), TORCH]
        subprocess.run(command, check=True, stdout=sys.stderr)
        stamp.write_text(wanted)
    return str(python)


def run_worker(worker: Worker, python: str, args: argparse.Namespace) -> Result | None:
    """Run a worker once and return its result, or None if it failed."""
    options = ["--task", args.task, "--rounds", str(args.rounds), "--threads", str(args.threads), *worker.arguments]
    # The same limit for all: see task.py for what happens to a worker that does not have it.
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    if args.data_dir is not None:
        environment["BENCHMARK_DATA"] = str(args.data_dir.resolve())
    if worker.processes > 1 and sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    words = [python, *_torchrun(worker), str(HERE / worker.script), *options]
    # A session of its own, so that what a worker has started ends with it.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, text=True, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=WORKER_TIMEOUT_SECONDS)
        except BaseException as error:
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            print(f"{worker.name}: no result after {WORKER_TIMEOUT_SECONDS} s", file=sys.stderr)
            return None
    if process.returncode != 0:
        print(f"{worker.name}: exit status {process.returncode}\n{errors[-3000:]}", file=sys.stderr)
        return None
    return json.loads(output.splitlines()[-1])


def _end(process: subprocess.Popen[str]) -> None:
    """End a worker and what it started: politely at first, because torchrun's processes have sessions of their own."""
    for kind in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
        else:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)


def _torchrun(worker: Worker) -> list[str]:
    """The arguments of Python that start several processes on this machine."""
    if worker.processes == 1:
        return []
    where = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    return ["-m", "torch.distributed.run", f"--nproc-per-node={worker.processes}", *where]


def run_all(args: argparse.Namespace) -> dict[str, list[Result]]:
    """Run every worker `repeats` times, interleaved so that a slow moment of the machine hits all alike."""
    workers = [worker for worker in WORKERS if (HERE / worker.script).exists()]
    pythons = {worker.name: python_of(worker, args.envs_dir) for worker in workers}
    results: dict[str, list[Result]] = {worker.name: [] for worker in workers}
    for repeat in range(args.repeats):
        for worker in workers:
            result = run_worker(worker, pythons[worker.name], args)
            if result is not None:
                results[worker.name].append(result)
                print(f"{repeat + 1}: {worker.name}: {_seconds(result):.4f} s per round", file=sys.stderr)
    return results


def markdown_table(results: dict[str, list[Result]]) -> str:
    """Return a table of the best run of every simulator, and of the least seconds that one was on a core."""
    best = {name: min(runs, key=_seconds) for name, runs in results.items() if runs}
    lines = [
        "| simulator | version | seconds per round | ratio to handwritten | on a core | start-up seconds | accuracy |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name in results:
        if name not in best:
            lines.append(f"| {name} | | failed | | | | |")
            continue
        run = best[name]
        ratio = f"{_seconds(run) / _seconds(best[BASELINE]):.2f}" if BASELINE in best else ""
        # A process that leaves the work to others says nothing about it.
        own = [float(one["cpu_seconds_per_round"]) for one in results[name]]
        on_a_core = f"{min(own):.4f}" if name in ALONE else ""
        lines.append(
            f"| {name} | {run['version']} | {_seconds(run):.4f} | {ratio} | {on_a_core} "
            f"| {run['startup_seconds']:.1f} | {run['test_accuracy']:.3f} |"
        )
    return "\n".join(lines)


def _seconds(run: Result) -> float:
    return float(run["seconds_per_round"])


def main() -> None:
    """Run the comparison and print its table."""
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the worker ends too
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured
    results = run_all(args)
    if args.output is not None:
        args.output.write_text(json.dumps(results, indent=2) + "\n")
    print(markdown_table(results))


if __name__ == "__main__":
    main()
