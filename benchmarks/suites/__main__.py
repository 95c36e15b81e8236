"""`python -m mlirc.benchmarks.suites`: run the suites, list them, render a report."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..suite import chosen_dtypes
from .rows import Case, Row, finished, read
from .run import Settings, child, run_all

COLOURS = {"right": "green", "wrong": "bold red", "error": "red", "time": "yellow", "memory": "yellow", "unbuilt": "dim"}


@click.group(help="The TorchBench, Hugging Face and TIMM suites of PyTorch's benchmarks/dynamo, with random weights.")
def main() -> None:
    pass


_builders = click.option("--builders", metavar="FILE.py[:NAME]", help="Take the models from a dict suite -> model -> builder of this file.")


@main.command()
@click.argument("cases", nargs=-1, metavar="[SUITE[:MODEL,...]]...")
@click.option("--dtypes", default="f32", show_default=True, help="Comma-separated, of f32, bf16, f16, f64.")
@click.option("--backends", default="mlirc,inductor", show_default=True, help="Each is timed in turns with eager. Also inductor-freeze, mlirc-dynamic (sizes of arguments are symbols), ...")
@click.option("--train", is_flag=True, help="Steps of training: forward, a loss, backward. Not for frozen weights.")
@click.option("--threads", default=1, show_default=True, help="Threads of each case.")
@click.option("--seconds", default=3.0, show_default=True, help="Seconds of timing for each contestant.")
@click.option("--check", is_flag=True, help="Only check results: no timing.")
@click.option("--timeout", default=900.0, show_default=True, help="Seconds that a case may take.")
@click.option("--memory", default=16.0, show_default=True, help="Address space in GiB that a case may take; 0 is no limit.")
@click.option("--warm", is_flag=True, help="Use the compilers' caches, instead of compiling everything anew.")
@click.option("--jobs", default=1, show_default=True, help="Cases at the same time. More than one is for --check.")
@click.option("--out", default="suites.jsonl", show_default=True, type=click.Path(path_type=Path), help="Rows are appended here; what is there is not run again.")
@click.option("--again", is_flag=True, help="Run cases again whose row in --out is not right.")
@_builders
def run(
    cases: tuple[str, ...],
    dtypes: str,
    backends: str,
    train: bool,
    threads: int,
    seconds: float,
    check: bool,
    timeout: float,
    memory: float,
    warm: bool,
    jobs: int,
    out: Path,
    again: bool,
    builders: str | None,
) -> None:
    """Run suites, or models of them; all by default. Continues where the rows in --out end."""
    suites = _load(builders)
    if train and (frozen := {"inductor-freeze", "inductor-autotune"} & set(backends.split(","))):
        raise click.UsageError(f"--train is for backends that can train, not for {', '.join(sorted(frozen))}: inductor without freezing can")
    wanted = [
        Case(suite, model, dtype, threads, backend, train)
        for suite, model in _models(suites, cases)
        for dtype in chosen_dtypes(dtypes)
        for backend in backends.split(",")
    ]
    known = {Case.of(row): row for row in read([out])}
    left = [c for c in wanted if c not in known or not finished(known[c], not check) or (again and known[c]["outcome"] != "right")]
    console = Console()
    if len(left) < len(wanted):
        console.print(f"{len(wanted) - len(left)} of {len(wanted)} cases are in {out}", markup=False)
    settings = Settings(builders, 0.0 if check else seconds, timeout, memory, cold=not warm)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(left))

        def report(row: Row) -> None:
            bar.console.print(_line(row), soft_wrap=True)
            bar.update(task, advance=1, description=row["suite"])

        out.parent.mkdir(parents=True, exist_ok=True)
        run_all(left, settings, out, jobs, report)
    chosen = set(wanted)
    rows = [row for row in read([out]) if Case.of(row) in chosen]
    console.print(_summary(rows))
    sys.exit(0 if all(row["outcome"] == "right" for row in rows) else 1)


@main.command("list")
@click.argument("cases", nargs=-1, metavar="[SUITE]...")
@_builders
def list_models(cases: tuple[str, ...], builders: str | None) -> None:
    """The models of the suites, and why some cannot be built."""
    from .build import Missing

    suites = _load(builders)
    for suite in cases or suites:
        if suite not in suites:
            raise click.UsageError(f"no suite {suite}; there are {', '.join(suites)}")
        missing = {name: m.reason for name, m in suites[suite].items() if isinstance(m, Missing)}
        click.echo(f"{suite}: {len(suites[suite]) - len(missing)} models, {len(missing)} that cannot be built")
        for name in suites[suite]:
            click.echo(f"  {name}" + (f": not built: {missing[name]}" if name in missing else ""))


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="ROWS.jsonl...")
@click.option("-o", "--out", default="suites.html", show_default=True, type=click.Path(path_type=Path), help="The HTML file to write.")
def report(files: tuple[Path, ...], out: Path) -> None:
    """Render rows as one HTML file that needs no network."""
    from .report import render

    rows = read(files)
    if not rows:
        raise click.UsageError("there are no rows in these files")
    out.write_text(render(rows))
    click.echo(f"{out}: {len(rows)} rows")


@main.command(hidden=True)
@click.argument("what")
def one(what: str) -> None:
    child(what)


def _load(builders: str | None) -> Mapping[str, Mapping[str, object]]:
    from .catalog import load

    try:
        return load(builders)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _models(suites: Mapping[str, Mapping[str, object]], cases: tuple[str, ...]) -> list[tuple[str, str]]:
    """(suite, model) of what the command line asks for, without those that cannot be built unless they are named."""
    from .build import Missing

    chosen = []
    for case in cases or suites:
        suite, _, names = case.partition(":")
        if suite not in suites:
            raise click.UsageError(f"no suite {suite}; there are {', '.join(suites)}")
        models = suites[suite]
        for name in names.split(",") if names else models:
            if name not in models:
                raise click.UsageError(f"no model {name} in {suite}; `list {suite}` names them")
            model = models[name]
            if not isinstance(model, Missing):
                chosen.append((suite, name))
            elif names:
                raise click.UsageError(f"{name} cannot be built: {model.reason}")
    return chosen


def _line(row: Row) -> Text:
    text = Text(f"{row['suite']}:{row['model']} ".ljust(52) + f"{row['dtype']:4} {row['backend']:10} " + "training " * row.get("train", False))
    text.append(row["outcome"].ljust(8), style=COLOURS[row["outcome"]])
    if "error" in row:
        text.append(f"error {row['error']:.0e} ")
    if "compile_s" in row:
        text.append(f"compile {row['compile_s']:5.1f} s ")
    if "speedup" in row:
        text.append(f"{row['ms']:9.2f} ms {row['speedup']:5.2f}x eager ")
    if row.get("aten_share"):
        text.append(f"ATen {row['aten_share']:.0%} ")
    if "detail" in row:
        text.append(row["detail"][:160])
    return text


def _summary(rows: list[Row]) -> Table:
    from .statistics import groups

    table = Table()
    for heading in ("suite", "dtype", "backend"):
        table.add_column(heading)
    for heading in ("right", "share", "speedup", "other outcomes"):
        table.add_column(heading, justify="right")
    for g in groups(rows):
        others = ", ".join(f"{n} {o}" for o, n in Counter(r["outcome"] for r in g.rows).items() if o != "right")
        speedup = f"{g.speedup:.2f}x" if g.speedup else ""
        table.add_row(g.suite, g.kind, g.backend, f"{g.right}/{g.counted}", f"{g.rate:.1%}", speedup, others)
    return table


if __name__ == "__main__":
    main()
