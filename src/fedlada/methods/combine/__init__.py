"""How the uploads of a cohort become one."""

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.extrapolated import Extrapolated
from fedlada.methods.combine.mean import Mean, average

__all__ = ["Combiner", "Extrapolated", "Mean", "average"]
