"""Engines run the local work of a cohort; each gives the same result as the sequential one."""

from fedlada.engines.engine import CohortResult, Engine
from fedlada.engines.sequential import SequentialEngine

__all__ = ["CohortResult", "Engine", "SequentialEngine"]
