"""Combiners: aggregation rules that turn the uploads of a cohort into one."""

from fedlada.methods.combine.combiner import Combiner, Coming
from fedlada.methods.combine.extrapolated import Extrapolated
from fedlada.methods.combine.geometric_median import GeometricMedian
from fedlada.methods.combine.krum import Krum
from fedlada.methods.combine.mean import Mean, average
from fedlada.methods.combine.named import as_combiner, as_private, is_private
from fedlada.methods.combine.norm_bound import NormBound
from fedlada.methods.combine.normalized import Normalized
from fedlada.methods.combine.order_statistics import Median, TrimmedMean
from fedlada.methods.combine.private import Private

__all__ = [
    "Combiner",
    "Coming",
    "Extrapolated",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "NormBound",
    "Normalized",
    "Private",
    "TrimmedMean",
    "as_combiner",
    "as_private",
    "average",
    "is_private",
]
