"""Engines run the local work of a cohort; each gives the same result as the sequential one."""

from fedlada.engines.choice import ENGINES, choose_engine
from fedlada.engines.engine import Engine
from fedlada.engines.sequential import SequentialEngine
from fedlada.engines.stacked.engine import StackedEngine
from fedlada.engines.tally import Answer, CohortResult

__all__ = ["ENGINES", "Answer", "CohortResult", "Engine", "SequentialEngine", "StackedEngine", "choose_engine"]
