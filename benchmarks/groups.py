"""The fused groups of real models, one by one: how near to memory speed, and against eager and Inductor.

Groups are what the compiler made kernels of, but for those with a product or a convolution, taken from the model's own graph
with the values that the model has there; nothing is picked by hand. Each becomes a small graph of its own. Equal groups
(the layers of a transformer) count once, `calls` says how often the model has them.

`limit` is the longer of two times, both from this run: what a plain loop takes to copy as many bytes as the group's inputs and
outputs have (`bytes`), in the same rounds, and what the vector units need for the arithmetic, each element once, at the rates of
products, divisions and ops of any kind from registers (`units`, see `benchmarks.arithmetic`). `of limit` is that time over the
bare kernel's, without Python. It is above one where inputs are not read whole. Sums over sorted indices are timed in the running
model, with what sorts the indices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from .arithmetic import Rates, Work, count


@dataclass
class Group:
    """A kernel's nodes as a graph of their own, with the arguments of the first place where the model has it."""

    model: str
    name: str
    calls: int
    graph: Any
    arguments: list[Any]
    text: str = ""
    """The model's kernel."""
    work: Work | None = None
    """Its arithmetic; None where sizes are symbols."""
    timed: tuple[str, ...] = ()
    """The model's kernels that are timed in the model, for want of random numbers that would do: sums over sorted indices, and what
    sorts them, which counts for the first group that reads it."""

    @property
    def moved_bytes(self) -> int:
        """Bytes of the inputs, each element in memory once, and of the outputs; of a table, the rows that are looked up."""
        import torch

        with torch.no_grad():
            outputs = [t for t in self.graph(*self.arguments) if isinstance(t, torch.Tensor)]
        total = sum(map(_extent, outputs))
        places = [n for n in self.graph.graph.nodes if n.op == "placeholder"]
        for place, t in zip(places, self.arguments):
            if isinstance(t, torch.Tensor):
                looked_up = [u.meta["val"].numel() for u in place.users if str(u.target) in _LOOK_UPS and u.args[0] is place]
                rows = sum(looked_up) * t.element_size() if len(looked_up) == len(place.users) else _extent(t)
                total += min(rows, _extent(t))
        return total


_LOOK_UPS = {"aten.embedding.default", "aten.index.Tensor", "aten.gather.default", "aten.index_select.default"}


def _extent(t: Any) -> int:
    """Bytes of the distinct elements of a tensor that may be expanded."""
    n = 1
    for size, step in zip(t.shape, t.stride()):
        n *= size if step else 1
    return n * t.element_size()


def groups_of(model: str, dtype: Any, dynamic: bool = False) -> list[Group]:
    """The groups of a model of `benchmarks.models` in inference, by first appearance."""
    import torch
    import torch._dynamo

    from mlirc.frontend.backend import capture
    from mlirc.options import Options

    from .models import build_in

    module, args, kwargs = build_in(model, dtype)
    found: list[Group] = []

    def compiler(gm: Any, inputs: Any, direction: str) -> Callable[[list[Any]], Any]:
        kernels = _kernels(gm)

        def run(arguments: list[Any]) -> Any:
            values: dict[str, Any] = {}
            needed = {n.name for k in kernels for n in k.inputs}

            class Record(torch.fx.Interpreter):
                def run_node(self, n: Any) -> Any:
                    value = super().run_node(n)
                    if n.name in needed:
                        values[n.name] = value
                    return value

            out = Record(gm).run(*arguments)
            if any(k.name for k in kernels):
                found.extend(Group(model, k.name, k.calls, k.graph, [_laid_out(values[n.name], n in k.constant) for n in k.inputs], k.text, k.work, k.timed) for k in kernels)
                kernels.clear()
            arguments.clear()
            return out

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(module, backend=lambda gm, inputs: capture(gm, inputs, compiler, Options.make(None, None)), dynamic=dynamic)(*args, **kwargs)
    torch._dynamo.reset()
    for group in found:
        # Anew: Dynamo does not compile a module that was made while it was compiling.
        group.graph = torch.fx.GraphModule(torch.nn.Module(), group.graph.graph)
    return found


