"""Kernels that run once, on weights, take their sizes as arguments, and those that differ in nothing else become one.

    %1 = call @k01_pack(%w1)    tensor<64x256xbf16>         %c = cast %w1 : tensor<?x?xbf16>
    %2 = call @k02_pack(%w2)    tensor<512x2048xbf16>  ->   %r = call @k01_pack(%c, 64, 256, ...)
                                                            %1 = cast %r : tensor<8x32x32x2xbf16>

A network of convolutions has dozens of weights of different sizes, and compiled a kernel for each to pack it, to copy it in another order,
or to make factors of a batch norm. With sizes as arguments these are as fast (packing of 1024 x 512 to 4096 x 1024 bf16 in 71 and 711
instead of 65 and 716 us), and 52 of MobileNetV3's 122 kernels are gone. Dims below `LEAST`, such as the taps of a window, and those
inside of panels stay as they are, as loops over them are unrolled.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..dialects import builders
from ..dialects.mlir import func, ir, tensor
from . import structure as st
from .layouts import pitch_of, row_major, set_pitches
from .outline import Kernel, called, fuse_locations, kernel_number, texts
from .overwrite import OVERWRITES
from .weights import weights_of

PASS_NAME = "mlirc-generalize"

LEAST = 8
"""Elements of a dim whose size becomes an argument."""

Dim = tuple[Hashable, int]
"""Of a value, or a loop of the op of this number."""


def generalize(function: ir.Operation, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Rewrite the calls of `kernels` in an outlined graph; returns those that are called then."""
    calls: dict[int, list[ir.Operation]] = {}
    for op in _once(function):
        calls.setdefault(kernel_number(op), []).append(op)
    alike: dict[str, dict[int, General]] = {}
    for number in calls:
        if (general := _general(kernels[number])) is not None:
            alike.setdefault(general.text, {})[number] = general
    kernels = list(kernels)
    for members in alike.values():
        if len(members) > 1:
            _share(function, members, calls, kernels)
    return called(function, kernels)


def _once(function: ir.Operation) -> list[ir.Operation]:
    """The calls of kernels that read nothing but weights, and what other such have made of them."""
    constant, out = weights_of(function), []
    for op in map(st.operation, function.regions[0].blocks[0].operations):
        if op.name != "func.call" or "mlirc.kernel" not in op.attributes or not op.operands:
            continue
        if not any(w in op.attributes for w in ("mlirc.write", "mlirc.in_place", OVERWRITES)) and all(st.root(v) in constant for v in op.operands):
            constant.update(op.results)
            out.append(op)
    return out


def _share(function: ir.Operation, members: dict[int, General], calls: dict[int, list[ir.Operation]], kernels: list[Kernel]) -> None:
    """Have the calls of these kernels call one, which takes the place of the first of them."""
    number, general = next(iter(members.items()))
    name = kernels[number].name
    for other in members.values():
        fuse_locations(general.module.operation, other.module.operation)
    located = general.module.operation.get_asm(enable_debug_info=True)
    kernels[number] = Kernel(name, general.text, located, [o for n in members for o in kernels[n].origins])
    kind = general.type
    for f in map(st.operation, st.operation(function.parent).regions[0].blocks[0].operations):
        if f.name == "func.func" and ir.StringAttr(f.attributes["sym_name"]).value == name:
            f.attributes["function_type"] = ir.TypeAttr.get(kind)
    for op, sizes in [(op, general.sizes) for n, general in members.items() for op in calls[n]]:
        with ir.InsertionPoint(op), op.location:
            operands = [tensor.CastOp(t, v).result for t, v in zip(kind.inputs, op.operands)]
            call = st.operation(func.CallOp(kind.results, name, [*operands, *map(builders.index, sizes)]))
            call.attributes["mlirc.kernel"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)
            call.attributes["mlirc.sizes"] = op.attributes["mlirc.sizes"]
            set_pitches(call, [pitch_of(r) for r in op.results])
            for old, new in zip(op.results, call.results):
                old.replace_all_uses_with(tensor.CastOp(old.type, new).result)
        op.erase()


@dataclass
class General:
    """A kernel whose sizes and strides are arguments, and those of the kernel that it was."""

    text: str
    module: ir.Module
    type: ir.FunctionType
    sizes: list[int]


