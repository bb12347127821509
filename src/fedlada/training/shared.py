"""Synchronises the processes of one run: one state at the start, one decision to stop."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from fedlada.engines.distributed import of_first, together
from fedlada.engines.processes import is_first
from fedlada.methods.state import Kept, map_tensors, named_tensors
from fedlada.training.history import Row
from fedlada.training.simulation import Observer, Simulation


class SharedState(Observer):
    """Broadcasts the state that the first process has loaded from the run folder."""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        device = simulation.engine.device
        known = (simulation.round, simulation.history.rows, sorted(simulation.kept))
        simulation.round, rows, clients = of_first(known, device)
        simulation.history = simulation.history_of(rows)
        simulation.server = map_tensors(torch.clone, simulation.server)  # it may alias a tensor of the method itself
        for _, vector in named_tensors(simulation.server):
            together(dist.broadcast, vector, src=0)
        fresh = simulation.exchange.init_kept(simulation.server.params)
        for client in clients:
            kept: Kept = map_tensors(lambda vector: vector.to(device).clone(), simulation.kept.get(client, fresh))
            for _, vector in named_tensors(kept):
                together(dist.broadcast, vector, src=0)
            if not is_first():  # the first process's folder tracks its objects as already written
                simulation.kept[client] = map_tensors(Tensor.cpu, kept)


class SharedStop(Observer):
    """Stops all processes with the first: it alone handles Ctrl-C, the time limit and callbacks."""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self._agree(simulation)

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self._agree(simulation)

    def _agree(self, simulation: Simulation) -> None:
        said = (simulation.stopped, simulation.paused)
        simulation.stopped, simulation.paused = of_first(said, simulation.engine.device)
