"""Curves of runs, and pictures of them."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from fedlada.plots.chart import Chart, Series
from fedlada.plots.curves import curves
from fedlada.plots.draw import draw_chart, plot_histories, plot_partition, save_chart
from fedlada.workbench.report.curves import all_curves
from run_records import record, row

pytestmark = pytest.mark.slow


def test_curves_are_means_over_common_rounds():
    runs = [record(6).rows, record(8, seed=1).rows]
    chart = curves({"fedavg": runs}, "test_accuracy", against="megabytes")
    (series,) = chart.series
    assert series.x == (6.0, 12.0, 18.0)
    assert series.y == pytest.approx((0.02, 0.04, 0.06))
    assert series.low == series.high == series.y
    assert curves({"fedavg": [[]]}, "test_accuracy").series == ()


def test_a_band_is_the_range_or_the_standard_deviation():
    runs = [[{"round": 1, "test_loss": loss}] for loss in (1.0, 2.0, 6.0)]
    (whole,), (std,) = (curves({"a": runs}, "test_loss", band=band).series for band in ("range", "std"))
    assert (whole.y, whole.low, whole.high) == ((3.0,), (1.0,), (6.0,))
    assert (*std.y, *std.low, *std.high) == pytest.approx((3.0, 3 - 7**0.5, 3 + 7**0.5))
    assert curves({"a": runs[:1]}, "test_loss", band="std").series[0].low == ()
    with pytest.raises(ValueError, match="band must be one of"):
        curves({"a": runs}, "test_loss", band="sem")
    figure = plot_histories({"a": runs * 2, "b": runs}, metric="test_loss", band="std")
    assert len(figure.axes[0].collections) == 2
    drawn = all_curves([record(6, rows=rows) for rows in runs], "std")["test_loss-by-rounds"]
    assert (drawn.series[0].low, drawn.series[0].high) == (std.low, std.high)


def test_a_band_is_the_confidence_interval_of_the_mean(command, tmp_path):
    """Student's t: of three seeds the quantile 4.3027, of two 12.7062."""
    runs = [[{"round": 1, "test_loss": loss}, {"round": 2, "test_loss": 2 * loss}] for loss in (1.0, 2.0, 6.0)]
    (three,) = curves({"a": runs}, "test_loss", band="ci").series
    half = 4.30265 * 7**0.5 / 3**0.5
    assert (*three.low, *three.high) == pytest.approx((3 - half, 6 - 2 * half, 3 + half, 6 + 2 * half), rel=1e-5)
    (two,) = curves({"a": runs[:2]}, "test_loss", band="ci").series
    assert two.high[0] == pytest.approx(1.5 + 12.7062 / 2, rel=1e-5)
    assert curves({"a": runs[:1]}, "test_loss", band="ci").series[0].low == ()
    assert len(plot_histories({"a": runs}, band="ci").axes[0].collections) == 1
    for number, rows in enumerate(runs):
        (tmp_path / f"seed{number}").mkdir()
        config = {"method": "fedavg", "seed": number}
        (tmp_path / f"seed{number}" / "config.json").write_text(json.dumps(config))
        lines = [json.dumps(row(**{**one, "clients": []})) + "\n" for one in rows]
        (tmp_path / f"seed{number}" / "metrics.jsonl").write_text("".join(lines))
    command("report", tmp_path, "--plots", tmp_path / "pictures", "--formats", "png", "--band", "ci")
    assert (tmp_path / "pictures" / "test_loss-by-rounds.png").exists()


def test_pictures_of_every_style_in_every_format(tmp_path):
    styles = [
        Series(f"${style}_", (1.0, 2.0, 3.0), (1.0, 3.0, 2.0), style=style) for style in ("line", "points", "arrows")
    ]
    bars = [Series(f"b{n}", (1.0, 2.0), (1.0, 2.0), (0.5, 1.0), (1.5, 3.0), style="bars") for n in range(2)]
    chart = Chart("a $ title", "x", "y", (*styles, *bars), log_x=True, log_y=True, targets=(2.0,))
    paths = save_chart(chart, tmp_path / "v1.5")
    assert [path.name for path in paths] == ["v1.5.png", "v1.5.svg", "v1.5.pdf"]
    first = [path.read_bytes() for path in paths]
    assert [data[:4] for data in first] == [b"\x89PNG", b"<?xm", b"%PDF"]
    assert [
        path.read_bytes() for path in save_chart(chart, tmp_path / "v1.5")
    ] == first  # the same data, the same files
    assert "a $ title" in (tmp_path / "v1.5.svg").read_text()
    names = [text.get_text() for text in draw_chart(chart).axes[0].get_legend().get_texts()]
    assert names == ["$line_", "$points_", "$arrows_", "b0", "b1"]
    assert set(all_curves([record(), record(config={"dataset": "a/b"})])) == {
        f"{dataset}-{metric}-by-{x}"
        for dataset in ("digits", "a-b")
        for metric in ("test_accuracy", "train_loss", "drift")
        for x in ("rounds", "megabytes", "seconds")
    }


def test_a_slow_machine_is_not_told_so(monkeypatch, tmp_path):
    """Matplotlib warns where finding a place for the legend takes more than a second."""
    seconds = count(step=2)
    monkeypatch.setattr("matplotlib.legend.time.perf_counter", lambda: next(seconds))
    save_chart(Chart("", "x", "y", (Series("a", (1.0, 2.0), (1.0, 3.0)),)), tmp_path / "a")


def test_charts_side_by_side_share_a_legend_and_an_axis():
    lines = (Series("a", (1.0, 2.0), (0.1, 0.9)), Series("b", (1.0, 2.0), (0.2, 0.8)))
    left, right = Chart("by rounds", "round", "accuracy", lines), Chart("by bytes", "MB", "accuracy", lines[:1])
    first, second = draw_chart(left, right).axes
    assert first.get_ylim() == second.get_ylim()
    assert [len(one.get_lines()) for one in (first, second)] == [2, 1]
    assert first.get_legend() is not None
    assert second.get_legend() is None
    assert (first.get_ylabel(), second.get_ylabel(), second.get_xlabel()) == ("accuracy", "", "MB")


def test_a_long_title_of_a_partition_stays_inside_the_picture():
    title = "digits: Dirichlet(num_clients=30, concentration=0.1, refill=False, size_spread=0.0), named at length"
    figure = plot_partition([np.arange(4), np.arange(4, 9)], np.arange(9) % 3, title=title)
    (axes,) = figure.axes
    figure.draw_without_rendering()
    box = axes.title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert " ".join(axes.get_title().split()) == title
    assert axes.get_ylim()[1] > 5


def test_a_notebook_shows_a_picture_without_pyplot():
    assert plot_partition([np.arange(3)], np.arange(3))._repr_png_().startswith(b"\x89PNG")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_full_disk_is_said_with_the_file_and_leaves_no_half(suffix, tmp_path):
    path = tmp_path / f"curve.{suffix}"
    path.symlink_to("/dev/full")
    chart = curves({"fedavg": [[{"round": 1, "train_loss": 0.5}]]}, "train_loss")
    with pytest.raises(OSError, match=rf"curve\.{suffix} cannot be written: No space left on device"):
        save_chart(chart, tmp_path / "curve", [suffix])
    assert not path.is_symlink()


def test_numbers_that_callbacks_added_have_pictures():
    runs = [record(rows=[{"round": number, "seconds": 0.1, "worst_client": 0.5} for number in (1, 2)])]
    assert {name.split("-by-")[0] for name in all_curves(runs)} == {"worst_client"}