def _general(kernel: Kernel) -> General | None:
    """None for kernels of other ops than copies and elementwise ones of known sizes, perhaps with padding."""
    module = ir.Module.parse(kernel.located or kernel.text)
    (function,) = map(st.operation, module.body.operations)
    block = function.regions[0].blocks[0]
    ops = [st.operation(o) for o in block.operations]
    if not all(map(st.is_tensor, block.arguments)) or any(min(st.shape(v), default=1) <= 0 for op in ops for v in op.results if st.is_tensor(v)):
        return None
    dims = _Dims(ops)
    if not dims.plain or not dims.symbols:
        return None
    kind, sizes = _Rewriting(function, ops, dims).run()
    return General(module.operation.get_asm(), module, kind, sizes)


class _Dims:
    """Which dims of a kernel's values are one, and which of them are to be symbols."""

    def __init__(self, ops: Sequence[ir.Operation]) -> None:
        self._parents: dict[Dim, Dim] = {}
        self._inside: set[Dim] = set()
        self._panels: set[Dim] = set()
        """What is cut into panels, and the panels, however few."""
        self.plain = all(self._read(n, op) for n, op in enumerate(ops[:-1]))
        values = {v for op in ops for v in (*op.operands, *op.results) if st.is_tensor(v)}
        panels, inside = (set(map(self._find, some)) for some in (self._panels, self._inside))
        every = {(self._find((v, k)), n) for v in values for k, n in enumerate(st.shape(v))}
        self.symbols = {d for d, n in every if n >= LEAST or d in panels} - inside

    def symbol(self, value: ir.Value, k: int) -> Dim | None:
        """What stands for the size of dim `k`; None if that is a number."""
        root = self._find((value, k))
        return root if root in self.symbols else None

    def _find(self, d: Dim) -> Dim:
        while self._parents.setdefault(d, d) != d:
            d = self._parents[d]
        return d

    def _tie(self, a: Dim, b: Dim) -> None:
        self._parents[self._find(a)] = self._find(b)

    def _read(self, n: int, op: ir.Operation) -> bool:
        """Whether this is an op that is known here."""
        match op.name:
            case "tensor.empty" | "arith.constant":
                return True
            case "tensor.pad":
                for k, (low, high) in enumerate(zip(*st.pads(op))):
                    if low != 0 or not isinstance(high, int):
                        return False
                    if high == 0:
                        self._tie((op.operands[0], k), (op.results[0], k))
                return {o.name for o in st.body_ops(op)} <= {"arith.constant", "tensor.yield"}
            case "linalg.generic" if st.kind(op) == "elementwise" and not st.uses_index(op) and not any(map(st.is_tensor, st.captured(op))):
                inits = list(op.operands)[len(op.operands) - len(op.results) :]
                for init, result in zip(inits, op.results):
                    for k in range(len(st.shape(result))):
                        self._tie((init, k), (result, k))
                return all(self._index(n, v, k, e) for v, m in zip(op.operands, st.maps(op)) for k, e in enumerate(m.results))
        return False

    def _index(self, n: int, value: ir.Value, k: int, e: ir.AffineExpr) -> bool:
        """Tie a dim to the loop that walks over it: `d`, or `d * 32 + i` for the panels of packed operands."""
        if isinstance(e, ir.AffineDimExpr):
            self._tie((value, k), (n, e.position))
            return True
        if isinstance(e, ir.AffineAddExpr) and isinstance(e.lhs, ir.AffineMulExpr) and isinstance(e.rhs, ir.AffineDimExpr):
            if not isinstance(e.lhs.lhs, ir.AffineDimExpr) or not isinstance(e.lhs.rhs, ir.AffineConstantExpr):
                return False
            self._inside.add((n, e.rhs.position))
            self._panels |= {(value, k), (n, e.lhs.lhs.position)}
            return True
        return isinstance(e, ir.AffineConstantExpr) and st.shape(value)[k] == 1


