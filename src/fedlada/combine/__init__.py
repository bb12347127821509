"""How the uploads of a cohort become one."""

from fedlada.combine.combiner import Combiner
from fedlada.combine.mean import Mean, average

__all__ = ["Combiner", "Mean", "average"]
