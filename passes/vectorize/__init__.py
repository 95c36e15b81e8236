"""From linalg on tensors to vector, memref and scf: one kernel at a time, following its strategy.

    func @kernel(%x: tensor<128x768xf32>) -> tensor<128x768xf32> { linalg.generic ... }
->
    func @kernel(%context: !llvm.ptr)   with loops of vector.load, arith on vectors, vector.store
"""

from __future__ import annotations

from ...dialects.mlir import ir
from ...errors import CompileError
from ..strategy import ContractionStrategy, LoopStrategy, Strategy
from .bucket import vectorize_bucket
from .concat import vectorize_concat
from .contraction import vectorize_contraction
from .deep import vectorize_deep
from .deep_tiles import vectorize_deep_tiles
from .dot import vectorize_dot
from .grouped_tiles import vectorize_grouped_tiles
from .groups_of_rows import walk_groups
from .joined_rows import vectorize_joined_rows
from .joined_tiles import vectorize_joined_tiles
from .kernel import KernelFunction
from .loops import vectorize_loops
from .rows import vectorize_rows
from .scan import vectorize_scan
from .scatter import vectorize_scatter
from .segments import vectorize_segments
from .siblings import vectorize_siblings
from .split import vectorize_split
from .tiles import vectorize_tiles
from .turned import vectorize_turned
from .unroll_and_jam import vectorize_unroll_and_jam

PASS_NAME = "mlirc-vectorize"


def vectorize(kernel: KernelFunction, strategy: Strategy, symbol: str) -> ir.Module:
    """The vector-dialect module that exports `symbol` with the ABI of `runtime.abi`."""
    module = _vectorize(kernel, strategy, symbol)
    if kernel.ragged is not None:
        walk_groups(module, kernel, kernel.ragged, symbol)
    return module


def _vectorize(kernel: KernelFunction, strategy: Strategy, symbol: str) -> ir.Module:
    match kernel.domain.kind:
        case "contraction" | "convolution":
            assert isinstance(strategy, ContractionStrategy)
            build = vectorize_contraction
            if len(kernel.domain.siblings) > 1:
                build = vectorize_siblings
            elif strategy.turned:
                build = vectorize_turned
            elif strategy.chunk is not None:
                build = vectorize_deep_tiles
            elif strategy.groups is not None:
                build = vectorize_grouped_tiles
            elif strategy.lines is not None:
                build = vectorize_joined_tiles
            elif strategy.tiles:
                build = vectorize_tiles
            elif strategy.dot is not None:
                build = vectorize_dot
            elif strategy.depth is not None:
                build = vectorize_deep
            return build(kernel, strategy, symbol)
        case "loops" | "rows":
            assert isinstance(strategy, LoopStrategy)
            if strategy.split is not None:
                return vectorize_split(kernel, strategy, symbol)
            if strategy.joined > 1:
                join = vectorize_joined_rows if strategy.lane in strategy.inner else vectorize_unroll_and_jam
                return join(kernel, strategy, symbol)
            if strategy.rows > 1:
                return vectorize_rows(kernel, strategy, symbol)
            return vectorize_loops(kernel, strategy, symbol)
        case "concat":
            assert isinstance(strategy, LoopStrategy)
            return vectorize_concat(kernel, strategy, symbol)
        case "scatter":
            assert isinstance(strategy, LoopStrategy)
            return vectorize_scatter(kernel, strategy, symbol)
        case "segments":
            assert isinstance(strategy, LoopStrategy)
            return vectorize_segments(kernel, strategy, symbol)
        case "bucket":
            assert isinstance(strategy, LoopStrategy)
            return vectorize_bucket(kernel, strategy, symbol)
        case "scan":
            assert isinstance(strategy, LoopStrategy)
            return vectorize_scan(kernel, strategy, symbol)
    raise CompileError(f"no vectorizer for kernels of kind {kernel.domain.kind}")
