"""A kernel function as the vectorizers see it: ops, domain, memory of arguments and results, accesses."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.mlir import ir
from ...errors import CompileError
from .. import structure as st
from ..domain import Domain, Invalid, analyse
from ..outline import RETURNED
from ..overwrite import OVERWRITES
from ..padded import padded_results
from ..ragged import one_group
from .access import Accesses, collect, read_at
from .evaluate import Evaluator
from .lanes import Arithmetic, Index, Number, Point
from .memory import Memory


class KernelFunction:
    """Reads `func.func @kernel` of linalg on tensors. Sizes are ints, or index arguments of the function."""

    def __init__(self, function: ir.Operation) -> None:
        self.ragged = one_group(function)
        """How it is called for groups of rows, if it is a product of one of them."""
        self.function = function
        self.block = function.regions[0].blocks[0]
        self.arguments = list(self.block.arguments)
        self.ops = [st.operation(o) for o in self.block.operations][:-1]
        last = st.operation(self.block.operations[len(self.block.operations) - 1])
        self.stored = list(last.operands)
        """What lies in memory: the results, some of them inside of padding."""
        attributes = function.attributes
        self._attributes = list(ir.ArrayAttr(attributes["arg_attrs"])) if "arg_attrs" in attributes else [{}] * len(self.arguments)
        self.names = {
            ir.StringAttr(a["mlirc.name"]).value: v for v, a in zip(self.arguments, self._attributes) if "mlirc.name" in a
        }
        self.shapes = st.Shapes(self._leaf, self._number).arguments(function)
        self.strides: dict[ir.Value, list[object]] = {}
        for v, a in zip(self.arguments, self._attributes):
            if st.is_tensor(v):
                self.strides[v] = self._strides(a["mlirc.strides"]) if "mlirc.strides" in a else self._dense(v)
        self.stored_strides = [self._strides(a) for a in ir.ArrayAttr(attributes["mlirc.result_strides"])]
        inside = padded_results(self.ops, self.stored)
        self.padded = {n: inside[v] for n, v in enumerate(self.stored) if v in inside}
        """The results that are stored inside of padding, by their numbers."""
        self.ops = [op for op in self.ops if op not in {p.pad for p in inside.values()}]
        self.results = [inside[v].value if v in inside else v for v in self.stored]
        self.result_strides = [self._strides_inside(n) for n in range(len(self.stored))]
        try:
            self.domain: Domain = analyse(self.ops, self.results, self.shapes)
        except Invalid as e:
            raise CompileError(f"not a kernel: {e}") from e
        self.overwrites = OVERWRITES in attributes
        """Whether some of the results may lie in the memory of arguments, each element where that of the argument is."""
        self.returned = st.integers(attributes[RETURNED]) if RETURNED in attributes else []
        """The results of a product that nothing else in the graph reads, by their numbers: their memory is new in every call."""
        self._accesses: Accesses | None = None
        self.seen: tuple[int, int] | None = None
        """A class of which a part is walked in each call, and the size of the blocks that this consists of. Where it begins and ends, in blocks, are
        the last two slots."""

    @classmethod
    def of(cls, module: ir.Module) -> KernelFunction:
        """The function of a module. Raises CompileError where that is no kernel, which says how its results lie in memory."""
        functions = [op for op in map(st.operation, module.body.operations) if op.name == "func.func"]
        if len(functions) != 1 or "mlirc.result_strides" not in functions[0].attributes:
            raise CompileError("not a kernel: that is a module of one function, with an attribute mlirc.result_strides")
        return cls(functions[0])

    @property
    def accesses(self) -> Accesses:
        if self._accesses is None:
            stored = list(zip(self.results, self.result_strides))
            self._accesses = collect(self.domain, stored, self.strides)
        return self._accesses

    def access(self, value: ir.Value, classes: Sequence[int | None]) -> Accesses:
        """What it takes to read a value at the indices of these classes, one for each dim (None: a unit dim)."""
        return read_at(self.domain, self.strides, value, classes)

    @property
    def kinds(self) -> list[ir.Type]:
        """What the slots of the context hold: arguments, then results."""
        bounds = [] if self.seen is None else [ir.IndexType.get()] * 2
        return [*(v.type for v in (*self.arguments, *self.stored)), *bounds]

    def sizes_evaluator(self, lanes: int, slots: Sequence[ir.Value]) -> Evaluator:
        """One that knows the arguments which are no tensors: enough for sizes."""
        e = Evaluator(lanes, slots[0] if slots else None, self.shapes)  # type: ignore[arg-type]
        e.known_scalars = self._scalars(slots)
        return e

    def _scalars(self, slots: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
        return {v: slot for v, slot in zip(self.arguments, slots) if not st.is_tensor(v)}

    def bind(self, e: Evaluator, slots: Sequence[ir.Value], streamed: Sequence[int] = ()) -> list[Memory]:
        """Tell the evaluator where the arguments are; returns the memory of the results, of which some are stored past the caches."""
        e.known_scalars = self._scalars(slots)
        for v, slot in zip(self.arguments, slots):
            if st.is_tensor(v):
                e.memory[v] = Memory(slot, [e.number(s) for s in self.strides[v]], v.type.element_type)
        out = []
        for n, (v, strides, slot) in enumerate(zip(self.results, self.stored_strides, list(slots)[len(self.arguments) :])):
            out.append(Memory(slot, [e.number(s) for s in strides], v.type.element_type, self._begin(n), n in streamed))
        self._bounds = list(slots)[-2:]
        return out

    def walked(self, e: Evaluator, c: int, size: Number) -> tuple[Number, Number]:
        """From where to where a class of so many elements is walked."""
        if self.seen is None or self.seen[0] != c:
            return 0, size
        begin, end = (e.math.mul(n, self.seen[1]) for n in self._bounds)
        return begin, end if self.walks_in(c, self.seen[1]) else e.math.minimum(end, size)

    def walks_in(self, c: int, n: int) -> bool:
        """Whether what is walked of a class, if it is a part of it, is always a multiple of `n`."""
        size = self.domain.sizes[c]
        return self.seen is not None and self.seen[0] == c and self.seen[1] % n == 0 and isinstance(size, int) and size % n == 0

    def place(self, n: int, point: Point, m: Arithmetic) -> Point:
        """Where in memory the element at a point of the n-th result is: a place of what it is split in, if it is inside of padding."""
        if n not in self.padded:
            return point
        sizes, out = st.shape(self.padded[n].pad.operands[0]), []
        for group, i in zip(self.padded[n].groups, point):
            split, rest = [], [d for d in group if sizes[d] != 1]
            for d in reversed(rest[1:]):
                split.append(Index(m.mod(i.base, sizes[d])))
                i = Index(m.floordiv(i.base, sizes[d]))
            places = dict(zip(rest, [i, *split[::-1]]))
            out += [places.get(d, Index(0)) for d in group]
        return tuple(out)

    def _begin(self, n: int) -> int:
        """The first element of the n-th result in its memory."""
        if n not in self.padded:
            return 0
        return sum(low * step for low, step in zip(st.pads(self.padded[n].pad)[0], self.stored_strides[n]))  # type: ignore[operator]

    def _strides_inside(self, n: int) -> list[object]:
        """Of the dims of the n-th result; of one that is split, for the places that follow one another."""
        strides = self.stored_strides[n]
        if n not in self.padded:
            return strides
        sizes = st.shape(self.padded[n].pad.operands[0])
        return [strides[max(group, key=lambda d: (sizes[d] != 1, d))] for group in self.padded[n].groups]

    def _leaf(self, v: ir.Value) -> object:
        op = st.owner(v)
        if op is not None and op.name == "arith.constant":
            return ir.IntegerAttr(op.attributes["value"]).value
        return v

    def _number(self, text: str) -> object:
        return int(text) if text.lstrip("-").isdigit() else self.names[text]

    def _strides(self, attribute: ir.Attribute) -> list[object]:
        return [self._number(ir.StringAttr(s).value) for s in attribute]

    def _dense(self, v: ir.Value) -> list[object]:
        step: object = 1
        out: list[object] = []
        for s in reversed(self.shapes.of(v)):
            out.append(step)
            step = step * s if isinstance(step, int) and isinstance(s, int) else s if step == 1 else None
        return out[::-1]
