"""What to do with a kernel, decided in one place and written on it as attributes; the vectorizers only read it.

    func @kernel(...) attributes {mlirc.strategy = {kind = "rows", lanes = 16, unroll = 4, lane = 1, ...}}
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ...dialects.mlir import ir
from .adjust import MODEL, Adjustment, Pin, adjusted, parse_pins, pinned
from .chains import ChainStrategy
from .contractions import ContractionStrategy, contraction, pack_shape
from .loops import LANE_CHUNK, LoopStrategy, loops, margins, transposes
from .rows import WINDOW
from .scatter import bucket, scan, scatter, segments, why_in_order
from .stage import staged

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction

Strategy = LoopStrategy | ContractionStrategy


def select_strategy(kernel: KernelFunction, target: Target) -> Strategy:
    """Choose from ops, shapes, dtypes and target."""
    if kernel.domain.kind in ("contraction", "convolution"):
        return contraction(kernel, target)
    if kernel.domain.kind == "scatter":
        return scatter(kernel, target)
    if kernel.domain.kind == "segments":
        return segments(kernel, target)
    if kernel.domain.kind == "bucket":
        return bucket(kernel, target)
    if kernel.domain.kind == "scan":
        return scan(kernel, target)
    return loops(kernel, target)


def write_strategy(function: ir.Operation, strategy: Strategy | ChainStrategy) -> None:
    """Put the strategy on the function as `mlirc.strategy`."""
    function.attributes["mlirc.strategy"] = ir.StringAttr.get(
        ", ".join(f"{k}={v}" for k, v in asdict(strategy).items() if k != "why")
    )


def reasons(strategy: Strategy | ChainStrategy) -> str:
    """The choices for people to read: `// rows = 14: 32 registers, ...`, a line each; of a chain, then those of its parts."""
    if isinstance(strategy, ChainStrategy):
        parts = (f"// part {n}:\n{reasons(part)}" for n, part in enumerate(strategy.parts))
        return "".join(f"// {name} = {getattr(strategy, name)}: {why}\n" for name, why in strategy.why.items()) + "".join(parts)
    chosen = asdict(strategy)
    why = {name: reason for name, reason in strategy.why.items() if reason}
    lines = [f"// {why['']}"] if "" in why else []
    lines += [f"// {name} = {str(value).lower()}: {why[name]}" for name, value in chosen.items() if name in why]
    return "".join(line + "\n" for line in lines)


__all__ = [
    "LANE_CHUNK",
    "MODEL",
    "Adjustment",
    "ContractionStrategy",
    "LoopStrategy",
    "Pin",
    "Strategy",
    "WINDOW",
    "adjusted",
    "margins",
    "pack_shape",
    "parse_pins",
    "pinned",
    "reasons",
    "select_strategy",
    "staged",
    "transposes",
    "why_in_order",
    "write_strategy",
]
