"""Move every group of fused ops into a function of its own; identical ones become one kernel.

    %4 = contraction %x, %w {mlirc.group = 4}
    %5 = generic %4, %bias {mlirc.group = 4}        ->        %5 = call @k00_addmm_gelu(%x, %w, %bias)

A kernel is a module with one function, free of everything that says where it came from: equal texts are equal kernels.
Its arguments are the tensors that it reads, then the sizes and strides that are not constants as `index` values (named
by `mlirc.name`; `mlirc.sizes`, `mlirc.strides` and `mlirc.result_strides` refer to these names). `mlirc.returned` has the numbers of
a product's large results that are returned, and that nothing in the graph reads: their memory is new in every call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..dialects import own
from ..dialects.mlir import func, ir
from ..dialects.sizes import Extent
from . import structure as st
from .fuse import with_views
from .layouts import PITCH, Layouts, pitch_of, set_pitches
from .overwrite import OVERWRITES, overwritten
from .strategy.stream import matters_if_returned

PASS_NAME = "mlirc-outline"
SYMBOL = "kernel"
_OF_THE_GRAPH = ("mlirc.group", "mlirc.unfused", "mlirc.write", OVERWRITES, "mlirc.apart", "mlirc.whole", "mlirc.stored", "mlirc.in_order", PITCH)
"""Attributes that say nothing about what a kernel does."""
RETURNED = "mlirc.returned"
"""Of a kernel of a product: the numbers of its large results that nothing in the graph reads."""


@dataclass
class Kernel:
    """One distinct kernel: its module text with locations (for dumps) and without (for hashing and compiling)."""

    name: str
    text: str
    located: str = ""
    origins: list[str] = field(default_factory=list)


def outline(function: ir.Operation, writes: Sequence[int] = ()) -> list[Kernel]:
    """Replace the groups of `function` by calls; returns the distinct kernels.

    Every call has the attribute `mlirc.kernel` (the index of its kernel) and keeps the fused location of its ops.
    """
    return _Outline(function, writes).run()


class _Outline:
    def __init__(self, function: ir.Operation, writes: Sequence[int]) -> None:
        self.function = function
        self.block = function.regions[0].blocks[0]
        self.layouts = Layouts(function)
        self.kernels: list[Kernel] = []
        self.bodies: list[_Body] = []
        self.by_text: dict[str, int] = {}
        self.replaced: list[ir.Operation] = []
        self.result_strides = self._written(writes)

    def _written(self, writes: Sequence[int]) -> dict[int, ir.Value]:
        """Argument values by the number that `mlirc.write` says."""
        tensors = [a for a in self.block.arguments if st.is_tensor(a)]
        return {w: tensors[w] for w in writes}

    def run(self) -> list[Kernel]:
        groups: dict[int, list[ir.Operation]] = {}
        checks: dict[int, int] = {}  # group -> where its first op is that may fail
        writes: dict[int, int] = {}  # group -> where its op is that writes to an input in place
        for at, op in enumerate([st.operation(o) for o in self.block.operations]):
            if "mlirc.group" in op.attributes:
                number = ir.IntegerAttr(op.attributes["mlirc.group"]).value
                groups.setdefault(number, []).append(op)
                if st.can_fail(op):
                    checks.setdefault(number, at)
                if own.CHECK_FIRST in op.attributes:
                    writes[number] = at
        calls = {number: self._replace(ops) for number, ops in groups.items()}
        # Not sooner: a new op may get the address of an erased one, and with it what is remembered about it.
        for o in sorted(self.replaced, key={st.operation(o): i for i, o in enumerate(self.block.operations)}.__getitem__, reverse=True):
            if not any(True for r in o.results for _ in r.uses):
                o.erase()
        first = {calls[w]: [calls[c] for c, at in checks.items() if c != w and at < place] for w, place in writes.items()}
        self._sort(first | self._overwriting({calls[c] for c in checks}))
        for kernel, body in zip(self.kernels, self.bodies):
            kernel.located = body.located()
        return self.kernels

    def _replace(self, ops: list[ir.Operation]) -> ir.Operation:
        """The call of the kernel that these ops become."""
        with st.unchanging():
            members, stored = with_views(ops)
            members.sort(key=functools.cmp_to_key(lambda a, b: -1 if a != b and a.is_before_in_block(b) else int(a != b)))
            body = _Body(self, members, stored)
        index = self._share(body, ops)
        with ir.InsertionPoint(ops[-1]), ir.Location.fused([o.location for o in ops]):
            self.layouts.sizes.forget()
            sizes = [self.layouts.sizes.value(e) for e in body.indices]
            call = func.CallOp([v.type for v in stored], self.kernels[index].name, [*body.tensors, *sizes])
        op = st.operation(call)
        op.attributes["mlirc.kernel"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), index)
        op.attributes["mlirc.sizes"] = ir.ArrayAttr.get(
            [ir.ArrayAttr.get([ir.StringAttr.get(str(s)) for s in self.layouts.shapes.of(v)]) for v in stored]
        )
        for o in ops:
            if st.kind(o) == "scatter":
                where = body.tensors.index(o.operands[0])
                op.attributes["mlirc.in_place"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), where)
        writes = [o.attributes["mlirc.write"] for o in ops if "mlirc.write" in o.attributes]
        if writes:
            op.attributes["mlirc.write"] = writes[0]
        if body.overwrites:
            op.attributes[OVERWRITES] = ir.DenseI64ArrayAttr.get(body.overwrites)
        set_pitches(op, [pitch_of(v) for v in stored])
        for old, new in zip(stored, op.results):
            old.replace_all_uses_with(new)
        self.replaced += members
        return op

    def _share(self, body: "_Body", ops: list[ir.Operation]) -> int:
        text = body.text()
        names = [_origin(o) for o in ops]
        if text not in self.by_text:
            self.by_text[text] = len(self.kernels)
            name = f"k{len(self.kernels):02d}_{_describe(names, _movement(ops))}"
            self.kernels.append(Kernel(name, text))
            self.bodies.append(body)
            with ir.InsertionPoint(st.operation(self.function.parent).regions[0].blocks[0]), ir.Location.unknown():
                func.FuncOp(name, body.type, visibility="private")
        else:
            self.bodies[self.by_text[text]].add_origin(body)
        index = self.by_text[text]
        self.kernels[index].origins += [n for n in names if n]
        return index

    def _overwriting(self, checking: set[ir.Operation]) -> dict[ir.Operation, list[ir.Operation]]:
        """The calls that overwrite arguments, and those that come before: what reads these, and what may fail."""
        calls = [op for op in map(st.operation, self.block.operations) if st.kind(op) == "call"]
        tensors = [a for a in self.block.arguments if st.is_tensor(a)]
        out = {}
        for op in [c for c in calls if OVERWRITES in c.attributes]:
            lost = {tensors[n] for n in st.integers(op.attributes[OVERWRITES]) if n >= 0}

            def comes_first(call: ir.Operation, lost: set[ir.Value] = lost) -> bool:
                reads = {self.layouts.of(v).root for v in call.operands if st.is_tensor(v)}
                return call in checking or "mlirc.kernel" not in call.attributes or bool(reads & lost)

            out[op] = [c for c in calls if c != op and comes_first(c)]
        return out

    def _sort(self, first: dict[ir.Operation, list[ir.Operation]]) -> None:
        """Put the block in an order in which values are defined before they are used.

        Writes to inputs come last. Those made in place, the keys of `first`, come after the calls there, which read the input as it was,
        or make checks: an input is as it was if one of these fails.
        """
        operations = [st.operation(o) for o in self.block.operations]
        last = operations[-1]
        earlier = st.ordered(operations)
        done: set[ir.Operation] = set()

        def needed(op: ir.Operation) -> Iterator[ir.Operation]:
            yield from (p for v in op.operands if (p := st.owner(v)) is not None)
            if op in earlier:
                yield earlier[op]
            yield from first.get(op, ())

        def place(op: ir.Operation) -> None:
            stack = [(op, needed(op))]
            while stack:
                current, rest = stack[-1]
                for producer in rest:
                    if producer not in done and producer not in [s for s, _ in stack]:
                        stack.append((producer, needed(producer)))
                        break
                else:
                    stack.pop()
                    if current not in done:
                        done.add(current)
                        current.move_before(last)

        for op in operations[:-1]:
            if "mlirc.write" not in op.attributes:
                place(op)
        for op in operations[:-1]:
            place(op)


def kernel_number(call: ir.Operation) -> int:
    """Of the kernel that it calls."""
    return ir.IntegerAttr(call.attributes["mlirc.kernel"]).value


def called(function: ir.Operation, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels that an outlined graph calls still, whose numbers the calls have then; the functions of the others go."""
    calls = [op for op in map(st.operation, function.regions[0].blocks[0].operations) if "mlirc.kernel" in op.attributes]
    used = sorted(set(map(kernel_number, calls)))
    places = {number: n for n, number in enumerate(used)}
    for op in calls:
        op.attributes["mlirc.kernel"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), places[kernel_number(op)])
    names = {k.name for k in kernels} - {kernels[n].name for n in used}
    for f in [st.operation(o) for o in st.operation(function.parent).regions[0].blocks[0].operations]:
        if f != function and f.name == "func.func" and ir.StringAttr(f.attributes["sym_name"]).value in names:
            f.erase()
    return [kernels[n] for n in used]


