"""`mlirc.export`: an exported program as a library that runs without Python and torch.

    program = torch.export.export(model.eval(), (x,))
    mlirc.export(program, "model.a")                    model.a, a static library, and model.h

The graph goes the way of every other one (`frontend.importer`, `driver`); weights are packed here and lie in the library as kernels read them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sympy
import torch

from ..dialects.mlir import ir
from ..driver import CompiledGraph, CompiledKernel, compile_graph, compile_kernels
from ..errors import CompileError, OptionError
from ..lowering.target import Target
from ..options import Options
from ..passes.outline import Kernel
from ..passes.registry import read_files
from ..passes.strategy import parse_pins
from ..runtime.archive import write_archive
from ..runtime.artefact import Interface, Size, TensorArgument, read_inputs
from ..runtime.header import header_text
from ..runtime.linker import link_shared
from ..runtime.members import Piece, laid, members
from ..runtime.memory import Block
from ..runtime.plan import KernelStep, Plan
from ..runtime.program import Program
from ..runtime.recipes import recipes
from ..runtime.results import extent
from .exported import LiftedGraph, conditions, lift
from .imported import ImportedGraph, TensorSpec
from .importer import import_graph


@dataclass(frozen=True)
class Exported:
    """The files that were written, and how large they are."""

    library: Path
    header: Path
    nbytes: int
    weight_bytes: int
    kernels: int
    threads: bool
    """False for a shared library that was linked without OpenMP, which computes in the thread that calls it."""


def export(program: torch.export.ExportedProgram, path: str | Path, *, options: Mapping[str, Any] | None = None, mode: str | None = None) -> Exported:
    """Compile a program of `torch.export` to a static library (`.a`) or a shared one (`.so`), and write a C header beside it.

    A static library needs no other tool to be made, a shared one needs a C compiler (`cc`). `options` and `mode` are those of
    `torch.compile`; `target` may be another CPU than this one. Raises CompileError, saying where in the model, for what a library without
    torch cannot do: ops that would run in ATen, random numbers, changing what the model keeps.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise TypeError(f"mlirc.export takes what torch.export.export(model, args) returns, not a {type(program).__name__}")
    path = Path(path)
    if path.suffix not in (".a", ".so"):
        raise ValueError(f"mlirc: {path} is neither a static library (.a) nor a shared one (.so)")
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    name = c_name(path.stem)
    chosen = Options.make(options, mode)
    files = read_files(chosen.passes)
    parse_pins(chosen.pin)
    target = Target.parse(chosen.target)
    if chosen.guard_pages != "off":
        raise OptionError("guard_pages looks at what runs in this process: an exported model has none")
    graph, lifted, compiled = _compiled(program, chosen, target)
    plan = compiled.planned.plan
    interface = _interface(name, graph, lifted)
    pieces = _pieces(graph, lifted, compiled, chosen, target, files)
    used = set(read_inputs(plan))
    starts, kept = laid({n: p for n, p in pieces.items() if n in used})
    objects = members(plan, interface, starts, kept, {k.symbol: k.code for k in compiled.kernels}, target.features)
    vectors = ", ".join(f for f in target.features if f.startswith(("avx", "amx", "fma")))
    made_for = target.name if target.name != "host" else f"CPUs with {vectors or 'x86-64-v2'}"
    text = header_text(interface, made_for)
    threads = True
    if path.suffix == ".so":
        threads = link_shared(path, objects, name)
    else:
        write_archive(path, objects)
    header = path.with_suffix(".h")
    header.write_text(text)
    return Exported(path, header, path.stat().st_size, sum(p.nbytes for p in kept), len(compiled.kernels), threads)


