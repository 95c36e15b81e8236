"""One seed of the long run: so many programs from hypothesis, and the smallest form of the one that fails."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
from dataclasses import asdict, dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from .executor import Executor, Failure
from .program import Program
from .strategy import programs

QUIET = dict(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False, report_multiple_bugs=False, derandomize=False
)


@dataclass
class ChunkResult:
    """How many programs passed; (message, source) of those that torch alone gets wrong; (kind, message, source) of a failure."""

    seed: int
    ok: int = 0
    by_torch: list[tuple[str, str]] = field(default_factory=list)
    failure: tuple[str, str, str] | None = None
    as_found: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Sorts:
    """Failures as types by kind, so that hypothesis keeps to one kind while it shrinks."""

    made: dict[str, type[Failure]] = {}

    @classmethod
    def of(cls, f: Failure) -> Failure:
        # Errors also by their text, less the numbers and names in it.
        text = re.sub(r"[^a-z ]+|v\d+", "", f.message.split(": ", 1)[-1].splitlines()[0].lower())[:60] if f.kind == "error" else ""
        kind = f"{f.kind} {text}"
        if kind not in cls.made:
            cls.made[kind] = type("Failure" + re.sub(r"\W+", "_", kind), (Failure,), {})
        return cls.made[kind](f.kind, f.message, f.source)


def run_chunk(seed: int, count: int, executor: Executor, shrink: bool = True, part: str = "", large: bool = False) -> ChunkResult:
    """`count` programs, or fewer if one fails; with more of the rules of `part`, or on large tensors."""
    result = ChunkResult(seed)
    seen: set[str] = set()
    failed = False

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=count, phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate], **QUIET)
    @hypothesis.given(programs(part, large))
    def one(program: Program | None) -> None:
        nonlocal failed
        if program is None:
            return
        source = program.source()
        if source in seen and not failed:
            return
        seen.add(source)
        try:
            by_torch = executor.check(source)
        except Failure as f:
            if not failed:
                result.as_found = source
            failed = True
            raise Sorts.of(f) from None
        if failed:
            return
        if by_torch is None:
            result.ok += 1
        else:
            result.by_torch.append((by_torch, source))

    try:
        one()
    except Failure as f:
        result.failure = (f.kind, f.message, f.source)
    except (hypothesis.errors.FlakyFailure, hypothesis.errors.Flaky) as e:
        # It failed once and then did not; that is a finding too.
        found = next((x for x in getattr(e, "exceptions", ()) if isinstance(x, Failure)), None)
        result.failure = ("flaky", f"{found.kind}: {found.message}" if found else str(e), result.as_found)
    return result


_executor: Executor | None = None


def run(seed: int, count: int, shrink: bool, part: str = "", large: bool = False) -> dict[str, Any]:
    """`run_chunk` in a process of a pool, which keeps its executor."""
    global _executor
    _executor = _executor or Executor()
    return run_chunk(seed, count, _executor, shrink, part, large).as_dict()


def end_with_parent() -> None:
    """Initializer of the pool's processes: they do not outlive a command that is killed."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def close_executor() -> None:
    """End the executor of this process."""
    if _executor is not None:
        _executor.close()