class _Body:
    """The function of one kernel, cloned from the graph."""

    def __init__(self, outer: _Outline, members: list[ir.Operation], stored: list[ir.Value]) -> None:
        self.layouts = outer.layouts
        self.siblings = st.siblings([op for op in members if st.kind(op) == "contraction"])
        self.names: dict[Extent, str] = {}
        self.indices: list[Extent] = []
        self.tensors = self._external(members)
        self.strides: list[list[str | int] | None] = []
        attributes = []
        for v in self.tensors:
            layout = self.layouts.of(v)
            sizes = self._describe(self.layouts.shapes.of(v))  # type: ignore[arg-type]
            attribute = {}
            if any(isinstance(s, str) for s in sizes) or min(st.shape(v), default=0) < 0:  # or a number that the type does not know
                attribute["mlirc.sizes"] = texts(sizes)
            if layout.offset != 0 or not self.layouts.dense(v) or any(isinstance(s, str) for s in sizes[1:]):
                attribute["mlirc.strides"] = texts(self._describe(layout.strides))
            attributes.append(attribute)
        result_strides = []
        for v in stored:
            write = st.owner(v).attributes  # type: ignore[union-attr]
            sizes = self.layouts.shapes.of(v)
            strides: Sequence[Extent] = self.layouts.of(v).strides
            if "mlirc.write" in write:
                strides = self.layouts.of(outer.result_strides[ir.IntegerAttr(write["mlirc.write"]).value]).strides
            result_strides.append(texts(self._describe(strides)))
        self.overwrites = overwritten(stored)
        product = any(st.kind(op) == "contraction" for op in members)
        returned = [n for n, v in enumerate(stored) if product and matters_if_returned(v) and _only_returned(v)]
        # Sizes that follow from no operand's: a kernel does no arithmetic on sizes, they become arguments.
        self.computed: dict[ir.Operation, ir.Attribute] = {}
        for op in members:
            for v in (*op.operands, *st.captured(op)):
                self._collect(v)
            if op.name in ("tensor.concat", "tensor.pad", "tensor.collapse_shape") and min(st.shape(op.results[0]), default=0) < 0:
                self.computed[op] = texts(self._describe(self.layouts.shapes.of(op.results[0])))  # type: ignore[arg-type]
        with ir.Location.unknown():
            self.module = ir.Module.create()
            index = ir.IndexType.get()
            kinds = [v.type for v in self.tensors] + [index] * len(self.indices)
            with ir.InsertionPoint(self.module.body):
                self.type = ir.FunctionType.get(kinds, [v.type for v in stored])
                f = func.FuncOp(SYMBOL, self.type)
                named = [{"mlirc.name": ir.StringAttr.get(self.names[e])} for e in self.indices]
                f.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in (*attributes, *named)])
                f.operation.attributes["mlirc.result_strides"] = ir.ArrayAttr.get(result_strides)
                if self.overwrites:
                    f.operation.attributes[OVERWRITES] = ir.UnitAttr.get()
                if returned:
                    f.operation.attributes[RETURNED] = ir.DenseI64ArrayAttr.get(returned)
                block = f.add_entry_block()
        self.map: dict[ir.Value, ir.Value] = dict(zip(self.tensors, block.arguments))
        self.index_arguments = dict(zip(self.indices, list(block.arguments)[len(self.tensors) :]))
        with ir.InsertionPoint(block):
            for op in members:
                self._clone(op)
            with ir.Location.unknown():
                func.ReturnOp([self.map[v] for v in stored])

    def _external(self, members: list[ir.Operation]) -> list[ir.Value]:
        made = {r for op in members for r in op.results}
        found: dict[ir.Value, None] = {}
        for op in members:
            for v in st.tensors_read(op):
                producer = st.owner(v)
                if v not in made and not (producer is not None and st.kind(producer) == "aux"):
                    found[v] = None
        return list(found)

    def _describe(self, sizes: Sequence[Extent]) -> list[str | int]:
        return [s if isinstance(s, int) else self._name(s) for s in sizes]

    def _name(self, expr: Extent) -> str:
        if expr not in self.names:
            self.names[expr] = f"n{len(self.indices)}"
            self.indices.append(expr)
        return self.names[expr]

    def _collect(self, value: ir.Value) -> None:
        """Name the index values that will be arguments."""
        producer = st.owner(value)
        if isinstance(value.type, ir.IndexType):
            if producer is None or producer.name != "arith.constant":
                if producer is None or st.operation(producer.parent).name == "func.func":
                    self._name(self.layouts.sizes.expr(value))
        elif producer is not None and st.kind(producer) == "aux" and producer.name != "arith.constant":
            for v in producer.operands:
                self._collect(v)

    def _value(self, value: ir.Value) -> ir.Value:
        if value not in self.map:
            producer = st.owner(value)
            if isinstance(value.type, ir.IndexType) and (producer is None or producer.name != "arith.constant"):
                self.map[value] = self.index_arguments[self.layouts.sizes.expr(value)]
            else:
                assert producer is not None, value
                self._clone(producer)
        return self.map[value]

    def _clone(self, op: ir.Operation) -> None:
        needed = [v for v in (*op.operands, *st.captured(op))]
        mapped = {v: self._value(v) for v in needed}
        new = st.operation(op.clone())
        for name in (*_OF_THE_GRAPH, *(() if self.siblings else ("mlirc.siblings",))):
            if name in new.attributes:
                del new.attributes[name]
        if "mlirc.siblings" in new.attributes:  # a number in the graph
            new.attributes["mlirc.siblings"] = ir.UnitAttr.get()
        if op in self.computed:
            new.attributes["mlirc.sizes"] = self.computed[op]
        _remap(new, mapped)
        for old, result in zip(op.results, new.results):
            self.map[old] = result

    def text(self) -> str:
        """Without locations."""
        return self.module.operation.get_asm(assume_verified=True)  # whoever parses it verifies it

    def located(self) -> str:
        """With the locations of all origins."""
        return self.module.operation.get_asm(enable_debug_info=True, assume_verified=True)

    def add_origin(self, other: "_Body") -> None:
        """Fuse the locations of a body that has the same text into this one's."""
        fuse_locations(self.module.operation, other.module.operation)


