"""FedLADA and the federated methods it is compared with: exact, fast, in one algebra.

import fedlada

result = fedlada.simulate(model, (x, y), test=(x_test, y_test), method="fedlada")
result.model, result.history, result.plot()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlada import cohorts, data, engines, local, models, recipes, schedules, server, trackers
    from fedlada.api import load_run, simulate
    from fedlada.cohorts import Unreliable
    from fedlada.combine import Combiner, average
    from fedlada.evaluation import evaluate
    from fedlada.history import History, Result
    from fedlada.local import LocalTransform
    from fedlada.method import FederatedMethod
    from fedlada.observers import Observer
    from fedlada.plan import Plan
    from fedlada.presets import suggested
    from fedlada.server import ServerOptimizer
    from fedlada.simulation import Simulation, TrainingDiverged
    from fedlada.state import Broadcast, ClientRound, Kept, Local, Round, Server, Step, Upload
    from fedlada.torch_optimizer import LocalOptimizer

__version__ = "0.1.0"

__all__ = [
    "Broadcast",
    "ClientRound",
    "Combiner",
    "FederatedMethod",
    "History",
    "Kept",
    "Local",
    "LocalOptimizer",
    "LocalTransform",
    "Observer",
    "Plan",
    "Result",
    "Round",
    "Server",
    "ServerOptimizer",
    "Simulation",
    "Step",
    "TrainingDiverged",
    "Unreliable",
    "Upload",
    "average",
    "cohorts",
    "data",
    "engines",
    "evaluate",
    "load_run",
    "local",
    "models",
    "recipes",
    "schedules",
    "server",
    "simulate",
    "suggested",
    "trackers",
]

_HOMES = {
    "api": ("load_run", "simulate"),
    "cohorts": ("Unreliable",),
    "evaluation": ("evaluate",),
    "history": ("History", "Result"),
    "local": ("LocalTransform",),
    "combine": ("Combiner", "average"),
    "method": ("FederatedMethod",),
    "observers": ("Observer",),
    "plan": ("Plan",),
    "presets": ("suggested",),
    "server": ("ServerOptimizer",),
    "simulation": ("Simulation", "TrainingDiverged"),
    "state": ("Broadcast", "ClientRound", "Kept", "Local", "Round", "Server", "Step", "Upload"),
    "torch_optimizer": ("LocalOptimizer",),
}
"""Where the names are that are no modules."""


if not TYPE_CHECKING:  # a checker would take every name for known

    def __getattr__(name: str) -> Any:
        """Import what is asked for, and with it torch: the command line answers simple questions without it."""
        for home, names in _HOMES.items():
            if name in names:
                globals()[name] = found = getattr(import_module(f"fedlada.{home}"), name)
                return found
        if name.isidentifier() and not name.startswith("_"):
            try:
                return import_module(f"fedlada.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"fedlada.{name}":
                    raise
        raise AttributeError(f"fedlada has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
