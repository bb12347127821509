"""Tables and pictures."""

from fedlada.report.comparison import Comparison
from fedlada.report.plots import plot_histories, plot_partition

__all__ = ["Comparison", "plot_histories", "plot_partition"]
