"""`python -m mlirc.tests.opinfo`: run PyTorch's OpInfos compiled against eager, and write the table."""

from __future__ import annotations

import fnmatch
import json
import random
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm


def _default_results() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("mlirc")) / "opinfo.jsonl"


def read_rows(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(name, dtype, mode) -> row; of several rows the last counts, a line cut short by an interruption does not."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows[row["op"], row["dtype"], row["mode"]] = row
    return rows


@click.command(help=__doc__)
@click.option("--op", "-k", multiple=True, help="Only these ops or modules (shell patterns).")
@click.option("--dtype", multiple=True, help="Only these dtypes (f32, bf16, ...).")
@click.option("--mode", multiple=True, type=click.Choice(["forward", "gradient", "dynamic"]), help="Only these modes.")
@click.option("--jobs", "-j", default=2, show_default=True, help="Worker processes.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for one pair in one mode.")
@click.option("--results", type=click.Path(path_type=Path), default=None, help="JSON lines; what is there is not run again.")
@click.option("--again", multiple=True, help="Run rows with this outcome (or `all`) again.")
@click.option("--shuffle", is_flag=True, help="In random order: what is there early says something about the whole.")
@click.option("--table/--no-table", default=True, help="Write table.jsonl and TABLE.md from the results.")
def main(
    op: tuple[str, ...], dtype: tuple[str, ...], mode: tuple[str, ...], jobs: int, timeout: float, results: Path | None,
    again: tuple[str, ...], shuffle: bool, table: bool,
) -> None:  # fmt: skip
    from .cases import MODES, has_mode, pairs
    from .run import Runner

    results = results or _default_results()
    results.parent.mkdir(parents=True, exist_ok=True)
    known = read_rows(results)
    work = [
        (p.name, p.dtype, m)
        for m in mode or MODES
        for p in pairs()
        if (not dtype or p.dtype in dtype) and (not op or any(fnmatch.fnmatchcase(p.name, o) for o in op)) and has_mode(p, m)
    ]
    skip = {key for key, row in known.items() if "all" not in again and row["outcome"] not in again}
    work = [w for w in work if w not in skip]
    if shuffle:
        random.Random(0).shuffle(work)
    with results.open("a") as out, tqdm(total=len(work), smoothing=0.02, unit="pair") as bar:
        counts: dict[str, int] = {}

        def done(row: dict[str, Any]) -> None:
            out.write(json.dumps(row) + "\n")
            out.flush()
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
            bar.set_postfix(counts)
            bar.update()

        Runner(jobs, timeout).run(work, done)
    if table:
        from .table import SUMMARY, TABLE, problems, write

        rows = [row for key, row in read_rows(results).items() if key[2] in MODES]
        write(rows)
        click.echo(f"{TABLE}\n{SUMMARY}")
        for problem in problems(rows):
            click.echo(problem)


if __name__ == "__main__":
    main()
