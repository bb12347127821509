"""FedLADA and the federated methods it is compared with: exact, fast, composed from the same parts.

import fedlada

result = fedlada.simulate(model, (x, y), test=(x_test, y_test), method="fedlada")
result.model, result.history, result.plot()

The public API is `__all__` here and in the modules it names, `fedlada.flower` and `fedlada.messages`. Everything else
may move between versions.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlada import data, engines, models
    from fedlada.api import simulate
    from fedlada.engines.classes import exact_match, perplexity
    from fedlada.engines.evaluation import evaluate
    from fedlada.federation import cohorts, schedules
    from fedlada.federation.cohorts import Unreliable
    from fedlada.federation.plan import Plan
    from fedlada.methods import combine, local, recipes, server, testing
    from fedlada.methods.combine import Combiner, average
    from fedlada.methods.local import LocalTransform
    from fedlada.methods.method import FederatedMethod
    from fedlada.methods.server import ServerOptimizer
    from fedlada.methods.state import Broadcast, ClientRound, Kept, Local, Round, Server, Step, Upload
    from fedlada.optim import LocalOptimizer
    from fedlada.training import trackers
    from fedlada.training.history import History, Result
    from fedlada.training.simulation import Observer, Simulation, TrainingDiverged
    from fedlada.training.suggested import suggested
    from fedlada.workbench import report
    from fedlada.workbench.load import load_run

__version__ = "0.1.0"

_MODULES = {
    "cohorts": "federation.cohorts",
    "combine": "methods.combine",
    "data": "data",
    "engines": "engines",
    "local": "methods.local",
    "models": "models",
    "recipes": "methods.recipes",
    "report": "workbench.report",
    "schedules": "federation.schedules",
    "server": "methods.server",
    "testing": "methods.testing",
    "trackers": "training.trackers",
}
"""Public modules, and where they are."""
_NAMES = {
    "Broadcast": "methods.state",
    "ClientRound": "methods.state",
    "Combiner": "methods.combine",
    "FederatedMethod": "methods.method",
    "History": "training.history",
    "Kept": "methods.state",
    "Local": "methods.state",
    "LocalOptimizer": "optim",
    "LocalTransform": "methods.local",
    "Observer": "training.simulation",
    "Plan": "federation.plan",
    "Result": "training.history",
    "Round": "methods.state",
    "Server": "methods.state",
    "ServerOptimizer": "methods.server",
    "Simulation": "training.simulation",
    "Step": "methods.state",
    "TrainingDiverged": "training.simulation",
    "Unreliable": "federation.cohorts",
    "Upload": "methods.state",
    "average": "methods.combine",
    "evaluate": "engines.evaluation",
    "exact_match": "engines.classes",
    "load_run": "workbench.load",
    "perplexity": "engines.classes",
    "simulate": "api",
    "suggested": "training.suggested",
}
"""Public names, and where they are."""

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
    "combine",
    "data",
    "engines",
    "evaluate",
    "exact_match",
    "load_run",
    "local",
    "models",
    "perplexity",
    "recipes",
    "report",
    "schedules",
    "server",
    "simulate",
    "suggested",
    "testing",
    "trackers",
]


class _PublicPlaces:
    """Lets `from fedlada.recipes import fedavg` find the module at its actual location.

    A finder and loader by its methods: the base classes take longer to import than all of this.
    """

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        public, _, inner = rest.partition(".")
        place = _MODULES.get(public, public)
        if package != "fedlada" or place == public:
            return None
        loader: Any = self
        return ModuleSpec(name, loader, loader_state=".".join(filter(None, (package, place, inner))))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = getattr(module.__spec__, "loader_state", None)  # keep the module's own spec


sys.meta_path.insert(0, _PublicPlaces())

if not TYPE_CHECKING:  # a type checker would take every name as defined

    def __getattr__(name: str) -> Any:
        """Import names on first use, and torch with them: simple commands start without it."""
        if name in _NAMES:
            found = getattr(import_module(f"fedlada.{_NAMES[name]}"), name)
        elif name in _MODULES:
            found = import_module(f"fedlada.{_MODULES[name]}")
        elif name.isidentifier() and not name.startswith("_"):
            try:
                return import_module(f"fedlada.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"fedlada.{name}":
                    raise
                raise AttributeError(f"fedlada has no {name!r}{_elsewhere(name)}") from None
        else:
            raise AttributeError(f"fedlada has no {name!r}")
        globals()[name] = found
        return found

    def _elsewhere(name: str) -> str:
        """The public module that has a name, for the error of who looks for it here."""
        for public, place in _MODULES.items():
            found = getattr(import_module(f"fedlada.{place}"), name, None)
            if str(getattr(found, "__module__", None)).startswith("fedlada."):
                return f": it is fedlada.{public}.{name}"
        return ""


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
