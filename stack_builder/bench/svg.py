"""Curves as SVG, for the page and for ``--plot``: our own few lines, so that a page needs nothing from anywhere.

Colour is never the only sign: each arm has a marker of its own shape, and every point has a title to read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 40, 56
_TICKS = 6
_COLUMNS, _COLUMN = 4, 160  # of the legend
_NAME = 17  # letters of a name that fit into one
# contrast of at least 3:1 on white and on #111 alike (WCAG 2.2, 1.4.11)
COLOURS = ("#2f7fd1", "#c65a11", "#2e9157", "#a259c4", "#b3365b", "#7a7a1f")
# drawn around (0, 0)
_MARKERS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
    "M-4,-4h8v8h-8z",
    "M0,-5L5,4H-5z",
    "M0,-5L5,0L0,5L-5,0z",
    "M0,5L5,-4H-5z",
    "M-5,-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One point with its interval; ``low`` and ``high`` are drawn as a bar where given."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One curve; ``sign`` numbers its colour and marker, the same in every chart."""

    name: str
    points: tuple[Point, ...]
    sign: int = 0


@dataclass(frozen=True, slots=True)
class Band:
    """From where to where on x a series' crossover lies, with 95 % confidence; ``sign`` is the series'."""

    name: str
    low: float
    high: float
    sign: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with a logarithmic x axis.

    Attributes:
        title: what it shows.
        x_label, y_label: with units.
        series: curves.
        bands: crossovers, behind the curves.
        line: a horizontal line, such as 1 for ratios.
        log_y: whether y is logarithmic, too.
        unit: said after each value in a point's title.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    bands: tuple[Band, ...] = ()
    line: float | None = None
    log_y: bool = False
    unit: str = ""


