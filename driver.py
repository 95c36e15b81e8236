"""The compiler from top to bottom: a graph of linalg on tensors in, a native program out.

`compile_graph` runs in the user's process: graph passes, outlining, one job per distinct kernel, the plan.
`compile_kernel` is a pure function of its arguments and runs in worker processes, which import no torch. So do the graph
passes where code of the user's is among them: it can crash, or never end.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .dialects.context import kernel_context, pass_manager
from .dialects.mlir import ir
from .dialects.own import load as load_own
from .dialects.own import load_for
from .errors import CompileError, OptionError
from .lowering.bridge import to_llvm22
from .lowering.codegen import emit_assembly, emit_object
from .lowering.target import Target
from .lowering.to_llvm import first_line, lower_to_llvm_ir
from .options import Options
from .passes import structure as st
from .passes.chained import ChainFunction, is_chain
from .passes.even_odd import even_odd
from .passes.expand_math import expand_math
from .passes.interleave import interleave
from .passes.keep_wide import ROUND_OPS
from .passes.multiply_by_reciprocals import multiply_by_reciprocals
from .passes.near_gathers import near_gathers
from .passes.registry import NOTHING, UserCode, UserFile, files_key, line_in, load, read_files
from .passes.results import LOOSE, lying
from .passes.round_in_place import round_in_place
from .passes.strategy import MODEL, Adjustment, adjusted, parse_pins, pinned, reasons, select_strategy, write_strategy
from .passes.strategy.chains import ChainStrategy
from .passes.strategy.chains import chain as chain_strategy
from .passes.stream_stores import stream_stores
from .passes.sum_pairs import sum_pairs
from .passes.tabulate import tabulate
from .passes.tabulate_expressions import tabulate_expressions
from .passes.vectorize import KernelFunction, vectorize
from .passes.vectorize.chain import vectorize_chain
from .reproducer import write_reproducer
from .runtime.cache import KernelCache, kernel_key, pack, unpack
from .runtime.elf import defines

if TYPE_CHECKING:
    from .passes.build_plan import PlannedGraph
    from .passes.outline import Kernel
    from .passes.strategy import Strategy

Observer = Callable[[str, object], None]
"""Called with the name of a stage and what it produced: an `ir.Module`, an op or a text."""


def compile_kernel(
    text: str,
    target: Target,
    symbol: str,
    observer: Observer | None = None,
    user: UserCode = NOTHING,
    adjustment: Adjustment = MODEL,
    *,
    locations: bool = False,
) -> bytes:
    """Compile the text of one kernel to an object file that exports `symbol`.

    Raises CompileError. `observer` sees every stage: `kernel`, `strategy`, `vector`, each pass of the lowering,
    `llvm` and `asm`. `user` is code of the user's own, `adjustment` what has been measured or pinned. With `locations`, those of
    `text` become debug locations.
    """
    see = observer or (lambda name, what: None)
    # Code of the user's may leave a context in any state.
    with ir.Context() if user.files else kernel_context(), ir.Location.unknown(), st.one_context():
        load_for(text)
        module = ir.Module.parse(text)
        see("kernel", module)
        user.run_after("kernel", module, see)
        kernel = ChainFunction(module) if is_chain(module) else KernelFunction.of(module)
        strategy = _strategy(kernel, target, user, adjustment)
        if observer:
            write_strategy(kernel.function, strategy)
            see("strategy", reasons(strategy) + module.operation.get_asm(enable_debug_info=locations))
        # What belongs to no single op, such as loops, belongs to the line of the anchor, or else the last one.
        with _line_of(kernel) if locations else ir.Location.unknown():
            vectors = vectorize_chain(kernel, strategy, symbol) if isinstance(kernel, ChainFunction) else vectorize(kernel, strategy, symbol)
        see("vector", vectors)
        try:
            vectors.operation.verify()
        except ir.MLIRError as e:
            raise CompileError(f"the vectorizer built invalid IR: {e}", stage="vectorize") from None
        user.run_after("vector", vectors, see)
        # Verified above, and by `run_after`: to do it behind each pass takes as long as the passes.
        pass_manager("symbol-dce,canonicalize,cse", verify=False).run(vectors.operation)
        tabulate_expressions(vectors, target)
        tabulate(vectors, target)
        expand_math(vectors, target)
        if "arith.divf" in text:  # what functions become divides by no broadcast number, and to look takes 0.4 ms
            multiply_by_reciprocals(vectors)
        if "bf16" in text:
            sum_pairs(vectors, target)
        round_in_place(vectors, target)
        even_odd(vectors, target.lanes(16))
        interleave(vectors)
        near_gathers(vectors, target)
        if getattr(strategy, "streamed", None):
            stream_stores(vectors)
        see("math", vectors)
        user.run_after("math", vectors, see)
        llvm_text = lower_to_llvm_ir(vectors, observer, locations=locations)
    reduces = getattr(strategy, "strength_reduction", True)
    if observer:
        see("llvm", to_llvm22(llvm_text))
        see("asm", emit_assembly(llvm_text, target, strength_reduction=reduces))
    code = emit_object(llvm_text, target, strength_reduction=reduces)
    if not defines(code, symbol):
        raise CompileError("the function of the kernel is gone from its module", stage="codegen")
    return code


def _strategy(kernel: KernelFunction | ChainFunction, target: Target, user: UserCode, adjustment: Adjustment) -> Strategy | ChainStrategy:
    """The chosen one after user and measurements have had their say; of a chain, those of its parts."""
    if isinstance(kernel, KernelFunction):
        return adjusted(kernel, target, user.strategy(kernel, target, select_strategy(kernel, target)), adjustment)
    # A field is one of some parts, and the others do not have it.
    adjustment = replace(adjustment, exact=False)
    parts = [_strategy(part, target, user, adjustment) for part in kernel.parts]
    chosen = chain_strategy(kernel, parts, target)
    if isinstance(chosen, str):
        raise OptionError(f"with these strategies the kernels of a chain cannot take turns: {chosen}")
    return chosen


def _line_of(kernel: KernelFunction | ChainFunction) -> ir.Location:
    if isinstance(kernel, ChainFunction):
        return _line_of(kernel.parts[0])
    candidates = [op for op in (kernel.domain.anchor, *reversed(kernel.ops)) if op is not None]
    return next((line for line in (first_line(op.location) for op in candidates) if line), ir.Location.unknown())


def compile_kernel_job(
    text: str, target: Target, symbol: str, files: tuple[UserFile, ...] = (), adjustment: Adjustment = MODEL
) -> bytes:
    """What the worker processes run. `files` are those of the option `passes`, contents included."""
    return compile_kernel(text, target, symbol, user=load(files), adjustment=adjustment)


@dataclass
class CompiledKernel:
    """A distinct kernel of a graph: its name for people, its exported symbol, its object file, what it came from."""

    name: str
    symbol: str
    code: bytes
    origins: list[str]
    text: str = field(repr=False, default="")


@dataclass
class CompiledGraph:
    """The plan, the kernels that it calls, and seconds per stage."""

    planned: PlannedGraph
    kernels: list[CompiledKernel]
    seconds: dict[str, float]
    lying: dict[int, list[int]] = field(default_factory=dict)
    """Strides of the results that are not row-major, which those may be that are marked `loose`."""


def compile_graph(
    module: ir.Module,
    symbols: Sequence[str],
    n_outputs: int,
    writes: Sequence[int],
    target: Target,
    options: Options,
    observer: Observer | None = None,
    weights: Sequence[int] = (),
    loose: Sequence[int] = (),
) -> CompiledGraph:
    """Compile `@main` of an imported module; the module's context must be current.

    `writes[i]` is the tensor argument that result `n_outputs + i` overwrites, `weights` are the tensor arguments that
    hardly ever change: what depends on them alone is computed once, `loose` the results whose dims may lie in any order. Raises CompileError naming the kernel where
    one fails, with the FX nodes that it comes from as `origins`, and the other kernels that failed as `others`.
    """
    from .passes.build_plan import build_plan

    seconds: dict[str, float] = {}
    start = time.perf_counter()
    files = read_files(options.passes)
    mark_weights(module, weights)
    mark_loose(module, loose)
    mark_rounding(module, options)
    if files:
        module, kernels, files = _graph_passes_apart(module, writes, target, options, files)
        function = find_main(module)
    else:
        function, kernels = run_graph_passes(module, writes, target, observer)
    seconds["graph passes"] = time.perf_counter() - start
    start = time.perf_counter()
    adjustments = adjust_kernels(kernels, target, options, files)
    if options.tune:
        seconds["tuning"] = time.perf_counter() - start
        start = time.perf_counter()
    compiled = compile_kernels(kernels, target, options, files, adjustments)
    seconds["kernels"] = time.perf_counter() - start
    planned = build_plan(function, symbols, n_outputs, [k.symbol for k in compiled], weights)
    return CompiledGraph(planned, compiled, seconds, lying(function))


def mark_weights(module: ir.Module, weights: Sequence[int]) -> None:
    """Tell the graph passes which tensor arguments hardly ever change."""
    from .passes.weights import WEIGHTS

    find_main(module).attributes[WEIGHTS] = ir.DenseI64ArrayAttr.get(list(weights), module.context)


def mark_loose(module: ir.Module, results: Sequence[int]) -> None:
    """Tell the graph passes which results may lie in memory as they are made."""
    find_main(module).attributes[LOOSE] = ir.DenseI64ArrayAttr.get(list(results), module.context)


def mark_rounding(module: ir.Module, options: Options) -> None:
    """Tell the graph passes whether the results of all ops are to be rounded."""
    if options.rounding == "ops":
        find_main(module).attributes[ROUND_OPS] = ir.UnitAttr.get(module.context)


def find_main(module: ir.Module) -> ir.Operation:
    for op in module.body.operations:
        o = st.operation(op)
        if o.name == "func.func" and ir.StringAttr(o.attributes["sym_name"]).value == "main":
            return o
    raise CompileError("the module has no @main")


def run_graph_passes(
    module: ir.Module, writes: Sequence[int], target: Target, observer: Observer | None = None, user: UserCode = NOTHING
) -> tuple[ir.Operation, list[Kernel]]:
    """Everything up to the outlined kernels, in place."""
    from .passes.pipeline import GRAPH_PASSES, Graph

    see = observer or (lambda name, what: None)
    graph = Graph(module, find_main(module), writes, target)
    with ir.Location.unknown(), st.one_context():
        for name, step in GRAPH_PASSES.items():
            step(graph)
            see(name, module)
            if user.run_after(name, module, see):
                graph.function = find_main(module)
    return graph.function, graph.kernels


def run_graph_passes_job(
    code: bytes, writes: Sequence[int], target: Target, files: tuple[UserFile, ...]
) -> tuple[bytes, list[Kernel], tuple[UserFile, ...]]:
    """`run_graph_passes` on a module as bytecode, for a worker; and the files that kernels depend on."""
    user = load(files)
    with ir.Context():
        load_own()
        module = ir.Module.parse(code)
        _, kernels = run_graph_passes(module, writes, target, user=user)
        return _bytecode(module), kernels, user.kernel_files


def _graph_passes_apart(
    module: ir.Module, writes: Sequence[int], target: Target, options: Options, files: tuple[UserFile, ...]
) -> tuple[ir.Module, list[Kernel], tuple[UserFile, ...]]:
    """`run_graph_passes` in a worker, on a copy. Raises CompileError, also for a worker that gives no answer."""
    from .runtime.pool import WorkerError, get_pool

    pool = get_pool(options)
    future = pool.submit("mlirc.driver:run_graph_passes_job", _bytecode(module), list(writes), target, files)
    try:
        code, kernels, kernel_files = future.result()
    except WorkerError as e:
        raise CompileError(e.reason, stage=e.kind, source=line_in(e.log, files) or ", ".join(f.path for f in files)) from e
    except BaseException:
        pool.abandon([future])
        raise
    load_own()
    return ir.Module.parse(code), kernels, kernel_files


def _bytecode(module: ir.Module) -> bytes:
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


def adjust_kernels(
    kernels: Sequence[Kernel], target: Target, options: Options, files: tuple[UserFile, ...] = (), measure: bool = True
) -> list[Adjustment]:
    """What is pinned for each kernel, or else what was measured for it; with `measure`, what has not been is measured now.

    Raises OptionError for a pin that its kernel cannot have.
    """
    from .passes.strategy.trial import worth_trying

    pins = parse_pins(options.pin)
    out = [pinned(k.name, pins) for k in kernels]
    for k, adjustment in zip(kernels, out):
        if adjustment.pinned:
            _check_pin(k, target, files, adjustment)
    # Strategies of the user's own say what is best by themselves.
    todo = [n for n, k in enumerate(kernels) if not out[n].pinned and worth_trying(k.text)] if options.tune and not files else []
    if todo:
        from . import tuning
        from .runtime.pool import get_pool

        cache = kernel_cache(options)
        if measure:
            found = tuning.tune([tuning.Job(kernels[n].name, kernels[n].text) for n in todo], target, cache, get_pool(options))
        else:
            found = {kernels[n].text: tuning.recall(kernels[n].text, target, cache) or tuning.UNKNOWN for n in todo}
        for n in todo:
            out[n] = found.get(kernels[n].text, MODEL)
    return out


def _check_pin(kernel: Kernel, target: Target, files: tuple[UserFile, ...], adjustment: Adjustment) -> None:
    """Raises OptionError, naming the kernel: here, because what a worker raises may be answered by leaving the kernel to ATen."""
    with kernel_context(), ir.Location.unknown():
        load_for(kernel.text)
        module = ir.Module.parse(kernel.text)
        function = ChainFunction(module) if is_chain(module) else KernelFunction.of(module)
        try:
            _strategy(function, target, NOTHING, adjustment)
        except OptionError as e:
            raise OptionError(e.reason, kernel=kernel.name) from None


def compile_kernels(
    kernels: Sequence[Kernel],
    target: Target,
    options: Options,
    files: tuple[UserFile, ...] = (),
    adjustments: Sequence[Adjustment] | None = None,
) -> list[CompiledKernel]:
    """All kernels of a graph, from the cache or in the workers. `files` are those of the user's that they depend on."""
    from .runtime.pool import get_pool

    adjustments = adjustments or [MODEL] * len(kernels)

    cache = kernel_cache(options)
    out: list[CompiledKernel | None] = [None] * len(kernels)
    waiting: list[tuple[int, str, Future[bytes]]] = []
    pool = get_pool(options)
    failures: list[CompileError] = []
    try:
        for i, k in enumerate(kernels):
            key = kernel_key(k.text, target.key(), files_key(files) + adjustments[i].key())
            symbol = f"mlirc_{key[:24]}"
            code = _cached(cache, key, symbol)
            if code is not None:
                out[i] = CompiledKernel(k.name, symbol, code, k.origins, k.text)
            else:
                waiting.append((i, key, pool.submit("mlirc.driver:compile_kernel_job", k.text, target, symbol, files, adjustments[i])))
        for i, key, future in waiting:
            k = kernels[i]
            try:
                code = future.result()
            except Exception as e:
                failures.append(_failure(e, k, target, options, files, adjustments[i]))
                continue
            if cache:
                cache.put(key, pack({"name": k.name}, code))
            out[i] = CompiledKernel(k.name, f"mlirc_{key[:24]}", code, k.origins, k.text)
    except BaseException:
        # Ctrl-C: nobody waits for the rest, and what is compiled next must not have to.
        pool.abandon([future for _, _, future in waiting])
        raise
    if failures:
        failures[0].others = failures[1:]
        raise failures[0] from failures[0].__cause__
    return [k for k in out if k is not None]


