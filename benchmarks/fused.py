"""The fused groups of a model, as graphs of their own: what the compiler made kernels of, but for those with a product or a convolution.

Kernels that compute the same nodes are one group (the moments of a group norm whose sums are split).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .arithmetic import Work, count


@dataclass
class Group:
    """The nodes of a kernel, or of some, as a graph of their own, with the arguments of the first place where the model has it."""

    model: str
    name: str
    calls: int
    graph: Any
    arguments: list[Any]
    texts: tuple[str, ...] = ()
    """The model's kernels, one for each call."""
    places: tuple[tuple[tuple[int, int], ...], ...] = ()
    """For each call and each tensor that it reads: the number of its memory, and elements from there to where it begins."""
    between: int | None = None
    """Bytes that they read of others and that others read of them; None where rows are looked up, or sizes are symbols."""
    work: Work | None = None
    """Its arithmetic; None where sizes are symbols."""
    sorts: bool | None = None
    """Of sums over sorted indices: whether what sorts them counts here, as it does where no group before reads any of it; None for other
    groups. They run in a program of their own, for want of random numbers that would do."""

    @property
    def moved_bytes(self) -> int:
        return self.graph_bytes if self.between is None else self.between

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's inputs, each element in memory once, and of its outputs; of a table, the rows that are looked up."""
        import torch

        with torch.no_grad():
            outputs = [t for t in self.graph(*self.arguments) if isinstance(t, torch.Tensor)]
        total = sum(map(_extent, outputs))
        places = [n for n in self.graph.graph.nodes if n.op == "placeholder"]
        for place, t in zip(places, self.arguments):
            if isinstance(t, torch.Tensor):
                looked_up = [int(u.meta["val"].numel()) for u in place.users if str(u.target) in _LOOK_UPS and u.args[0] is place]
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
        groups = _groups(model, gm)

        def run(arguments: list[Any]) -> Any:
            values: dict[str, Any] = {}
            needed = {n.name for g in groups for n in g.inputs}

            class Record(torch.fx.Interpreter):
                def run_node(self, n: Any) -> Any:
                    value = super().run_node(n)
                    if n.name in needed:
                        values[n.name] = value
                    return value

            out = Record(gm).run(*arguments)
            for g in groups:
                g.group.arguments = [_laid_out(values[n.name], n in g.constant) for n in g.inputs]
                found.append(g.group)
            groups.clear()
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
class _Found:
    group: Group
    """Without arguments."""
    inputs: list[Any]
    """The nodes that these are the values of."""
    constant: set[Any]
    """Nodes that depend on weights alone: they are computed beforehand, and laid out as they are read."""


def _groups(model: str, gm: Any) -> list[_Found]:
    """The kernels without products of a graph, those of the same nodes together, as a graph of the nodes that their first calls compute."""
    from mlirc.dialects.mlir import ir
    from mlirc.dialects.own import load_for
    from mlirc.driver import mark_weights, run_graph_passes
    from mlirc.frontend.imported import TensorSpec
    from mlirc.frontend.importer import import_graph
    from mlirc.frontend.static_inputs import static_inputs, weight_inputs
    from mlirc.lowering.target import Target
    from mlirc.passes.chained import is_chain
    from mlirc.passes.layouts import Layouts
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
        once = _run_once(function, {tensors.index(i) for i in weight_inputs(graph, static_inputs())})
        sorting = _sorting(kernels)
        sorts, counted = _sorts(function, sorting), set[str]()
        layouts = Layouts(function)
        texts, segments = {}, set[str]()
        for k in kernels:
            if k.name in once or k.name in sorting or "_pack_" in k.name:
                continue
            load_for(k.text)
            module = ir.Module.parse(k.text)
            if is_chain(module):  # of products, and what is between them
                continue
            domain = KernelFunction.of(module).domain
            if domain.kind in ("contraction", "convolution"):
                continue
            texts[k.name] = k.text
            if domain.anchor is not None and domain.anchor.name == "mlirc.segments":
                segments.add(k.name)
        places: dict[tuple[str, ...], list[tuple[set[str], list[Any]]]] = {}
        calls = _calls(function)
        for computed, ops in calls.items():
            ops = [op for op in ops if _callee(op) in texts]
            chosen = {n for n in computed if n in nodes and nodes[n].op == "call_function"}
            # What is left of a product in kernels of its own (padding, the scores of attention) is no group.
            if ops and chosen and not any(word in str(nodes[n].target) for n in chosen for word in _PRODUCTS):
                places.setdefault(tuple(map(_callee, ops)), []).append((chosen, ops))
        for names, found in places.items():
            chosen, ops = found[0]
            inputs, part = _part(gm, chosen, constant - weights)
            if constant.issuperset(inputs):
                continue
            orders = {n for name in names for n in sorts[name]}
            first = orders.isdisjoint(counted) if segments.intersection(names) else None
            counted.update(orders if first is not None else ())
            works = [count(texts[name]) for name in names]
            work = None if None in works else sum(works, Work())  # type: ignore[arg-type]
            looks_up = any(str(nodes[n].target) in _LOOK_UPS for n in chosen)
            group = Group(
                model, _name(names), len(found), part, [], tuple(texts[n] for n in names), _places(ops, layouts),
                None if looks_up else _bytes_between(ops, layouts), work, first,
            )  # fmt: skip
            out.append(_Found(group, inputs, constant - weights))
    return out


