"""Tables, plots and the report page."""

from fedlada.plots.chart import Chart, Series
from fedlada.plots.draw import draw_chart, plot_histories, plot_partition, save_chart
from fedlada.workbench.report.comparison import Comparison
from fedlada.workbench.report.page import write_page
from fedlada.workbench.report.records import RunRecord, read_runs
from fedlada.workbench.report.table import Table

__all__ = [
    "Chart",
    "Comparison",
    "RunRecord",
    "Series",
    "Table",
    "draw_chart",
    "plot_histories",
    "plot_partition",
    "read_runs",
    "save_chart",
    "write_page",
]
