"""Charts as inline SVG. Colours are CSS variables of the page, every mark carries its numbers as a tooltip."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 960, 300, 70
ROW, BAR, TOP = 18, 12, 26
LONGEST = 40
"""Characters that fit to the left of a chart."""


@dataclass(frozen=True)
class Bar:
    """One model's line in a chart of bars: a value, its class in the page's style, and a tooltip. `rival` is marked by a dot."""

    label: str
    value: float
    kind: str
    tip: str
    rival: float | None = None
    rival_tip: str = ""


@dataclass(frozen=True)
class Dot:
    """One model in a strip."""

    value: float
    tip: str
    kind: str


@dataclass(frozen=True)
class Strip:
    """A line of dots."""

    label: str
    dots: Sequence[Dot]


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis from `low` to `high`, drawn from pixel `left` to `right`."""

    low: float
    high: float
    left: float
    right: float

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.left + share * (self.right - self.left)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten, or only the powers where there are many."""
        span = math.log10(self.high / self.low)
        steps = (1, 2, 5) if span < 3 else (1,)
        found = []
        for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            found += [s * 10.0**power for s in steps if self.low <= s * 10.0**power <= self.high * 1.0001]
        if span < 0.8:
            found = sorted({*found, *(v for v in (0.75, 1.25, 1.5, 2.5, 3.0) if self.low <= v <= self.high)})
        return found


def _axis(values: Sequence[float], include: Sequence[float] = ()) -> _Axis:
    everything = [v for v in (*values, *include) if v > 0] or [1.0]
    low, high = min(everything) / 1.08, max(everything) * 1.08
    if high / low < 1.5:
        low, high = low / 1.25, high * 1.25
    return _Axis(low, high, LEFT, WIDTH - RIGHT)


def _grid(axis: _Axis, height: float, unit: Callable[[float], str], emphasis: float | None = None) -> list[str]:
    lines = []
    for tick in axis.ticks():
        x = axis(tick)
        kind = "axis" if emphasis is not None and math.isclose(tick, emphasis) else "grid"
        lines.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height}"/>')
        lines.append(f'<text class="tick" x="{x:.1f}" y="{TOP - 11}" text-anchor="middle">{escape(unit(tick))}</text>')
    return lines


def _svg(body: Sequence[str], height: float, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}" preserveAspectRatio="xMinYMin">' + "".join(body) + "</svg>"
    )


def ratio(value: float) -> str:
    """A ratio to eager, short."""
    return f"{value:.2f}\u00d7"


def speedups(bars: Sequence[Bar], title: str) -> str:
    """Bars that start at 1 (as fast as eager) and go right where the backend is faster, on a logarithmic axis."""
    values = [v for b in bars for v in (b.value, b.rival) if v is not None]
    axis = _axis(values, (0.8, 1.25))
    height = TOP + ROW * len(bars) + 4
    body = _grid(axis, height, lambda v: f"{v:g}\u00d7", emphasis=1.0)
    one = axis(1.0)
    for i, bar in enumerate(bars):
        y = TOP + ROW * i
        x = axis(bar.value)
        left, width = min(one, x), max(abs(x - one), 1.5)
        body.append(f'<g><title>{escape(bar.tip)}</title><rect class="hit" x="0" y="{y}" width="{WIDTH}" height="{ROW}"/>')
        body.append(_label(bar.label, y + 13))
        body.append(f'<rect class="{bar.kind}" x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="{BAR}" rx="2"/>')
        body.append(f'<text class="value" x="{WIDTH - RIGHT + 8}" y="{y + 13}">{ratio(bar.value)}</text></g>')
        if bar.rival is not None:
            body.append(
                f'<g><title>{escape(bar.rival_tip)}</title><circle class="rival" cx="{axis(bar.rival):.1f}" cy="{y + 9}" r="4.5"/></g>'
            )
    return _svg(body, height, title)


def strips(lines: Sequence[Strip], unit: Callable[[float], str], title: str, emphasis: float | None = None) -> str:
    """A line of dots for each group, on one logarithmic axis, with a mark at the median."""
    lines = [line for line in lines if line.dots]
    axis = _axis([d.value for line in lines for d in line.dots], () if emphasis is None else (emphasis,))
    step = 34
    height = TOP + step * len(lines) + 4
    body = _grid(axis, height, unit, emphasis)
    for i, line in enumerate(lines):
        y = TOP + step * i + step / 2
        median = statistics.median(d.value for d in line.dots)
        body.append(_label(line.label, y + 4))
        for k, dot in enumerate(line.dots):
            # A little up and down, the same in every rendering, so that equal values do not hide each other.
            dy = ((k * 7) % 5 - 2) * 3.2
            body.append(
                f'<circle class="dot {dot.kind}" cx="{axis(dot.value):.1f}" cy="{y + dy:.1f}" r="4"><title>{escape(dot.tip)}</title></circle>'
            )
        body.append(
            f'<line class="median" x1="{axis(median):.1f}" x2="{axis(median):.1f}" y1="{y - 13}" y2="{y + 13}"><title>median {escape(unit(median))}</title></line>'
        )
        body.append(f'<text class="value" x="{WIDTH - RIGHT + 8}" y="{y + 4}">{escape(unit(median))}</text>')
    return _svg(body, height, title)


def lengths(bars: Sequence[Bar], high: float, unit: Callable[[float], str], title: str) -> str:
    """Bars from 0 to `high`, on a linear axis."""
    height = TOP + ROW * len(bars) + 4
    left, right = LEFT, WIDTH - RIGHT
    body = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = left + tick * (right - left)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height}"/>')
        body.append(f'<text class="tick" x="{x:.1f}" y="{TOP - 11}" text-anchor="middle">{escape(unit(tick * high))}</text>')
    for i, bar in enumerate(bars):
        y = TOP + ROW * i
        width = max(min(bar.value / high, 1.0) * (right - left), 1.0)
        body.append(f'<g><title>{escape(bar.tip)}</title><rect class="hit" x="0" y="{y}" width="{WIDTH}" height="{ROW}"/>')
        body.append(_label(bar.label, y + 13))
        body.append(f'<rect class="{bar.kind}" x="{left}" y="{y + 3}" width="{width:.1f}" height="{BAR}" rx="2"/>')
        body.append(f'<text class="value" x="{WIDTH - RIGHT + 8}" y="{y + 13}">{escape(unit(bar.value))}</text></g>')
    return _svg(body, height, title)


def _label(text: str, y: float) -> str:
    """The name of a line; the end of long ones, which is what differs."""
    short = text if len(text) <= LONGEST else "\u2026" + text[1 - LONGEST :]
    return f'<text class="label" x="{LEFT - 10}" y="{y:g}" text-anchor="end">{escape(short)}</text>'