def _only_returned(value: ir.Value) -> bool:
    """Whether nothing looks at a tensor, or at views of it, but the end of the graph."""
    users = [st.in_function(use.owner) for use in value.uses]
    return all(op.name == "func.return" or st.kind(op) == "view" and _only_returned(op.results[0]) for op in users)


def fuse_locations(mine: ir.Operation, theirs: ir.Operation) -> None:
    """Give each op in `mine` the location of the same one in `theirs` besides its own."""
    for op, other in zip(_operations(mine), _operations(theirs)):
        if op.location != other.location:
            op.location = ir.Location.fused([op.location, other.location])


def _operations(op: ir.Operation) -> list[ir.Operation]:
    out: list[ir.Operation] = []
    op.walk(lambda o: out.append(st.operation(o)) or ir.WalkResult.ADVANCE)  # type: ignore[func-returns-value]
    return out


def _remap(op: ir.Operation, mapped: dict[ir.Value, ir.Value]) -> None:
    for i, v in enumerate(op.operands):
        if v in mapped:
            op.operands[i] = mapped[v]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                _remap(st.operation(inner), mapped)


def texts(values: Sequence[str | int]) -> ir.Attribute:
    """Sizes or strides as attributes have them."""
    return ir.ArrayAttr.get([ir.StringAttr.get(str(v)) for v in values])


