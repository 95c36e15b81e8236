"""How scatters and scans are walked over: threads and lanes share what does not depend on the order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dialects import own
from ...dialects.mlir import ir
from .common import grain, known, lanes, product, why_grain, why_lanes
from .loops import LoopStrategy
from .walk import body_ops, merge

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction


def scatter(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Threads and lanes share what no two updates can collide in; lanes only where the result is contiguous."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    steps, sizes = _stored_steps(kernel), list(d.sizes)
    merged: dict[int, int] = {}
    free = [c for t in own.free_loops(op) if (c := d.loops[op][t]) is not None]
    ordered = [c for c in d.rows if c not in free]
    free = merge(free, kernel.accesses, sizes, merged)
    lane = next((c for c in free if steps.get(c) == 1), None)
    n, ops = lanes(kernel, target), 4 + body_ops(kernel)
    unroll = 1 if ops > 24 or lane is None or known(sizes[lane]) <= n else 2 if ops > 12 else 4
    outer = [c for c in free if c != lane]
    parallel: list[int] = []
    if lane is None or product(outer, sizes) >= 8:
        while outer and product(parallel, sizes) < 64:
            parallel.append(outer.pop(0))
    serial = [c for c in d.rows if c in outer or c in ordered]
    width = 1 if lane is None else known(sizes[lane]) if parallel else n * unroll
    work = ops * product(serial, sizes) * width
    why = {"unroll": f"about {ops} ops for an element", "lane": "the result is contiguous along it, and no two updates collide"}
    return LoopStrategy(n, unroll, lane, parallel, serial, [], merged, grain=grain(work), kind=d.kind, why=why_lanes(target) | why_grain(work) | why)


def scan(kernel: KernelFunction, target: Target) -> LoopStrategy:
    """Lanes run along a contiguous dim if it is not the scanned one; everything else is shared by the threads."""
    op, d = kernel.domain.anchor, kernel.domain
    assert op is not None
    scanned = d.loops[op][ir.IntegerAttr(op.attributes["dim"]).value]
    assert scanned is not None
    steps = _stored_steps(kernel)
    lane = next((c for c in d.rows if c != scanned and steps.get(c) == 1), None)
    parallel = [c for c in d.rows if c not in (scanned, lane)]
    n = lanes(kernel, target)
    work = (4 + body_ops(kernel)) * known(d.sizes[scanned]) * (1 if lane is None else n)
    why = {"lane": "the result is contiguous along it"}
    return LoopStrategy(n, 1, lane, parallel, [], [scanned], grain=grain(work), kind=d.kind, why=why_lanes(target) | why_grain(work) | why)


def _stored_steps(kernel: KernelFunction) -> dict[int, int | None]:
    """How the one result of a kernel is walked over: class -> step."""
    return next(a.steps for a in kernel.accesses.items if a.store)