@dataclass
class _Kernel:
    name: str
    calls: int
    inputs: list[Any]
    graph: Any
    text: str
    work: Work | None
    constant: set[Any]
    """Nodes that depend on weights alone: they are computed beforehand, and laid out as they are read."""
    timed: tuple[str, ...]


def _kernels(gm: Any) -> list[_Kernel]:
    """The kernels without products of a graph, each as a graph of the nodes that its first call computes."""
    from mlirc.dialects.mlir import ir
    from mlirc.dialects.own import load_for
    from mlirc.driver import mark_weights, run_graph_passes
    from mlirc.frontend.imported import TensorSpec
    from mlirc.frontend.importer import import_graph
    from mlirc.frontend.static_inputs import static_inputs, weight_inputs
    from mlirc.lowering.target import Target
    from mlirc.passes.chained import is_chain
    from mlirc.passes.sorted_updates import SORTED
    from mlirc.passes.vectorize import KernelFunction

    out = []
    nodes = {n.name: n for n in gm.graph.nodes}
    with ir.Context(), ir.Location.unknown():
        graph = import_graph(gm, True, {})
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        weights = {placeholders[i] for i in weight_inputs(graph, static_inputs())}
        tensors = [i for i, spec in enumerate(graph.inputs) if isinstance(spec, TensorSpec)]
        mark_weights(graph.module, [tensors.index(i) for i in weight_inputs(graph, static_inputs())])
        constant = set(weights)
        for n in gm.graph.nodes:
            if n.op == "call_function" and n.all_input_nodes and constant.issuperset(n.all_input_nodes):
                constant.add(n)
        function, kernels = run_graph_passes(graph.module, [tensors.index(i) for i in graph.writes], Target.parse("host"))
        callees = [
            ir.FlatSymbolRefAttr(op.attributes["callee"]).value for op in function.regions[0].blocks[0].operations if op.name == "func.call"
        ]
        once = _run_once(function, {tensors.index(i) for i in weight_inputs(graph, static_inputs())})
        sorting = {k.name for k in kernels if SORTED in k.text or "mlirc.bucket" in k.text}
        sorts, counted = _sorts(function, sorting), set[str]()
        for k in kernels:
            if k.name in once:
                continue
            load_for(k.text)
            module = ir.Module.parse(k.text)
            if is_chain(module):  # of products, and what is between them
                continue
            domain = KernelFunction.of(module).domain
            calls = max(callees.count(k.name), 1)
            if domain.kind in ("contraction", "convolution") or "_pack_" in k.name or k.name in sorting:
                continue
            segments = domain.anchor is not None and domain.anchor.name == "mlirc.segments"
            timed = (k.name, *(name for name in sorts[k.name] if name not in counted)) if segments else ()
            chosen = {n for n in k.origins[: len(k.origins) // calls] if n in nodes and nodes[n].op == "call_function"}
            # What is left of a product in kernels of its own (padding, the scores of attention) is no group.
            if chosen and not any(word in str(nodes[n].target) for n in chosen for word in _PRODUCTS):
                inputs, part = _part(gm, chosen, constant - weights)
                if not constant.issuperset(inputs):
                    counted.update(timed)
                    out.append(_Kernel(k.name, calls, inputs, part, k.text, count(k.text), constant - weights, timed))
    return out


def _sorts(function: Any, sorting: set[str]) -> dict[str, list[str]]:
    """For each kernel the ones of those that are `sorting` whose results it reads, at first hand or through others of them."""
    from mlirc.dialects.mlir import ir
    from mlirc.passes import structure as st

    made: dict[Any, list[str]] = {}
    read: dict[str, list[str]] = {}
    for op in map(st.operation, function.regions[0].blocks[0].operations):
        if op.name == "func.call":
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            read[name] = list(dict.fromkeys(n for v in op.operands if st.is_tensor(v) for n in made.get(st.root(v), [])))
            if name in sorting:
                made.update((v, [name, *read[name]]) for v in op.results)
    return read


def _run_once(function: Any, weights: set[int]) -> set[str]:
    """The kernels that read weights alone, or what others such have made of them."""
    from mlirc.dialects.mlir import ir
    from mlirc.passes import structure as st

    block = function.regions[0].blocks[0]
    constant = {a for i, a in enumerate(a for a in block.arguments if st.is_tensor(a)) if i in weights}
    names = set()
    for op in map(st.operation, block.operations):
        if op.name == "func.call" and op.operands and all(st.root(v) in constant for v in op.operands if st.is_tensor(v)):
            constant.update(op.results)
            names.add(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
    return names


_PRODUCTS = ("attention", "convolution", "mm", "matmul", "linear", "mkldnn")


def _laid_out(value: Any, constant: bool) -> Any:
    import torch

    return value.contiguous() if constant and isinstance(value, torch.Tensor) else value


def _part(gm: Any, chosen: set[str], constant: set[Any]) -> tuple[list[Any], Any]:
    """The nodes that the part reads, and the part as a module of its own that returns what others read of it."""
    import operator

    import torch

    # A node with several results is no value: whoever reads it selects one.
    for n in gm.graph.nodes:
        if n.target is operator.getitem and n.args[0].name in chosen:
            chosen.add(n.name)
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    inputs: list[Any] = []
    members = [n for n in gm.graph.nodes if n.name in chosen]
    for n in members:
        for used in n.all_input_nodes:
            if used.name not in chosen and used not in copies:
                copies[used] = graph.placeholder(used.name)
                copies[used].meta = dict(used.meta, val=_laid_out(used.meta["val"], used in constant))
                inputs.append(used)
    for n in members:
        copies[n] = graph.node_copy(n, lambda x: copies[x])
    read = [n for n in members if any(u.name not in chosen for u in n.users) and isinstance(n.meta.get("val"), torch.Tensor)]
    graph.output(tuple(copies[n] for n in read or members[-1:]))
    return inputs, torch.fx.GraphModule(torch.nn.Module(), graph)


SAMPLE_SECONDS = 50e-6
"""The least time of a sample of native calls."""


def measure(group: Group, backends: list[str], seconds: float, rates: Rates | None = None, in_model: dict[str, float] | None = None) -> dict[str, Any]:
    """A row: milliseconds of each backend through torch.compile, of the bare kernels, and of both limits.

    `in_model`: milliseconds of the model's kernels in a call of it, for those of `group.timed`.
    """
    import torch
    import torch._dynamo

    from mlirc.frontend.backend import compile_fx
    from mlirc.lowering.target import Target
    from mlirc.options import Options

    from .limits import Repeat
    from .measure import alternate, median_ms
    from .suite import first_call

    rates = rates or Rates()
    row: dict[str, Any] = {"model": group.model, "group": group.name, "calls": group.calls, "bytes": group.moved_bytes}
    arguments = group.arguments
    row["shapes"] = [str(tuple(a.shape)) for a in arguments if isinstance(a, torch.Tensor)]
    calls: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        expected = group.graph(*arguments)
        for backend in backends:
            torch._dynamo.reset()
            call, got, _ = first_call(group.graph, tuple(arguments), {}, backend)
            pairs = [(a, b) for a, b in zip(expected, got) if isinstance(a, torch.Tensor)]
            row[f"{backend} error"] = max(((a.double() - b.double()).abs().max().item() for a, b in pairs if a.numel()), default=0.0)
            calls[backend] = lambda call=call: call(*arguments)
        runner = compile_fx(group.graph, arguments, options=Options.make(None, None), target=Target.parse("host"))
        row["kernels"] = len(runner.report.kernels)  # type: ignore[attr-defined]
        row["aten"] = len(runner.report.aten)  # type: ignore[attr-defined]
        repeat = Repeat()
        results = runner(list(arguments))
        native, memory = _of_the_model(group)
        if native is None and hasattr(runner, "program"):
            native = runner.program.last_call()
        times = {"bytes": _times(repeat.copy(row["bytes"], 1)), "kernel": 1}
        calls["bytes"] = repeat.copy(row["bytes"], times["bytes"])
        calls["kernel"] = lambda: runner(list(arguments))
        if native is not None:
            times["kernel"] = _times(repeat.function(*native, 1))
            calls["kernel"] = repeat.function(*native, times["kernel"])
        for name, taken in alternate(calls, seconds).items():
            row[f"{name} ms"] = median_ms(taken) / times.get(name, 1)
        if in_model and group.timed:
            row["kernel ms"] = sum(in_model[name] for name in group.timed) / group.calls
        del results, memory
    row["units ms"] = 1e3 * rates.seconds(group.work) / torch.get_num_threads() if group.work else 0.0
    row["limit ms"] = max(row["bytes ms"], row["units ms"])
    row["of limit"] = row["limit ms"] / row["kernel ms"]
    return row


def _of_the_model(group: Group) -> tuple[tuple[int, int, int] | None, Any]:
    """Addresses (f, a, b) of the model's kernel, with the layouts that its arguments have there; None where sizes are symbols.

    `f(a, b)` runs it on random numbers, and on the model's own where they are integers; the second result keeps all that in memory.
    """
    import numpy as np
    import torch

    from mlirc.dialects.mlir import ir
    from mlirc.dialects.own import load_for
    from mlirc.driver import compile_kernel
    from mlirc.lowering.target import Target
    from mlirc.passes.build_plan import BYTES
    from mlirc.passes.vectorize import KernelFunction
    from mlirc.runtime.loader import Library

    if not group.work or group.timed:
        return None, None
    memory = []
    integers = [a.contiguous() for a in group.arguments if isinstance(a, torch.Tensor) and not a.is_floating_point()]
    with ir.Context(), ir.Location.unknown():
        load_for(group.text)
        module = ir.Module.parse(group.text)
        kernel = KernelFunction.of(module)
        strides = [*(kernel.strides.get(v) for v in kernel.arguments), *kernel.stored_strides]
        for v, steps in zip((*kernel.arguments, *kernel.stored), strides):
            sizes = kernel.shapes.of(v) if steps is not None else ()
            if steps is None or not all(isinstance(n, int) for n in (*steps, *sizes)):
                return None, None
            kind = str(v.type.element_type)
            extent = 1 + sum((n - 1) * s for n, s in zip(sizes, steps))
            same = [a for a in integers if a.numel() == extent and a.element_size() == BYTES[kind]] if kind.startswith("i") else []
            if same:
                memory.append(same[0])
            elif kind in ("f32", "f64"):
                memory.append(torch.randn(extent, dtype=torch.float32 if kind == "f32" else torch.float64))
            elif kind in ("bf16", "f16"):
                memory.append(torch.randn(extent).to(torch.bfloat16 if kind == "bf16" else torch.float16))
            else:
                memory.append(torch.zeros(extent * BYTES[kind], dtype=torch.uint8))
    library = Library({"kernel": compile_kernel(group.text, Target.parse("host"), "kernel")})
    status = np.zeros(1, np.int64)
    slots = np.array([status.ctypes.data, *(t.data_ptr() for t in memory)], np.int64)
    return (library.address("kernel"), slots.ctypes.data, 0), (library, status, slots, memory)


def _times(call: Callable[[], object]) -> int:
    """How often a call is to be repeated for a sample that a clock can tell."""
    import time

    call()
    start = time.perf_counter()
    call()
    return max(1, min(1000, int(SAMPLE_SECONDS / (time.perf_counter() - start)) + 1))


def _describe(row: dict[str, Any], backends: list[str]) -> str:
    text = f"{row['model']:13} {row['calls']:3}x {row['group'][:44]:44} {row['bytes'] / 1e6:8.2f} MB  kernel {row['kernel ms'] * 1e3:8.1f} us, {row['of limit']:5.2f} of limit"
    text += " (units)" if row["units ms"] > row["bytes ms"] else " (bytes)"
    for backend in backends:
        if backend != "mlirc":
            text += f", {row[f'{backend} ms'] / row['mlirc ms']:5.2f}x {backend}"
    return text


def _summary(rows: list[dict[str, Any]], backends: list[str]) -> str:
    spent = sum(r["kernel ms"] * r["calls"] for r in rows)
    text = f"{len(rows)} groups; of limit, weighted by time: {sum(r['limit ms'] * r['calls'] for r in rows) / spent:.2f}"
    for backend in backends:
        if backend != "mlirc":
            ratios = [r[f"{backend} ms"] / r["mlirc ms"] for r in rows]
            text += f"; {geometric_mean(ratios):.2f}x {backend} (geometric mean), slowest {min(ratios):.2f}x"
    return text


def _table(rows: list[dict[str, Any]]) -> str:
    """Rows of several runs: per dtype and number of threads, by the share of the time of all groups of the model."""
    latest = {(r["dtype"], r["threads"], r["model"], r["group"], *r["shapes"]): r for r in rows}
    out = []
    for kind in sorted({key[:2] for key in latest}, reverse=True):
        members = [r for key, r in latest.items() if key[:2] == kind]
        backends = [k[:-3] for k in members[0] if k.endswith(" ms") and k[:-3] not in ("kernel", "bytes", "units", "limit")]
        out.append(f"{kind[0]}, {kind[1]} threads")
        out += [_describe(r, backends) for r in sorted(members, key=lambda r: -r["kernel ms"] * r["calls"])]
        out += [_summary(members, backends), ""]
    return "\n".join(out)


@click.command(help=__doc__)
@click.option(
    "--models",
    default="bert,gpt2,llama_prefill,vit_b16,convnext_t,mobilenetv3,swin_t,unet,diffusion,sage",
    show_default=True,
    help="NAME or NAME@SIZE, as bert@129: the number of tokens or of nodes, the side of the image.",
)
@click.option("--dtype", default="f32", show_default=True, type=click.Choice(["f32", "bf16"]))
@click.option("--threads", default=1, show_default=True)
@click.option("--backends", default="eager,mlirc", show_default=True, help="Comma-separated; inductor-freeze is another.")
@click.option("--seconds", default=0.5, show_default=True, help="Seconds of timing for each contestant.")
@click.option("--dynamic", is_flag=True, help="Sizes are symbols.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the rows to this file as JSON lines.")
@click.option("--report", type=click.Path(path_type=Path, exists=True), help="Print the table of rows in this file, dearest first.")
def main(models: str, dtype: str, threads: int, backends: str, seconds: float, dynamic: bool, out: Path | None, report: Path | None) -> None:
    import torch

    from mlirc.lowering.codegen import own_process

    from .in_model import kernel_ms
    from .models import build_in
    from .suite import DTYPES

    own_process()
    torch.set_num_threads(threads)
    contestants = backends.split(",")
    if report:
        click.echo(_table([json.loads(line) for line in report.read_text().splitlines()]))
        return
    rows = []
    rates = Rates()
    for model in models.split(","):
        groups = groups_of(model, getattr(torch, DTYPES[dtype]), dynamic)
        in_model: dict[str, float] = {}
        for group in groups:
            try:
                if group.timed and not in_model:
                    in_model = kernel_ms(*build_in(model, getattr(torch, DTYPES[dtype])), dynamic)
                row = measure(group, contestants, seconds, rates, in_model)
                row.update(dtype=dtype, threads=threads)
            except Exception as error:  # one group's failure must not end the table
                click.echo(f"{model:13} {group.name} FAILED {type(error).__name__}: {str(error)[:300]}", err=True)
                continue
            if not row["kernels"] and not row["aten"]:
                continue  # a copy in the model, a view where it is alone
            rows.append(row)
            click.echo(_describe(row, contestants))
            if out:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    if rows:
        click.echo(_summary(rows, contestants))
    sys.exit(0 if rows else 1)


if __name__ == "__main__":
    main()
