"""The figure of collective times: points lie where they were measured, the curve where the link says."""

import pytest

from benchmarks.accuracy_collectives import DATA, read_rows
from dtlab.cost.collective_fit import every_second, fit_link, relative_errors
from dtlab.cost.collective_time import Link
from dtlab.figures.collectives import collective_time_figure
from dtlab.figures.style import alt_text

LINK = Link(alpha_seconds=16e-6, bytes_per_second=100e9)


def test_points_curve_and_axes_are_the_values_given() -> None:
    points = [(2.0**20, 5e-5), (2.0**24, 4e-4)]
    figure = collective_time_figure(points, LINK, 8, held_out=[(2.0**22, 2e-4)])
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    lines = {line.get_label(): line for line in axes.lines}
    assert list(zip(*lines["measured, in the fit"].get_data(), strict=True)) == points
    assert list(zip(*lines["measured, held out"].get_data(), strict=True)) == [(2.0**22, 2e-4)]
    curve = next(line for name, line in lines.items() if str(name).startswith("(sqrt"))
    sizes, seconds = curve.get_data()
    assert list(seconds) == pytest.approx([LINK.seconds("all_reduce", 8, size) for size in sizes])
    assert sizes[0] < 2**20
    assert sizes[-1] > 2**24


def test_the_title_says_how_far_the_curve_is_off_the_points_held_out() -> None:
    points = [
        (float(row["size_bytes"]), float(row["time_us"]) * 1e-6)
        for row in read_rows(DATA / "published-collectives.csv")
        if row["system"].startswith("2x p5.48xlarge") and float(row["size_bytes"]) >= 2**20
    ]
    fitted, held = every_second(points)
    link = fit_link(fitted, 16).link
    off = relative_errors(link, held, 16)
    figure = collective_time_figure(fitted, link, 16, held_out=held, name="2x p5.48xlarge")
    mape = sum(map(abs, off)) / len(off)
    assert alt_text(figure).startswith(
        f"All-reduce, 16 ranks (2x p5.48xlarge): {mape:.0%} off {len(held)} held-out sizes."
    )


def test_the_size_at_which_both_parts_cost_the_same_is_marked() -> None:
    # alpha * B / k = 16e-6 * 100e9 / 1.75 = 914 KB
    figure = collective_time_figure([(2.0**16, 1e-4), (2.0**24, 5e-4)], LINK, 8)
    assert "both cost the same at 893 KiB" in alt_text(figure)
    (axes,) = figure.axes
    assert any(next(iter(line.get_xdata())) == pytest.approx(914_286, rel=1e-3) for line in axes.lines)


def test_times_within_one_decade_still_have_several_ticks_with_units() -> None:
    figure = collective_time_figure([(2.0**10, 2e-4), (2.0**22, 9e-4)], LINK, 2)
    (axes,) = figure.axes
    bottom, top = axes.get_ylim()
    figure.canvas.draw()
    shown = [
        label.get_text()
        for at, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if bottom <= at <= top
    ]
    assert len(shown) >= 3
    assert all(label.endswith(("us", "ms")) for label in shown)


def test_no_point_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        collective_time_figure([], LINK, 8)
