"""Several processes of one run, started by torchrun: which one this is, and what keeps them together."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from fedlada.history import History, Row
from fedlada.observers import Observer
from fedlada.simulation import Simulation
from fedlada.state import Kept, map_tensors, named_tensors

TIMEOUT = timedelta(hours=1)
"""For one that waits while another evaluates or writes; a process that dies is noticed at once."""


def num_processes() -> int:
    """How many torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process speaks and writes for all."""
    return int(os.environ.get("RANK", "0")) == 0


def refuse_several(what: str) -> None:
    """Of what only one process can be in charge of."""
    if num_processes() > 1:
        raise ValueError(f"{what} are not shared by torchrun's processes: start this command without it")


def own_device(device: torch.device) -> torch.device:
    """This process's GPU, where one that is not numbered was asked for."""
    if device.type != "cuda":
        return device
    if device.index is not None:
        torch.cuda.set_device(device)
        return device
    if num_processes() == 1:
        return device
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(place)
    return place


def join(device: torch.device) -> None:
    """Meet the other processes: NCCL on GPUs, gloo on CPUs."""
    import torch.distributed as dist

    if not dist.is_initialized():
        # Two processes on one GPU cannot use NCCL; gloo carries their tensors through the host.
        alone = device.type == "cuda" and num_local() <= torch.cuda.device_count()
        dist.init_process_group("nccl" if alone else "gloo", timeout=TIMEOUT)
        atexit.register(leave)  # a script does not say good-bye itself, and its threads would abort the process


def num_local() -> int:
    """Processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


class SharedState(Observer):
    """Brings what the first process found in its folder to the others, before anybody looks at it."""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        """The state that a resumed run starts from."""
        self._share(simulation)

    def _share(self, simulation: Simulation) -> None:
        import torch.distributed as dist

        from fedlada.engines.distributed import together

        known: list[Any] = [(simulation.round, simulation.history.rows, sorted(simulation.kept))]
        together(dist.broadcast_object_list, known, src=0, device=_object_device(simulation))
        simulation.round, rows, clients = known[0]
        simulation.history = History(rows)
        device = simulation.engine.device
        simulation.server = map_tensors(torch.clone, simulation.server)  # it may be what the method itself holds
        for _, vector in named_tensors(simulation.server):
            together(dist.broadcast, vector, src=0)
        fresh = simulation.exchange.init_kept(simulation.server.params)
        for client in clients:
            kept: Kept = map_tensors(lambda vector: vector.to(device).clone(), simulation.kept.get(client, fresh))
            for _, vector in named_tensors(kept):
                together(dist.broadcast, vector, src=0)
            if not is_first():  # what the first one has, its folder knows as written
                simulation.kept[client] = map_tensors(Tensor.cpu, kept)


class SharedStop(Observer):
    """Stops all where the first process stops: it alone hears a Ctrl-C, looks at a clock, has callbacks."""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        """A run that had already reached its end."""
        self._agree(simulation)

    def on_round(self, simulation: Simulation, row: Row) -> None:
        """Told last, when the first process has made up its mind."""
        self._agree(simulation)

    def _agree(self, simulation: Simulation) -> None:
        import torch.distributed as dist

        from fedlada.engines.distributed import together

        said: list[Any] = [(simulation.stopped, simulation.paused)]
        together(dist.broadcast_object_list, said, src=0, device=_object_device(simulation))
        simulation.stopped, simulation.paused = said[0]


def leave() -> None:
    """Say good-bye to the others, if they were met."""
    import torch.distributed as dist

    if num_processes() > 1 and dist.is_initialized():
        dist.destroy_process_group()


def _object_device(simulation: Simulation) -> torch.device:
    device = simulation.engine.device
    return device if device.type == "cuda" else torch.device("cpu")