def kernels_of_sums(gm: Any) -> tuple[set[str], set[str]]:
    """The kernels of a graph that add up rows by sorted indices, and those that sort."""
    from mlirc.dialects.mlir import ir
    from mlirc.driver import run_graph_passes
    from mlirc.frontend.imported import TensorSpec
    from mlirc.frontend.importer import import_graph
    from mlirc.lowering.target import Target

    with ir.Context(), ir.Location.unknown():
        graph = import_graph(gm, True, {})
        tensors = [i for i, spec in enumerate(graph.inputs) if isinstance(spec, TensorSpec)]
        _, kernels = run_graph_passes(graph.module, [tensors.index(i) for i in graph.writes], Target.parse("host"))
        return {k.name for k in kernels if "mlirc.segments" in k.text}, _sorting(kernels)


def _sorting(kernels: Sequence[Any]) -> set[str]:
    from mlirc.passes.sorted_updates import SORTED

    return {k.name for k in kernels if SORTED in k.text or "mlirc.bucket" in k.text}


def _name(names: tuple[str, ...]) -> str:
    """k08_native_group_norm; of several kernels k08+09+11_native_group_norm."""
    numbers, words = zip(*(name.split("_", 1) for name in dict.fromkeys(names)))
    return f"{'+'.join([numbers[0], *(n[1:] for n in numbers[1:])])}_{words[0]}"


def _callee(op: Any) -> str:
    from mlirc.dialects.mlir import ir

    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value


def _calls(function: Any) -> dict[frozenset[str], list[Any]]:
    """The calls of kernels, by the names of the nodes that they compute."""
    from mlirc.passes import structure as st

    out: dict[frozenset[str], list[Any]] = {}
    for op in map(st.operation, function.regions[0].blocks[0].operations):
        if op.name == "func.call" and "mlirc.kernel" in op.attributes:
            out.setdefault(frozenset(re.findall(r'"([\w.]+)"', str(op.location))), []).append(op)
    return out


def _places(calls: list[Any], layouts: Any) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each call the memory of the tensors that it reads, and where they begin, 0 where that is a symbol."""
    from mlirc.passes import structure as st

    numbers: dict[Any, int] = {}
    found = [[layouts.of(v) for v in op.operands if st.is_tensor(v)] for op in calls]
    return tuple(tuple((numbers.setdefault(p.root, len(numbers)), p.offset if isinstance(p.offset, int) else 0) for p in row) for row in found)


def _bytes_between(calls: list[Any], layouts: Any) -> int | None:
    """Bytes of what the calls read that none of them has made, and of what others read of theirs; None where sizes are symbols.

    Each element of a tensor counts once: parts of it count for as much as it has at most.
    """
    from mlirc.passes import structure as st
    from mlirc.passes.build_plan import BYTES

    made = [v for op in calls for v in op.results]
    read: dict[Any, dict[Any, int]] = {}
    try:
        for v in (v for op in calls for v in op.operands if st.is_tensor(v)):
            place = layouts.of(v)
            if place.root not in made:
                sizes = tuple(n for n, step in zip(layouts.shapes.of(v), place.strides) if step != 0)
                read.setdefault(place.root, {})[place.offset, sizes, place.strides] = math.prod(map(_known, sizes))
        parts = [(v, sum(found.values())) for v, found in read.items()]
        total = 0
        for v, elements in [*parts, *((v, math.inf) for v in made if any(op not in calls for op in _readers(v)))]:
            total += min(elements, math.prod(map(_known, layouts.shapes.of(v)))) * BYTES[str(v.type.element_type)]
        return total
    except _Symbol:
        return None


class _Symbol(Exception):
    """A size that is not known."""


def _known(size: Any) -> int:
    if not isinstance(size, int):
        raise _Symbol
    return size


def _readers(value: Any) -> list[Any]:
    """The ops that read a value, or views of it."""
    from mlirc.passes import structure as st

    out = []
    for op in (st.operation(use.owner) for use in value.uses):
        out += [reader for v in op.results for reader in _readers(v)] if st.kind(op) == "view" else [op]
    return out


def _sorts(function: Any, sorting: set[str]) -> dict[str, list[str]]:
    """For each kernel the ones of those that are `sorting` whose results it reads, at first hand or through others of them."""
    from mlirc.passes import structure as st

    made: dict[Any, list[str]] = {}
    read: dict[str, list[str]] = {}
    for op in map(st.operation, function.regions[0].blocks[0].operations):
        if op.name == "func.call":
            name = _callee(op)
            read[name] = list(dict.fromkeys(n for v in op.operands if st.is_tensor(v) for n in made.get(st.root(v), [])))
            if name in sorting:
                made.update((v, [name, *read[name]]) for v in op.results)
    return read


def _run_once(function: Any, weights: set[int]) -> set[str]:
    """The kernels that read weights alone, or what others such have made of them."""
    from mlirc.passes import structure as st

    block = function.regions[0].blocks[0]
    constant = {a for i, a in enumerate(a for a in block.arguments if st.is_tensor(a)) if i in weights}
    names = set()
    for op in map(st.operation, block.operations):
        if op.name == "func.call" and op.operands and all(st.root(v) in constant for v in op.operands if st.is_tensor(v)):
            constant.update(op.results)
            names.add(_callee(op))
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