def _origin(op: ir.Operation) -> str:
    """The FX node that an op comes from, by its location."""
    found = re.search(r'loc\("([\w.]+)"', str(op.location))
    return found.group(1) if found else ""


def _movement(ops: Sequence[ir.Operation]) -> list[str]:
    """`pack` or `pad` for a kernel that only brings the operand of another one into the form in which that one reads it."""
    if not all("mlirc.pack" in op.attributes or st.kind(op) in ("view", "pad", "aux") for op in ops):
        return []
    return ["pack" if any("mlirc.pack" in op.attributes for op in ops) else "pad" if any(st.kind(op) == "pad" for op in ops) else "copy"]


_WORDS = {
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
    "baddbmm": "matmul",
    "convolution": "conv",
    "clone": "copy",
    "native_layer_norm": "layer_norm",
    "max_pool2d_with_indices": "max_pool2d",
}


def _describe(nodes: Sequence[str], movement: Sequence[str]) -> str:
    """What a kernel does, by the FX nodes of its ops: `addmm_3, gelu_3` -> `linear_gelu`."""
    words = (re.sub(r"(_\d+|_default|_tensor)+$", "", n).lstrip("_") for n in nodes if n)
    words = (re.sub("^native_batch_norm_legit(_no_training|_functional)?", "batch_norm", w) for w in words)
    known = list(dict.fromkeys(_WORDS.get(w, w) for w in words))
    return re.sub(r"\W", "_", "_".join([*movement, *known[:4]])) or "copy"
