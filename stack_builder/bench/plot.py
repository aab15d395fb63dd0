"""The curves of a bench: which charts there are, and ``--plot`` to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stack_builder.bench.compare import comparisons, summaries
from stack_builder.bench.results import Results
from stack_builder.bench.svg import COLOURS, Band, Chart, Point, Series, draw
from stack_builder.errors import MachineError, UsageError
from stack_builder.files import atomic_write, atomic_writer

_PNG_MARKERS = "os^DvP"


def charts(results: Results) -> list[Chart]:
    """Throughput, ratio and latency over load; those without data are left out."""
    x = "requests per second" if results.settings.open_loop else "clients"
    levels = {arm.name: summaries(results, arm.name) for arm in results.arms}
    sign = {name: number for number, name in enumerate(levels)}
    compared = comparisons(results)
    bands = tuple(
        Band(c.arm, c.crossover.low, c.crossover.high, sign[c.arm])
        for c in compared
        if c.crossover.low is not None and c.crossover.high is not None
    )
    throughput = [
        Series(name, tuple(Point(s.level, s.throughput, s.low, s.high) for s in found if s.throughput), sign[name])
        for name, found in levels.items()
    ]
    ratios = [
        Series(c.arm, tuple(Point(level, r.value, r.low, r.high) for level, r in sorted(c.ratios.items())), sign[c.arm])
        for c in compared
    ]
    latency = [
        Series(name, tuple(Point(s.level, s.e2e) for s in found if s.e2e), sign[name]) for name, found in levels.items()
    ]
    title = "Output tokens per second"
    ratio_title = f"Ratio to {results.arms[0].name}, 95 % intervals"
    found = [
        Chart(title, x, "output tok/s", _drawn(throughput), bands=bands, log_y=True, unit=" tok/s"),
        Chart(ratio_title, x, "ratio", _drawn(ratios), bands=bands, line=1.0),
        Chart("End-to-end latency, median", x, "ms", _drawn(latency), log_y=True, unit=" ms"),
    ]
    return [chart for chart in found if chart.series]


def write_plot(benches: Sequence[Results], target: Path) -> None:
    """Draw the throughput chart of one bench into a file.

    Raises:
        UsageError: not one bench, nothing to draw, or another suffix than .svg and .png.
        MachineError: PNG without matplotlib.
    """
    if len(benches) != 1:
        raise UsageError(f"{len(benches)} benches were chosen", where="--plot", fix="name one by its id or file")
    drawn = charts(benches[0])
    if not drawn:
        raise UsageError("it has no valid run to draw", where=benches[0].id)
    if target.suffix == ".svg":
        atomic_write(target, draw(drawn[0], standalone=True))
    elif target.suffix == ".png":
        _png(drawn[0], target)
    else:
        raise UsageError("is neither .svg nor .png", where=target)


def _drawn(series: Sequence[Series]) -> tuple[Series, ...]:
    return tuple(one for one in series if one.points)


def _png(chart: Chart, target: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MachineError("PNG needs matplotlib", where="--plot", fix="install stackb[plot], or write .svg") from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for series in chart.series:
        xs, ys = [point.x for point in series.points], [point.y for point in series.points]
        below = [point.y - (point.y if point.low is None else point.low) for point in series.points]
        above = [(point.y if point.high is None else point.high) - point.y for point in series.points]
        marker, colour = _PNG_MARKERS[series.sign % len(_PNG_MARKERS)], COLOURS[series.sign % len(COLOURS)]
        axes.errorbar(xs, ys, yerr=[below, above], label=series.name, marker=marker, color=colour, capsize=3)
    for band in chart.bands:
        colour = COLOURS[band.sign % len(COLOURS)]
        axes.axvspan(band.low, band.high, alpha=0.2, color=colour, label=f"{band.name}: crossover, 95 %")
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label, xscale="log", yscale="log")
    ticks = sorted({point.x for series in chart.series for point in series.points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_writer(target) as file:
        figure.savefig(file, format="png", dpi=150)
