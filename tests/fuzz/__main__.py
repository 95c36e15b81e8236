"""`python -m mlirc.tests.fuzz`: many random programs, compiled, against eager mode."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from .chunk import close_executor, end_with_parent, run
from .grammar import PARTS

CHUNK = 40


@click.command()
@click.option("--count", default=20000, show_default=True, help="Programs that have to pass.")
@click.option("--jobs", default=2, show_default=True, help="Programs at a time.")
@click.option("--seed", default=0, show_default=True, help="First seed; each is good for about 40 programs.")
@click.option("--out", default="fuzz-results", show_default=True, type=click.Path(path_type=Path), help="Folder for results and reproducers.")
@click.option("--shrink/--no-shrink", default=True, show_default=True, help="Look for the smallest program that fails.")
@click.option("--part", type=click.Choice(PARTS), help="A part of the grammar to take half of the ops from; `failing`: programs that raise.")
@click.option("--large", is_flag=True, help="Tensors of up to a million elements, where loops have blocks and threads something to share.")
@click.option("--run", "program", type=click.Path(path_type=Path, exists=True), help="Run one reproducer, in this process.")
def main(count: int, jobs: int, seed: int, out: Path, shrink: bool, part: str | None, large: bool, program: Path | None) -> None:
    """Compile COUNT random programs and compare them with eager mode.

    Continues where a run with the same folder stopped. A program that fails becomes a file of the folder, in its
    smallest form, which `python FILE` runs again.
    """
    if program:
        exec(compile(program.read_text(), str(program), "exec"), {"__name__": "__main__"})
        return
    out.mkdir(parents=True, exist_ok=True)
    log = out / "chunks.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    seeds_done = {d["seed"] for d in done}
    passed, failures, by_torch = (sum(d["ok"] for d in done), sum(d["failure"] is not None for d in done), sum(len(d["by_torch"]) for d in done))
    seeds = (s for s in itertools.count(seed) if s not in seeds_done)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, end_with_parent) as pool, tqdm(total=count, initial=passed, unit="graph", smoothing=0.05) as bar, log.open("a") as f:
        waiting = {pool.submit(run, next(seeds), CHUNK, shrink, part or "", large) for _ in range(jobs)}
        while waiting:
            finished = next(as_completed(waiting))
            waiting.remove(finished)
            result = finished.result()
            f.write(json.dumps(result) + "\n")
            f.flush()
            passed += result["ok"]
            by_torch += len(result["by_torch"])
            if result["failure"]:
                failures += 1
                bar.write(f"seed {result['seed']}: {write_reproducer(out, result)}")
            bar.set_postfix(failures=failures, by_torch=by_torch)
            bar.update(result["ok"])
            if passed < count:
                waiting.add(pool.submit(run, next(seeds), CHUNK, shrink, part or "", large))
        for _ in range(jobs):
            pool.submit(close_executor)
    print(f"{passed} programs agree with eager mode, {failures} failures, {by_torch} left out because torch alone differs")
    raise SystemExit(bool(failures))


def write_reproducer(out: Path, result: dict[str, Any]) -> Path:
    """A runnable file in `out`."""
    kind, message, source = result["failure"]
    path = out / f"{kind.replace(' ', '_')}_{hashlib.sha256(source.encode()).hexdigest()[:8]}.py"
    comment = "\n".join("# " + re.sub(r"\s+", " ", line)[:300] for line in message.splitlines()[:30])
    path.write_text(f"# {kind}, seed {result['seed']}\n{comment}\n{source}")
    return path


if __name__ == "__main__":
    main()
