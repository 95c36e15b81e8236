"""The table of errors in the repository, `accuracy.md`: written by `python -m mlirc.tests.numerics`, read by the tests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from .formats import FORMATS
from .functions import BINARY, UNARY
from .measure import Row

PATH = Path(__file__).with_name("accuracy.md")

_HEAD = """# Errors of the compiled functions

In units in the last place (ulp) of the result: the worst, the arguments where it is, and the share of results that are the number
nearest to the exact one. f16 and bf16: all 65,536 numbers; f32: a million over all exponents, with special values and the places
where the formulas change; f64: 100,000 of the same; functions of two numbers: as many pairs. References are in long double.
`eager` is torch's own worst error on the CPU that the table was made on. `inf` means a wrong infinity, NaN or sign of zero.

Written by `make numerics`; the tests fail where a row gets worse.
"""


def _number(x: float) -> str:
    """Rounded up, so that a measured value is not above what the table says."""
    if not math.isfinite(x):
        return "inf"
    if x < 1000:
        return f"{math.ceil(round(x * 1000, 6)) / 1000:.3f}"
    rounded = float(f"{x:.2e}")
    return f"{rounded if rounded >= x else rounded * 1.01:.2e}"


def write(rows: Iterable[Row], path: Path = PATH) -> None:
    """Write rows, in the order of the formats and functions."""
    found = {(r.function, r.format): r for r in rows}
    functions = [*UNARY.values(), *BINARY.values()]
    lines = [_HEAD]
    for form in FORMATS:
        lines += [f"## {form}\n", "| function | worst ulp | at | nearest | eager |", "|---|---|---|---|---|"]
        for r in (found[f.name, form] for f in functions if (f.name, form) in found):
            at = ", ".join(repr(v) for v in r.at)
            nearest = f"{math.floor(r.nearest * 1e5) / 1e3:.3f}%"
            lines.append(f"| {r.function} | {_number(r.worst)} | {at} | {nearest} | {_number(r.eager)} |")
        lines.append("")
    lines += ["## Without a target\n", "Torch defines these by steps, and eager mode has the same errors:\n"]
    lines += [f"- {f.name}: {f.composed}" for f in functions if f.composed]
    path.write_text("\n".join(lines) + "\n")


def read(path: Path = PATH) -> dict[tuple[str, str], Row]:
    """The rows by function and format. Numbers are as rounded in the text."""
    rows, form = {}, ""
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            form = line[3:]
        elif line.startswith("| ") and not line.startswith("| function"):
            name, worst, at, nearest, eager = (cell.strip() for cell in line.strip("|").split("|"))
            place = tuple(float(v) for v in at.split(", "))
            rows[name, form] = Row(name, form, float(worst), place, float(nearest.rstrip("%")) / 100, float(eager))
    return rows
