"""Tables, pictures and the page."""

from fedlada.report.chart import Chart, Series
from fedlada.report.comparison import Comparison
from fedlada.report.page import write_page
from fedlada.report.plots import draw_chart, plot_histories, plot_partition, save_chart
from fedlada.report.records import RunRecord, read_runs
from fedlada.report.table import Table

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