@dataclass
class _Rewriting:
    function: ir.Operation
    ops: list[ir.Operation]
    dims: _Dims
    names: dict[Hashable, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def run(self) -> tuple[ir.FunctionType, list[int]]:
        """The function's type, and the sizes that are arguments now."""
        function, block = self.function, self.function.regions[0].blocks[0]
        tensors, results = list(block.arguments), list(self.ops[-1].operands)
        given = list(ir.ArrayAttr(function.attributes["arg_attrs"])) if "arg_attrs" in function.attributes else [{}] * len(tensors)
        attributes = []
        for v, a in zip(tensors, given):
            strides = [int(ir.StringAttr(s).value) for s in a["mlirc.strides"]] if "mlirc.strides" in a else list(row_major(st.shape(v)))
            attributes.append({"mlirc.sizes": texts(self._sizes(v)), "mlirc.strides": texts(self._strides(v, strides))})
        stored = [
            texts(self._strides(v, [int(ir.StringAttr(s).value) for s in steps]))
            for v, steps in zip(results, ir.ArrayAttr(function.attributes["mlirc.result_strides"]))
        ]
        kinds = {v: self._type(v) for v in (*tensors, *results)}
        for op in self.ops:  # names first: their order must not depend on that of a rewriting
            for v in op.results:
                self._sizes(v)
            if op.name == "tensor.pad":
                for k, high in enumerate(st.pads(op)[1]):
                    self._padding(op, k, high)  # type: ignore[arg-type]
        with function.context, function.location:
            index = ir.IndexType.get()
            self.values = {name: block.add_argument(index, function.location) for name in self.names.values()}
            named = [{"mlirc.name": ir.StringAttr.get(name)} for name in self.names.values()]
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in (*attributes, *named)])
            function.attributes["mlirc.result_strides"] = ir.ArrayAttr.get(stored)
            kind = ir.FunctionType.get([*(kinds[v] for v in tensors), *[index] * len(named)], [kinds[v] for v in results])
            function.attributes["function_type"] = ir.TypeAttr.get(kind)
            for v in tensors:
                v.set_type(kinds[v])
            for op in self.ops:
                self._rewrite(op)
        return kind, self.sizes

    def _name(self, what: Hashable, size: int) -> str:
        if what not in self.names:
            self.names[what] = f"n{len(self.names)}"
            self.sizes.append(size)
        return self.names[what]

    def _sizes(self, value: ir.Value) -> list[int | str]:
        """Numbers, and names of arguments."""
        symbols = [self.dims.symbol(value, k) for k in range(len(st.shape(value)))] if st.is_tensor(value) else []
        return [n if s is None else self._name(s, n) for n, s in zip(st.shape(value), symbols)] if symbols else []

    def _strides(self, value: ir.Value, strides: list[int]) -> list[int | str]:
        """A stride over a dim whose size is an argument is an argument, too."""
        symbols = [s for k, s in enumerate(strides) if self.dims.symbol(value, k) is not None and st.shape(value)[k] > 1]
        return [self._name((value, "stride", k), s) if any(inner < s for inner in symbols) else s for k, s in enumerate(strides)]

    def _padding(self, op: ir.Operation, k: int, high: int) -> int | str:
        return self._name((op.results[0], "high", k), high) if high and self.dims.symbol(op.results[0], k) is not None else high

    def _type(self, value: ir.Value) -> ir.Type:
        sizes = [n if self.dims.symbol(value, k) is None else builders.DYNAMIC for k, n in enumerate(st.shape(value))]
        return ir.RankedTensorType.get(sizes, builders.element_type(value), loc=ir.Location.unknown(self.function.context))

    def _rewrite(self, op: ir.Operation) -> None:
        if op.name == "linalg.generic":
            for v in op.results:
                v.set_type(self._type(v))
        if op.name not in ("tensor.empty", "tensor.pad"):
            return
        result = op.results[0]
        sizes = self._sizes(result)
        with ir.InsertionPoint(op), op.location:
            if op.name == "tensor.empty":
                new = builders.empty(self._values(sizes), builders.element_type(result))
            else:
                low, high = st.pads(op)
                above = self._values([self._padding(op, k, n) for k, n in enumerate(high)])  # type: ignore[arg-type]
                pad = tensor.PadOp(
                    self._type(result), op.operands[0], [], builders.dynamic(above), builders.static(low), builders.static(above)
                )
                op.regions[0].blocks[0].append_to(pad.regions[0])
                pad.operation.attributes["mlirc.sizes"] = texts(sizes)
                new = pad.result
        result.replace_all_uses_with(new)
        op.erase()

    def _values(self, sizes: Sequence[int | str]) -> list[builders.Size]:
        return [self.values[s] if isinstance(s, str) else s for s in sizes]
