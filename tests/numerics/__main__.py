"""`python -m mlirc.tests.numerics`: measure every function in every format and write `accuracy.md`."""

from __future__ import annotations

import click
from tqdm import tqdm

from . import table
from .formats import FORMATS
from .measure import FULL, SAMPLE, arguments, cases, measure

TARGETS = ("host", "x86-64-v3")
"""Some functions of f32 are others with AVX-512; a row is that of the worse ones."""


@click.command()
@click.option("--function", "functions", multiple=True, help="Only this one; the other rows stay. Can be repeated.")
@click.option("--format", "formats", multiple=True, type=click.Choice(list(FORMATS)), help="Only this one. Can be repeated.")
@click.option("--quick", is_flag=True, help="Fewer points, as in the tests; nothing is written.")
def main(functions: tuple[str, ...], formats: tuple[str, ...], quick: bool) -> None:
    """Measure the errors of the compiled functions, and write them to tests/numerics/accuracy.md.

    Takes a few minutes. Prints the rows that changed.
    """
    chosen = [(f, form) for f, form in cases() if (not functions or f.name in functions) and (not formats or form.name in formats)]
    if not chosen:
        raise click.UsageError("no such function")
    rows = table.read() if table.PATH.exists() else {}
    for function, form in tqdm(chosen, unit="row", leave=False):
        key = function.name, form.name
        inputs = arguments(function, form, SAMPLE if quick else FULL)
        row = max((measure(function, form, inputs, target=t) for t in TARGETS), key=lambda row: row.worst)
        if key not in rows or abs(rows[key].worst - row.worst) > 0.002 * row.worst:
            before = f" (was {rows[key].worst:.3f})" if key in rows else ""
            tqdm.write(f"{function.name:12} {form.name:5} {row.worst:.3f} ulp at {row.at}, nearest {row.nearest:.3%}{before}")
        rows[key] = row
    if not quick:
        known = {(f.name, form.name) for f, form in cases()}
        table.write(r for key, r in rows.items() if key in known)


if __name__ == "__main__":
    main()
