"""FX graph of ATen ops -> `func.func @main` of linalg on tensors.

Each node goes through its lowering in `frontend.ops`; a node that has none, or whose signature is not supported,
becomes a call of a private function `@aten_N`, which the runtime answers with the ATen op itself.

    %0 = aten.mm(%x, %w)                      linalg.generic {mlirc.kind = "contraction"} ...
    %1 = aten.sort(%0)              becomes   call @aten_0(%0) {mlirc.sizes = [["128", "64"], ...]}
    %2 = aten.exp(%1)                         linalg.generic ... math.exp

Arguments are tensors in *memory order*: dims sorted by falling stride, followed by a transpose to the logical order, so
that a channels-last input is a row-major NHWC tensor. Symbols of dynamic shapes are leading `index` arguments. Function
attributes say what Python needs (`ImportedGraph` holds them as data).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from ..dialects import builders
from ..dialects.mlir import func, ir
from ..errors import CompileError
from ..passes import structure as st
from . import ops as _ops  # noqa: F401  (registers the lowerings)
from . import philox, refusals
from .dtypes import STORABLE, SUPPORTED, mlir_type
from .extents import Extent, Guards, guards, normal, rounded, same
from .graph_builder import GraphBuilder, Scalar, T
from .graph_checks import check_inputs, check_nodes
from .imported import AtenCall, ImportedGraph, OutputSpec, Slot, Subgraph, TensorSpec, source_of
from .memory_order import dense, fills, inverse, memory_order, packed, tensor_spec
from .node_sizes import extents_of, is_ragged, symbolic
from .ops.strided import just_written
from .registry import COMPLEX_LOWERINGS, LeaveGraph, Unsupported, lowering_of
from .replay import aliases_of_inputs, replay_of
from .saved import follow_bases, relaid
from .shared_memory import distance, is_detached, shows, storage
from .subgraphs import CALLED, WRITERS, expand_subgraphs, offsets_within_bases


def import_graph(
    gm: torch.fx.GraphModule,
    allow_fallback: bool = True,
    force: Mapping[str, str] | None = None,
    direction: str = "inference",
    inputs: Sequence[Any] = (),
    saved: range = range(0),
    sizes_given: bool = False,
    static: Sequence[int] | None = None,
) -> ImportedGraph:
    """Import one AOTAutograd graph (`direction`: inference, forward or backward); an `ir.Context` must be current.

    `inputs`, fake tensors, say how the arguments of a backward graph lie, where that is not as in eager mode; outputs that are `saved` for
    one may lie in memory as they are made. `sizes_given`: whoever calls the program gives the value of every symbol in the sizes of arguments,
    also of those that are the size of no dim by themselves. `force` leaves nodes to ATen: name -> reason. Raises CompileError, with node and source line, where a lowering fails,
    and LeaveGraph, which is one, for what can neither be lowered nor left to ATen. `static` are the placeholders that are the same in every call,
    where that is known: what takes long to compute of others may be left to ATen.
    """
    expand_subgraphs(gm)
    known: dict[sympy.Expr, sympy.Symbol] = {}
    token = rounded.set(known)
    sizes = [s for n in gm.graph.nodes for s in symbolic(n.meta.get("val"))]
    guarded = guards.set(Guards(sizes[0] if sizes else None))
    try:
        graph = _Importer(gm, allow_fallback, force or {}, direction, relaid(gm, inputs) if direction == "backward" else {}, saved, sizes_given, static).run()
    finally:
        rounded.reset(token)
        guards.reset(guarded)
    graph.rounded = {s: e for e, s in known.items()}
    return graph


class _Importer:
    def __init__(
        self,
        gm: torch.fx.GraphModule,
        allow_fallback: bool,
        force: Mapping[str, str],
        direction: str,
        relaid: Mapping[torch.fx.Node, torch.Tensor],
        saved: range,
        sizes_given: bool,
        static: Sequence[int] | None,
    ) -> None:
        self.gm = gm
        self.sizes_given = sizes_given
        self.static = static
        self.relaid = relaid
        self.saved = saved
        self.direction = direction
        self.allow_fallback = allow_fallback
        self.force = force
        self.env: dict[torch.fx.Node, Any] = {}
        with ir.Location.unknown():
            self.graph = ImportedGraph(ir.Module.create())
        self.placeholders: dict[torch.fx.Node, int] = {}

    def run(self) -> ImportedGraph:
        nodes = list(self.gm.graph.nodes)
        places = [n for n in nodes if n.op == "placeholder"]
        check_inputs(places)
        check_nodes(nodes)
        places += self._constants(nodes)
        seeds = [n for n in nodes if n.target is philox.ops.seed.default]
        self.graph.seeds = len(seeds)
        places += seeds
        with ir.Location.unknown(), ir.InsertionPoint(self.graph.module.body):
            symbols = self._symbols(places)
            types, attributes, orders = [], [], []
            for n in places:
                spec, order, attribute = self._input(n)
                self.graph.inputs.append(spec)
                if isinstance(spec, TensorSpec):
                    sizes = [self._static(spec.shape[d]) for d in order]
                    types.append(ir.RankedTensorType.get(sizes, mlir_type(spec.dtype)))
                    attributes.append(attribute)
                orders.append(order)
            index = [ir.IndexType.get()] * len(symbols)
            names = [{"mlirc.symbol": ir.StringAttr.get(str(s))} for s in symbols]
            main = func.FuncOp("main", ([*index, *types], []))
            main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in (*names, *attributes)])
            block = main.add_entry_block()
            arguments = list(block.arguments)
            with ir.InsertionPoint(block):
                kept = None if self.static is None or not self.allow_fallback else {n for i, n in enumerate(places) if i in self.static}
                self.b = GraphBuilder(dict(zip(symbols, arguments)), kept)
                tensors = arguments[len(symbols) :]
                for i, (n, spec, order) in enumerate(zip(places, self.graph.inputs, orders)):
                    self.placeholders[n] = i
                    if isinstance(spec, TensorSpec):
                        memory = T(tensors.pop(0), tuple(spec.shape[d] for d in order), spec.dtype)
                        self.env[n] = self.b.permute(memory, inverse(order))
                    else:
                        self.env[n] = Scalar(spec) if isinstance(spec, sympy.Expr) else spec
                results = []
                for n in nodes:
                    if n.op == "output":
                        results = self._outputs(n)
                    elif n not in self.placeholders:
                        with self._location(n):
                            self.env[n] = self._node(n)
                func.ReturnOp(results)
            main.attributes["function_type"] = ir.TypeAttr.get(
                ir.FunctionType.get([*index, *types], [r.type for r in results])
            )
        self.graph.nodes = sum(n.op == "call_function" for n in nodes)
        return self.graph

    # Inputs and outputs

    def _symbols(self, places: Sequence[torch.fx.Node]) -> list[sympy.Symbol]:
        """All symbols of the graph. Raises LeaveGraph for one whose value the inputs do not give."""
        found: dict[sympy.Symbol, None] = {}
        ragged = {n for n in places if is_ragged(n)}
        for n in self.gm.graph.nodes:
            for e in extents_of(n) if n not in ragged else ():
                found.update(dict.fromkeys(sorted(e.free_symbols, key=str)))
        given = {e for n in places if n not in ragged for e in extents_of(n)} | set(rounded.get().values())
        if self.sizes_given:
            given |= {s for e in given for s in e.free_symbols}
        uneven = {e for n in ragged for e in extents_of(n)}
        for s in found:
            if s not in given:
                n = next(n for n in self.gm.graph.nodes if n not in ragged and any(s in e.free_symbols for e in extents_of(n)))
                what = "is that of the uneven dim of a nested tensor" if s in uneven else "depends on data"
                raise LeaveGraph(f"the size {s} {what}", node=n.format_node(), source=source_of(n))
        self.graph.symbols = list(found)
        return self.graph.symbols

    def _constants(self, nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
        """Tensors of the graph module itself, such as a list used as an index. Those of one element become numbers."""
        out = []
        for n in nodes:
            if n.op == "get_attr":
                value = getattr(self.gm, str(n.target), None)
                if isinstance(value, torch.fx.GraphModule) and all(u.target in CALLED for u in n.users):
                    continue
                if isinstance(value, torch.fx.GraphModule):
                    users = sorted({getattr(u.target, "__name__", str(u.target)) for u in n.users})
                    raise LeaveGraph(f"{', '.join(users)} calls a graph of its own", node=n.format_node(), source=source_of(n))
                if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.device.type != "cpu":
                    raise LeaveGraph(f"the graph holds a {type(value).__name__}", node=n.format_node(), source=source_of(n))
                n.meta.setdefault("val", value)
                if value.numel() != 1 or value.dtype not in SUPPORTED:
                    self.graph.constants.append(value)
                    out.append(n)
        return out

    def _input(self, n: torch.fx.Node) -> tuple[Any, list[int], dict[str, ir.Attribute]]:
        value = self.relaid.get(n, n.meta.get("val"))
        if is_ragged(n):
            return None, [], {}
        if isinstance(value, torch.SymInt):
            e = normal(value)
            return (sympy.Integer(e) if isinstance(e, int) else e), [], {}
        if isinstance(value, torch.SymFloat):
            return value.node.expr, [], {}
        if not isinstance(value, torch.Tensor):
            return value, [], {}
        if n.users and all(u.target is torch.ops.higher_order.with_effects and u.args[0] is n for u in n.users):
            return None, [], {}  # a token: AOTAutograd passes None for it
        spec = tensor_spec(value)
        order = memory_order(value)
        attribute = {}
        sizes = [spec.shape[d] for d in order]
        strides = [spec.strides[d] for d in order]
        if any(not isinstance(s, int) for s in sizes):
            attribute["mlirc.sizes"] = _texts(sizes)
        if not dense(sizes, strides):
            attribute["mlirc.strides"] = _texts(strides)
        return spec, order, attribute

    def _outputs(self, node: torch.fx.Node) -> list[ir.Value]:
        results = []
        values = list(node.args[0])  # type: ignore[arg-type]
        self.graph.returned = len(values)
        aliases = aliases_of_inputs(len(values)) if self.direction != "backward" else {}
        written = {list(self.placeholders)[i] for i in self._writes}
        bases = self._shared_memory(values, written - {values[i] for i in aliases})
        values += [b for b in dict.fromkeys(bases.values()) if b not in values]
        places = list(self.placeholders)
        for i, x in enumerate(values):
            if isinstance(x, torch.fx.Node) and i in aliases and (replay := replay_of(x, places[aliases[i]], aliases[i])):
                self.graph.outputs.append(OutputSpec("replay", replay=replay))
            elif not isinstance(x, torch.fx.Node):
                self.graph.outputs.append(OutputSpec("none" if x is None else "number", number=x))
            elif x in self.placeholders and x not in self.relaid and (x not in written or i in aliases):
                self.graph.outputs.append(OutputSpec("input", input=self.placeholders[x]))
            elif not isinstance(self.env[x], T):
                value = self.env[x]
                self.graph.outputs.append(OutputSpec("number", number=getattr(value, "expr", value)))
            elif x.target is torch.ops.aten.copy_.default:
                self.graph.outputs.append(OutputSpec("input", input=self.placeholders[x.args[0]]))  # type: ignore[index]
            else:
                meta = x.meta["val"]
                spec = tensor_spec(meta)
                if values.index(x) != i:
                    self.graph.outputs.append(OutputSpec("same", base=values.index(x)))
                    continue
                base = values.index(bases.get(x, x))
                if base != i:
                    offset, lazy = distance(meta, values[base].meta["val"]), (meta.is_conj(), meta.is_neg())
                    detached = is_detached(x, values[base])
                    self.graph.outputs.append(OutputSpec("view", tensor=spec, base=base, offset=offset, lazy=lazy, detached=detached))
                    continue
                value = self.b.copy(self.env[x]) if x in self.placeholders else self.env[x]
                made = spec if fills(meta, spec) else packed(meta, memory_order(meta))
                exact = made is spec or any(same(s, 0) for s in spec.shape)  # where nothing lies, any strides will do
                free = i in self.saved and made is spec and all(isinstance(s, int) for s in (*spec.shape, *spec.strides)) and 0 not in spec.strides
                order = tuple(memory_order(meta)) if free else None
                self.graph.outputs.append(OutputSpec("tensor", tensor=spec if exact else made, gaps=None if exact else spec.strides, order=order))
                results.append(self._to_memory(value, meta, made).value)
        follow_bases(self.graph.outputs, self.saved)
        for i, value in self._writes.items():
            self.graph.writes.append(i)
            results.append(value.value)
        return results

    def _shared_memory(self, values: Sequence[Any], written: Collection[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
        """Outputs that show the same memory or a part of one: output -> the node whose memory it is, as in eager mode.

        Not so the outputs that show a `written` placeholder: they are what it was before.
        """
        first: dict[int, torch.fx.Node] = {}
        for n in self.gm.graph.nodes:
            if n.op != "output" and (memory := storage(n.meta.get("val"))) is not None:
                first.setdefault(memory, n)
        groups: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for x in dict.fromkeys(v for v in values if isinstance(v, torch.fx.Node)):
            memory = storage(x.meta.get("val"))
            if memory is not None and isinstance(self.env.get(x), T) and x.target is not torch.ops.aten.copy_.default:
                groups.setdefault(first[memory], []).append(x)
        out = {}
        for base, members in groups.items():
            value = base.meta["val"]
            members = [x for x in members if x is base or shows(x.meta["val"], value)]
            if base in self.relaid:
                continue
            if base in self.placeholders:
                # Views of an input: AOTAutograd makes them again from where they lie, backward graphs expect their strides.
                out.update({x: base for x in members if x is not base and base not in written})
                continue
            if not isinstance(self.env.get(base), T):
                continue
            # A single part of a tensor with gaps is a tensor with gaps of its own.
            whole = fills(value, tensor_spec(value))
            if len(members) > 1 or whole and not all(fills(x.meta["val"], tensor_spec(x.meta["val"])) for x in members):
                out.update(dict.fromkeys(members, base))
        return out

    def _to_memory(self, value: T, meta: torch.Tensor, spec: TensorSpec) -> T:
        """The tensor in the order in which its dims lie in memory, broadcast dims (stride 0) cut to one."""
        repeated = [same(st, 0) and not same(s, 1) and not same(s, 0) for s, st in zip(spec.shape, spec.strides)]
        if any(repeated):
            sizes = [1 if r else s for s, r in zip(value.shape, repeated)]
            value = self.b.slice(value, [0] * value.rank, sizes, [1] * value.rank)
        return self.b.permute(value, memory_order(meta))

    # Nodes

    @property
    def _writes(self) -> dict[int, T]:
        return self.__dict__.setdefault("_written", {})

    def _node(self, n: torch.fx.Node) -> Any:
        if n.op == "get_attr":
            return self._attribute(n)
        numbers = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
        reads_data = isinstance(n.target, torch._ops.OpOverload) and n.target not in _SIZES
        if isinstance(n.meta.get("val"), numbers) and not reads_data:
            return self._number(n.meta["val"])
        if (written := just_written(n)) is not None:
            return self.env[written]
        args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), lambda a: _Boxed(self.env[a]))
        args, kwargs = _unbox(args), _unbox(kwargs)
        if n.target is operator.getitem:
            return args[0][args[1]]
        if n.target is torch.ops.aten.copy_.default and n.args[0] in self.placeholders:
            target: torch.fx.Node = n.args[0]  # type: ignore[assignment]
            spec = self.graph.inputs[self.placeholders[target]]
            assert isinstance(spec, TensorSpec)
            value = self.b.expand(self.b.convert(args[1], spec.dtype), spec.shape)
            self._writes[self.placeholders[target]] = self.b.permute(value, memory_order(self.relaid.get(target, target.meta["val"])))
            return value
        try:
            if n.name in self.force:
                raise Unsupported(self.force[n.name])
            complex_too = self._check_dtypes(n)
            refusals.check(n)
            lowering = COMPLEX_LOWERINGS[n.target] if complex_too else lowering_of(n.target)
            if lowering is None:
                raise Unsupported(f"no lowering for {n.target}")
            return lowering(self.b, n, *args, **kwargs)
        except Unsupported as e:
            return self._aten(n, args, kwargs, str(e))
        except LeaveGraph:
            raise
        except Exception as e:
            reason = e.reason if isinstance(e, CompileError) else f"{type(e).__name__}: {e}"
            raise CompileError(reason, node=n.format_node(), source=source_of(n), stage="import", origins=[n.name]) from e

    def _number(self, value: Any) -> Any:
        if isinstance(value, float):
            return value
        e = normal(value)
        return e if isinstance(e, int) else Scalar(e)

    def _attribute(self, n: torch.fx.Node) -> Any:
        """A constant tensor of the graph module: a number (`x[0] = 5`) is one in the IR too."""
        value = getattr(self.gm, str(n.target), None)
        if isinstance(value, torch.fx.GraphModule):
            return Subgraph(value)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.dtype in SUPPORTED:
            with unset_fake_temporarily():
                number = value.item()
            return self.b.full(tuple(value.shape), value.dtype, number)
        raise CompileError(f"graph attribute {n.target} was not lifted to an input", node=n.format_node(), stage="import")

    def _check_dtypes(self, n: torch.fx.Node) -> bool:
        """Whether there are complex numbers among those that kernels know; raises Unsupported for others."""
        values = [a.meta.get("val") for a in n.all_input_nodes] + [n.meta.get("val")]
        dtypes = {v.dtype for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)}
        known = SUPPORTED | {torch.complex64} if n.target in COMPLEX_LOWERINGS else SUPPORTED
        for dtype in dtypes - known:
            raise Unsupported(f"dtype {dtype}")
        return torch.complex64 in dtypes

    def _aten(self, n: torch.fx.Node, args: Any, kwargs: Any, reason: str) -> Any:
        if not self.allow_fallback:
            raise CompileError(f"would be left to ATen: {reason}", node=n.format_node(), source=source_of(n), stage="import")
        op = n.args[1] if n.target is torch.ops.higher_order.with_effects else n.target
        if not isinstance(op, torch._ops.OpOverload) and op not in CALLED:
            raise LeaveGraph(reason, node=n.format_node(), source=source_of(n), stage="import")
        if op.namespace == "quantized" or str(op).startswith("aten.quantize_"):
            raise LeaveGraph(f"{n.target} makes a quantised tensor", node=n.format_node(), source=source_of(n), stage="import")
        operands: list[T] = []

        def slot(x: Any) -> Any:
            if isinstance(x, T):
                operands.append(x)
                return Slot(len(operands) - 1)
            return x.expr if isinstance(x, Scalar) else x

        arguments = torch.utils._pytree.tree_map(slot, (list(args), dict(kwargs)), is_leaf=lambda x: isinstance(x, (T, Scalar)))
        if n.target in WRITERS:
            arguments[1].update(offsets_within_bases(n, arguments[1]))
        value = n.meta.get("val")
        single = not isinstance(value, (list, tuple))
        metas = [value] if single else list(value)
        for v in metas:
            if isinstance(v, torch.Tensor) and (v.dtype not in STORABLE or v.layout != torch.strided or v.device.type != "cpu"):
                raise LeaveGraph(f"{n.target} returns a tensor of {v.dtype}, {v.layout}, {v.device}", node=n.format_node())
        orders = [memory_order(v) if isinstance(v, torch.Tensor) else [] for v in metas]
        specs = [packed(v, order) if isinstance(v, torch.Tensor) else None for v, order in zip(metas, orders)]
        if any(s is None and v is not None for s, v in zip(specs, metas)):
            raise LeaveGraph(f"{n.target} returns a number that depends on data", node=n.format_node(), source=source_of(n))
        # What ATen returns is a row-major tensor in memory order, a copy if need be.
        types, sizes = [], []
        for spec, order in zip(specs, orders):
            if spec is not None:
                memory = [spec.shape[d] for d in order]
                types.append(ir.RankedTensorType.get([self._static(s) for s in memory], mlir_type(spec.dtype)))
                sizes.append(_texts(memory))
        name = f"aten_{len(self.graph.aten_calls)}"
        with ir.InsertionPoint(self.graph.module.body):
            kind = ir.FunctionType.get([x.value.type for x in operands], types)
            func.FuncOp(name, kind, visibility="private")
        call = func.CallOp(types, name, [x.value for x in operands])
        call.operation.attributes["mlirc.sizes"] = ir.ArrayAttr.get(sizes)
        if op.namespace not in ("aten", "prims", "mlirc") or torch.Tag.nondeterministic_seeded in op.tags:
            call.operation.attributes[st.ORDERED] = ir.UnitAttr.get()
        described = [TensorSpec(x.shape, (), x.dtype) for x in operands]
        source = source_of(n)
        strides = self._needed_strides(n, len(operands))
        self.graph.aten_calls.append(
            AtenCall(name, n.target, arguments, described, specs, single, reason, n.name, source, strides)
        )
        left = list(call.results)
        out: list[Any] = []
        for spec, order in zip(specs, orders):
            if spec is None:
                out.append(None)
                continue
            memory_sizes = tuple(spec.shape[d] for d in order)
            out.append(self.b.permute(T(left.pop(0), memory_sizes, spec.dtype), inverse(order)))
        return out[0] if single else out

    def _needed_strides(self, n: torch.fx.Node, count: int) -> list[tuple[Extent, ...] | None]:
        """For each tensor operand of a call its strides in the graph, if it is row-major there or the op goes by strides."""
        specs = []
        for x in torch.utils._pytree.tree_leaves((n.args, n.kwargs)):
            if isinstance(x, torch.fx.Node) and isinstance(self.env[x], (T, list)):
                specs += [tensor_spec(v) for v in torch.utils._pytree.tree_leaves(x.meta["val"]) if isinstance(v, torch.Tensor)]
        exact = n.target.namespace not in ("aten", "prims") or n.target in _BY_STRIDES  # type: ignore[union-attr]
        assert len(specs) == count, f"{n.target}: {len(specs)} tensors in the graph, {count} operands"
        return [s.strides if exact or dense(s.shape, s.strides) else None for s in specs]

    # Details

    def _static(self, size: Extent) -> int:
        return size if isinstance(size, int) else builders.DYNAMIC

    def _location(self, n: torch.fx.Node) -> ir.Location:
        found = source_of(n)
        if found:
            path, _, line = found.rpartition(":")
            return ir.Location.name(n.name, ir.Location.file(path, int(line), 0))
        return ir.Location.name(n.name)


_BY_STRIDES = (
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten.mkldnn_rnn_layer.default,
)
"""Ops of ATen's whose result depends on the strides of their operands. Those of others (custom ones) may all be such."""

_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default, torch.ops.aten.sym_stride.int)


class _Boxed:
    """map_arg looks into tuples and lists: keep values that are lists whole."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _unbox(x: Any) -> Any:
    if isinstance(x, _Boxed):
        return x.value
    if isinstance(x, (list, tuple)):
        return [_unbox(y) for y in x]
    if isinstance(x, dict):
        return {k: _unbox(v) for k, v in x.items()}
    return x


def _texts(values: Sequence[Extent]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.StringAttr.get(str(v)) for v in values])