def c_name(stem: str) -> str:
    """A file's name as what C functions are called. Raises ValueError for one that cannot be."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise ValueError(f"mlirc: the functions of a library are called after its file, and {stem!r} does not begin with a letter")
    return name


def _compiled(program: torch.export.ExportedProgram, options: Options, target: Target) -> tuple[ImportedGraph, LiftedGraph, CompiledGraph]:
    lifted = lift(program, options.rng)
    with ir.Context(), torch.no_grad():
        graph = import_graph(lifted.gm, sizes_given=True)
        _check(graph)
        tensors = graph.tensors
        weights = [tensors.index(i) for i in lifted.kept if i in tensors and i not in graph.writes] if options.prepack else []
        writes = [tensors.index(i) for i in graph.writes]
        n_outputs = sum(o.kind == "tensor" for o in graph.outputs)
        compiled = compile_graph(graph.module, [str(s) for s in graph.symbols], n_outputs, writes, target, options, None, weights, [])
    return graph, lifted, compiled


def _check(graph: ImportedGraph) -> None:
    """Raises CompileError for what needs torch at run time."""
    if graph.aten_calls:
        calls = [f"{c.target}: {c.reason}" + (f" ({c.source})" if c.source else "") for c in graph.aten_calls]
        raise CompileError("an exported model runs without torch, and these ops of it would run in ATen:\n" + "\n".join(f"    {c}" for c in dict.fromkeys(calls)))
    if graph.seeds:
        raise CompileError("an exported model has no generator of random numbers: export it in `eval()`, or give it the numbers as an argument")
    odd = next((o.kind for o in graph.outputs if o.kind != "tensor"), None)
    if odd:
        raise CompileError(f"an output of the graph is no tensor of its own ({odd})")


def _interface(name: str, graph: ImportedGraph, lifted: LiftedGraph) -> Interface:
    tensors = graph.tensors
    given = [i for i in lifted.arguments if i in tensors]
    fixed = [s for s in graph.symbols if s in graph.rounded]
    numbers = {graph.inputs[i]: name for i, name in lifted.arguments.items() if isinstance(graph.inputs[i], sympy.Symbol)}
    sizes = [Size(str(s), *lifted.ranges.get(str(s), (None, None)), numbers.get(s, "")) for s in graph.symbols if s not in fixed]
    outputs = [o.tensor for o in graph.outputs]
    return Interface(
        name,
        [_argument(lifted.arguments[i], graph.inputs[i], i in graph.writes) for i in given],  # type: ignore[arg-type]
        [_argument(n, t) for n, t in zip(lifted.results, outputs)],  # type: ignore[arg-type]
        [tensors.index(i) for i in given],
        sizes,
        {str(s): graph.rounded[s] for s in fixed},
        conditions(lifted.gm),
    )


def _argument(name: str, spec: TensorSpec, written: bool = False) -> TensorArgument:
    return TensorArgument(name, str(spec.dtype).removeprefix("torch."), spec.dtype.itemsize, spec.shape, spec.strides, written)


def _pieces(
    graph: ImportedGraph, lifted: LiftedGraph, compiled: CompiledGraph, options: Options, target: Target, files: Any
) -> dict[int, Piece]:
    """What the model keeps, by the plan's input: its tensors as they are, and what is computed from them."""
    planned = compiled.planned
    tensors = graph.tensors
    values = {n: lifted.kept[i] for n, i in enumerate(tensors) if i in lifted.kept}
    values |= {n: t for n, t in enumerate(graph.constants, len(tensors) - len(graph.constants))}
    out = {n: Piece(t.data_ptr(), extent(t.shape, t.stride(), t.dtype), t) for n, t in values.items()}
    if planned.weights is None:
        return out
    kernels = _runnable(planned.weights, compiled.kernels, options, target, files)
    steps = [replace(s, symbol=kernels[s.symbol].symbol) for s in planned.weights.steps if isinstance(s, KernelStep)]
    program = Program(replace(planned.weights, steps=steps), {k.name: k.code for k in kernels.values()})
    addresses = [out[n].address for n in planned.weight_inputs]
    shared: dict[Hashable, Block] = {}
    blocks = [shared.setdefault(r.of(addresses), Block(n)) for r, n in zip(recipes(planned.weights), planned.weight_bytes)]
    program.run(addresses, [b.address for b in blocks])
    first = planned.plan.n_inputs - len(blocks)
    return out | {first + i: Piece(b.address, n, b) for i, (b, n) in enumerate(zip(blocks, planned.weight_bytes))}


def _runnable(
    plan: Plan, kernels: Sequence[CompiledKernel], options: Options, target: Target, files: Any
) -> dict[str, CompiledKernel]:
    """The kernels of `plan` by their symbols, compiled for this machine where it cannot run those of the target."""
    called = [k for k in kernels if k.symbol in {s.symbol for s in plan.steps if isinstance(s, KernelStep)}]
    if not target.missing():
        return {k.symbol: k for k in called}
    own = compile_kernels([Kernel(k.name, k.text, k.text) for k in called], Target.host(), options, files)
    return {k.symbol: here for k, here in zip(called, own)}
