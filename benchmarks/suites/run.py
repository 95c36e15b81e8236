"""Runs cases, each in a process of its own, and keeps what came out."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from . import limits
from .rows import Case, Row, append

ROW, STAGE = "ROW ", "STAGE "
"""How the lines start that a child prints for its parent."""


@dataclass(frozen=True)
class Settings:
    """How cases are run. `seconds` of timing for each contestant, 0 only checks; `timeout` in seconds; `memory` in GiB."""

    builders: str | None = None
    seconds: float = 3.0
    timeout: float = 900.0
    memory: float = 16.0
    cold: bool = True
    """Compile with empty caches."""


def run_case(case: Case, settings: Settings) -> Row:
    """The row of one case out of a fresh process; a process that died or ran into a limit gives a row that says so."""
    with tempfile.TemporaryDirectory(prefix="mlirc-suites-") as caches:
        environment = dict(os.environ, OMP_NUM_THREADS=str(case.threads))
        if settings.cold:
            options = ",".join(filter(None, [environment.get("MLIRC_OPTIONS", ""), f"cache_dir={caches}/mlirc"]))
            environment.update(MLIRC_OPTIONS=options, TORCHINDUCTOR_CACHE_DIR=f"{caches}/inductor", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
        what = json.dumps({"case": asdict(case), "settings": asdict(settings)})
        done = limits.run([sys.executable, "-m", "mlirc.benchmarks.suites", "one", what], environment, settings.timeout)
    return _row(case, settings, done)


def _row(case: Case, settings: Settings, done: limits.Finished) -> Row:
    lines = done.stdout.splitlines()
    rows = [json.loads(line[len(ROW) :]) for line in lines if line.startswith(ROW)]
    if rows:
        return rows[-1]
    stages = [line[len(STAGE) :] for line in lines if line.startswith(STAGE)]
    stage = stages[-1] if stages else "starting"
    row: Row = {**asdict(case), "stage": stage, "stderr": done.stderr[-4000:]}
    if done.timed_out:
        return {**row, "outcome": "time", "detail": f"more than {settings.timeout:.0f} s, then at: {stage}"}
    if done.out_of_memory:
        return {**row, "outcome": "memory", "detail": f"more than {settings.memory:g} GiB at: {stage}"}
    last = (done.stderr.strip().splitlines() or [""])[-1][:200]
    return {**row, "outcome": "error", "detail": f"the process ended with {done.returncode} at: {stage}. {last}".strip()}


def run_all(cases: Iterable[Case], settings: Settings, out: Path, jobs: int, report: Callable[[Row], None]) -> None:
    """Run the cases, `jobs` at a time, append each row to `out` as soon as it is there and hand it to `report`."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(run_case, case, settings) for case in cases]):
            row = future.result()
            append(out, row)
            report(row)
    except BaseException:
        # An interrupt, or no space left: what has not started never does, and nothing is left running.
        pool.shutdown(wait=False, cancel_futures=True)
        limits.stop_all()
        raise
    finally:
        pool.shutdown()


def child(what: str) -> None:
    """The other side of `run_case`: measure one case in this process and print its row."""
    request = json.loads(what)
    settings = Settings(**request["settings"])
    limits.die_with_parent()
    limits.limit_memory(settings.memory)

    from .case import measure

    def stage(name: str) -> None:
        print(STAGE + name, flush=True)

    row = measure(Case(**request["case"]), settings.builders, settings.seconds, stage)
    print("\n" + ROW + json.dumps(row), flush=True)
    sys.stderr.flush()
    os._exit(0)  # compile workers and threads of backends are ended by the parent