def _cached(cache: KernelCache | None, key: str, symbol: str) -> bytes | None:
    """The object of a kernel, None if the cache has none that is whole."""
    found = cache.get(key) if cache else None
    if found is None:
        return None
    try:
        _, code = unpack(found)
    except ValueError:
        return None
    return code if defines(code, symbol) else None


def _failure(
    e: Exception, kernel: Kernel, target: Target, options: Options, files: Sequence[UserFile], adjustment: Adjustment
) -> CompileError:
    """What a worker said about a kernel, with the kernel's name and origins."""
    from .runtime.pool import WorkerError

    match e:
        case WorkerError(kind="start" | "shutdown"):  # no kernel is to blame
            return CompileError(e.reason, stage=e.kind)
        case WorkerError():
            reason, source, stage = e.reason, line_in(e.log, files), e.kind
        case CompileError():
            reason, source, stage = e.reason, e.source, e.stage
        case _:
            reason, source, stage = f"{type(e).__name__}: {e}", None, "kernel"
    reproducer = write_reproducer(kernel.name, kernel.text, target, options.passes, adjustment.key())
    out = CompileError(
        reason, source=source, kernel=kernel.name, stage=stage, reproducer=reproducer, origins=dict.fromkeys(kernel.origins)
    )
    out.__cause__ = e
    return out


def blame(error: CompileError, kernels: Sequence[CompiledKernel], target: Target, options: Options) -> CompileError:
    """An error of the linker with what is known of the kernels that it names."""
    named = (error.kernel or "").split(", ")
    found = [k for k in kernels if k.name in named]
    if not found:
        return error
    return CompileError(
        error.reason,
        stage="link",
        kernel=error.kernel,
        reproducer=write_reproducer(found[0].name, found[0].text, target, options.passes),
        origins=dict.fromkeys(origin for k in found for origin in k.origins),
    )


_caches: dict[tuple[str, int], KernelCache] = {}


def kernel_cache(options: Options) -> KernelCache | None:
    """The disk cache that the options ask for, None if they switch it off."""
    if not options.cache:
        return None
    place = (options.cache_dir, options.cache_size_mb)
    if place not in _caches:
        _caches[place] = KernelCache(Path(options.cache_dir) if options.cache_dir else None, options.cache_size_mb)
    return _caches[place]