def draw(chart: Chart, *, standalone: bool = False) -> str:
    """Draw a chart.

    Args:
        chart: with at least one point.
        standalone: add the namespace and colours that a page's style sheet gives otherwise.
    """
    points = [point for series in chart.series for point in series.points]
    xs = sorted({point.x for point in points})
    x = _Scale(xs[0], xs[-1], _LEFT, WIDTH - _RIGHT, log=True)
    y = _y_scale(chart, points)
    parts = [_open(chart, standalone=standalone)]
    parts += [_band(band, x) for band in chart.bands]
    parts += [_x_tick(value, x) for value in xs]
    parts += [_y_tick(value, y) for value in y.ticks()]
    if chart.line is not None:
        at = y.at(chart.line)
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
    parts += [_curve(series, x, y, chart) for series in chart.series]
    parts += [_legend(series, number) for number, series in enumerate(chart.series)]
    parts += [_band_legend(band, number) for number, band in enumerate(chart.bands, len(chart.series))]
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(chart.x_label)}</text>'
    )
    parts.append(
        f'<text class="label" transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>"
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Scale:
    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool) -> None:
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
        self._low, self._high, self._start, self._end, self._log = low, high, start, end, log

    def at(self, value: float) -> float:
        """Place of a value, in the chart's units."""
        if self._log:
            share = math.log(value / self._low) / math.log(self._high / self._low)
        else:
            share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round values within the range."""
        if self._log:
            low, high = math.floor(math.log10(self._low)), math.ceil(math.log10(self._high))
            every = [base * 10.0**power for power in range(low, high + 1) for base in (1, 2, 5)]
            return [value for value in every if self._low <= value <= self._high]
        rough = (self._high - self._low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(base * power for base in (1, 2, 5, 10) if base * power >= rough)
        first = math.ceil(self._low / step)
        return [number * step for number in range(first, math.floor(self._high / step) + 1)]


def _y_scale(chart: Chart, points: Sequence[Point]) -> _Scale:
    values = [value for point in points for value in (point.y, point.low, point.high) if value is not None]
    if chart.line is not None:
        values.append(chart.line)
    low, high = min(values), max(values)
    if chart.log_y and low > 0:
        return _Scale(low / 1.1, high * 1.1, HEIGHT - _BOTTOM, _TOP, log=True)
    low = 0.0 if chart.line is None else low - 0.05 * (high - low)
    return _Scale(low, high + 0.05 * (high - low or 1), HEIGHT - _BOTTOM, _TOP, log=False)


def _open(chart: Chart, *, standalone: bool) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title, quote=True)}"'
    if not standalone:
        return f"{head}>"
    style = "svg{background:#fff;color:#1b1b1b;font:13px sans-serif}" + STYLE.replace("var(--soft)", "#d8d8d8")
    return f'{head} xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"><style>{style}</style>'


STYLE = (
    ".curve{fill:none;stroke-width:2}.grid{stroke:var(--soft)}.rule{stroke:currentColor;stroke-dasharray:5 4}"
    ".band{opacity:.2}svg text{fill:currentColor}.tick{font-size:12px}.label{font-size:13px}"
)


def _band(band: Band, x: _Scale) -> str:
    left, right = x.at(band.low), x.at(band.high)
    place = f'x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{HEIGHT - _BOTTOM - _TOP}"'
    title = f"{band.name}: crossover, 95 % interval: {band.low:.1f} to {band.high:.1f}"
    return f'<rect class="band" {place} fill="{_colour(band.sign)}"><title>{escape(title)}</title></rect>'


def _x_tick(value: float, x: _Scale) -> str:
    at, bottom = x.at(value), HEIGHT - _BOTTOM
    return (
        f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text class="tick" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>'
    )


def _y_tick(value: float, y: _Scale) -> str:
    at = y.at(value)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>'
    )


def _curve(series: Series, x: _Scale, y: _Scale, chart: Chart) -> str:
    colour, marker = _colour(series.sign), _marker(series.sign)
    places = [(x.at(point.x), y.at(point.y)) for point in series.points]
    path = "M" + "L".join(f"{left:.1f},{top:.1f}" for left, top in places)
    parts = [f'<g><path class="curve" stroke="{colour}" d="{path}"/>']
    for point, (left, top) in zip(series.points, places, strict=True):
        title = f"{series.name}, {point.x:g}: {point.y:.4g}{chart.unit}"
        if point.low is not None and point.high is not None:
            ends = f'y1="{y.at(point.low):.1f}" y2="{y.at(point.high):.1f}"'
            parts.append(f'<line x1="{left:.1f}" x2="{left:.1f}" {ends} stroke="{colour}" stroke-width="1.5"/>')
            title += f" ({point.low:.4g} to {point.high:.4g})"
        mark = f'<path d="{marker}" transform="translate({left:.1f} {top:.1f})" fill="{colour}">'
        parts.append(f"{mark}<title>{escape(title)}</title></path>")
    return "".join([*parts, "</g>"])


def _colour(sign: int) -> str:
    return COLOURS[sign % len(COLOURS)]


def _marker(sign: int) -> str:
    return _MARKERS[sign % len(_MARKERS)]


def _legend_place(number: int) -> tuple[int, int]:
    return _LEFT + number % _COLUMNS * _COLUMN, 14 + number // _COLUMNS * 16


def _legend_text(left: int, top: int, name: str, after: str = "") -> str:
    room = _NAME - len(after)
    shown = name if len(name) <= room else name[: room - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f'<text class="label" x="{left + 12}" y="{top + 4}">{escape(shown + after)}</text>'


def _band_legend(band: Band, number: int) -> str:
    left, top = _legend_place(number)
    sign = f'<rect class="band" fill="{_colour(band.sign)}" x="{left - 6}" y="{top - 6}" width="12" height="12"/>'
    return sign + _legend_text(left, top, band.name, " crossover")


def _legend(series: Series, number: int) -> str:
    left, top = _legend_place(number)
    sign = f'<path d="{_marker(series.sign)}" transform="translate({left} {top})" fill="{_colour(series.sign)}"/>'
    return sign + _legend_text(left, top, series.name)
