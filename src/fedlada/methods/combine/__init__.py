"""How the uploads of a cohort become one."""

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.extrapolated import Extrapolated
from fedlada.methods.combine.geometric_median import GeometricMedian
from fedlada.methods.combine.krum import Krum
from fedlada.methods.combine.mean import Mean, average
from fedlada.methods.combine.named import as_combiner
from fedlada.methods.combine.norm_bound import NormBound
from fedlada.methods.combine.order_statistics import Median, TrimmedMean

__all__ = [
    "Combiner",
    "Extrapolated",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "NormBound",
    "TrimmedMean",
    "as_combiner",
    "average",
]
