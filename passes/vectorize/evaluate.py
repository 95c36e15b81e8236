"""Evaluate tensor values at a point: the heart of fusion in the kernels.

`Evaluator.value(t, point)` gives element(s) of tensor t at an index tuple, as a scalar or a vector of lanes. Arguments are
loaded; an elementwise op is evaluated by cloning its body onto the values of its operands at the mapped point; views
transform the point; values that the kernel has in hand (reduction results, accumulators, buffers) are looked up first.
Nothing is stored in between, so a chain of ops is one pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from ...dialects import builders
from ...dialects.mlir import arith, ir, llvm, memref, scf, vector
from ...errors import CompileError
from ...runtime.abi import status_code
from .. import structure as st
from ..near_gathers import NEAR
from ..strategy.near import is_near
from . import strided
from .lanes import Arithmetic, Index, Number, Point
from .memory import Memory, Tile, one_lane

Lookup = Callable[[Point], ir.Value | None]


_P = arith.CmpIPredicate
_SWAPPED = {_P.slt: _P.sgt, _P.sle: _P.sge, _P.sgt: _P.slt, _P.sge: _P.sle}
_BELOW = {_P.slt: (False, False), _P.sle: (True, False), _P.sgt: (True, True), _P.sge: (False, True)}
"""Signed predicate -> (whether x = bound counts as below it, whether it is the others that are meant)."""


PLACES = 8
"""Numbers of 64 bits, as indices are, in the widest vector."""


def _registers(condition: ir.Value) -> int:
    """In how many parts a condition is looked at: as many as numbers of 64 bits that it compares take vectors.

    Putting their masks together would write the register k0, which x86's instruction for a mask of ones reads: each gather would wait for
    the check of the one before it (80,000 cold indices 0.37 instead of 0.16 ms on a Zen 4).
    """
    compare = st.owner(condition)
    kind = compare.operands[0].type.element_type if compare is not None and compare.name == "arith.cmpi" else None
    wide = isinstance(kind, ir.IndexType) or isinstance(kind, ir.IntegerType) and kind.width == 64
    return max(condition.type.shape[0] // PLACES, 1) if wide else 1


class Evaluator:
    """Builds values at the current insertion point. `mask` (a vector of i1, or None) guards the lanes past the end."""

    def __init__(self, lanes: int, status: ir.Value, shapes: st.Shapes) -> None:
        self.math = Arithmetic(lanes)
        self.lanes = lanes
        self.status = status
        self.shapes = shapes
        self.memory: dict[ir.Value, Memory] = {}
        self.known: dict[ir.Value, Lookup] = {}
        self.mask: ir.Value | None = None
        self.tile: Tile | None = None
        self._fetching = False
        self.in_front = False
        """Whether values are computed in front of the loops in which they are the same: nothing that is stored there is read again."""

    # Values

    def value(self, t: ir.Value, point: Point) -> ir.Value:
        """The element of tensor `t` at `point`: a scalar if the point is uniform in all lanes, else a vector."""
        key, build = ("value", t, point, self.mask), lambda: self._value(t, point)
        if not self.in_front or self._fetching or self.tile is not None or t in self.known:
            return self.math.once(key, build)
        made_of = [self.mask, *(v for i in point for v in (i.base, i.stride, i.vector))]
        return self.math.once_outside([v for v in made_of if isinstance(v, ir.Value)], key, build)

    def prefetch(self, t: ir.Value, points: Sequence[Point]) -> None:
        """Ask for the memory that `value` at these points will load along the lanes. What it loads for all of them (where a row is) is
        loaded for it, once."""
        self._fetching = True
        self.math.enter()
        for point in points:
            self.value(t, point)
        self.math.leave()
        self._fetching = False

    def _value(self, t: ir.Value, point: Point) -> ir.Value:
        if t in self.known:
            found = self.known[t](point)
            if found is not None:
                return found
        if t in self.memory:
            return self.load(self.memory[t], point)
        op = st.owner(t)
        if op is None:
            raise CompileError(f"no memory for {t.type}")
        match st.kind(op):
            case "elementwise":
                return self._elementwise(op, list(op.results).index(t), point)
            case "view":
                return self.value(op.operands[0], self._through(op, point))
            case "pad":
                return self._pad(op, point)
        if op.name == "linalg.fill":
            return self.scalar(op.operands[0])
        if op.name == "tensor.empty":
            return self.scalar(builders.constant(builders.element_type(t), 0))
        if op.name == "arith.constant":
            attribute = ir.DenseElementsAttr(op.attributes["value"])
            if attribute.is_splat:
                return arith.ConstantOp(builders.element_type(t), attribute.get_splat_value()).result
        raise CompileError(f"cannot evaluate {op.name} inside a kernel")

    def scalar(self, v: ir.Value) -> ir.Value:
        """A scalar defined outside of linalg regions: a kernel argument or a constant, made afresh here."""
        op = st.owner(v)
        if op is None:
            return self.known_scalars[v]
        return self.math.once(("constant", v), lambda: st.operation(op.clone()).results[0])

    known_scalars: dict[ir.Value, ir.Value]

    def number(self, v: int | ir.Value) -> Number:
        """A size or offset in the kernel's text: an int, a constant or an index argument."""
        if isinstance(v, int):
            return v
        op = st.owner(v)
        if op is not None and op.name == "arith.constant":
            return ir.IntegerAttr(op.attributes["value"]).value
        return self.scalar(v)

    def _elementwise(self, op: ir.Operation, position: int, point: Point) -> ir.Value:
        out = st.map_dims(st.maps(op)[len(op.operands) - len(op.results) + position])
        loops: list[Index] = [Index(0)] * len(st.iterators(op))
        for d, i in zip(out, point):
            if d is not None:
                loops[d] = i
        return self.body(op, loops)[position]

    def body(self, op: ir.Operation, loops: Sequence[Index], accumulators: Sequence[ir.Value] = ()) -> list[ir.Value]:
        """Evaluate a linalg.generic's body at a point of its loops; returns what it yields.

        `accumulators` stand for its init operands; without them these are evaluated too.
        """
        block = op.regions[0].blocks[0]
        env: dict[ir.Value, Any] = {}
        for argument, operand, m in zip(block.arguments, st.inputs(op), st.maps(op)):
            if any(True for _ in argument.uses):
                with op.location:
                    point = tuple(self.math.affine(e, loops) for e in m.results)
                    env[argument] = self.value(operand, point)
        n = len(st.inputs(op))
        for i, argument in enumerate(list(block.arguments)[n:]):
            if i < len(accumulators):
                env[argument] = accumulators[i]
            elif any(True for _ in argument.uses):  # a reduction over no dims at all
                point = tuple(self.math.affine(e, loops) for e in st.maps(op)[n + i].results)
                env[argument] = self.value(op.operands[n + i], point)
        return self.region(block, env, loops)

    def region(self, block: ir.Block, env: dict[ir.Value, Any], loops: Sequence[Index]) -> list[ir.Value]:
        """Clone the scalar ops of a block onto values of any shape; `env` maps block values to SSA values or `Index`."""
        for inner in block.operations:
            op = st.operation(inner)
            if op.name == "linalg.yield":
                return [self._get(env, v, materialise=True) for v in op.operands]
            if op.name == "linalg.index":
                env[op.results[0]] = loops[ir.IntegerAttr(op.attributes["dim"]).value]
            elif op.name == "tensor.extract":
                point = tuple(self._as_index(self._get(env, v)) for v in list(op.operands)[1:])
                env[op.results[0]] = self.value(op.operands[0], point)
            elif op.name == "cf.assert":
                self.check(self._get(env, op.operands[0], True), ir.StringAttr(op.attributes["msg"]).value)
            else:
                with op.location:
                    folded = self._index_op(op, env) or self._index_comparison(op, env)
                    env[op.results[0]] = folded if folded is not None else self._clone(op, env)
        raise CompileError("a region without linalg.yield")

    def _get(self, env: dict[ir.Value, Any], v: ir.Value, materialise: bool = False) -> Any:
        if v not in env:
            env[v] = Index(self.number(v)) if isinstance(v.type, ir.IndexType) else self.scalar(v)
        found = env[v]
        if materialise and isinstance(found, Index):
            return self.math.value(found.base) if found.uniform else self.math.lanes_of(found)
        return found

    def _as_index(self, v: Any) -> Index:
        if isinstance(v, Index):
            return v
        return Index(vector=v) if isinstance(v.type, ir.VectorType) else Index(v)

    def _index_op(self, op: ir.Operation, env: dict[ir.Value, Any]) -> Index | None:
        """Index arithmetic that stays linear in the lanes."""
        if len(op.results) != 1 or not isinstance(op.results[0].type, ir.IndexType) or not op.name.startswith("arith."):
            return None
        args = [self._get(env, v) for v in op.operands]
        if op.name == "arith.constant":
            return Index(ir.IntegerAttr(op.attributes["value"]).value)
        if op.name == "arith.index_cast":
            return None
        indices = [self._as_index(a) for a in args if isinstance(a, Index) or isinstance(a.type, ir.IndexType)]
        if len(indices) != len(args):
            return None
        if op.name == "arith.addi":
            return self.math.index_add(*indices)
        if op.name == "arith.subi" and all(i.vector is None for i in indices):
            return self.math.index_add(indices[0], self.math.index_scale(indices[1], -1))
        if op.name == "arith.muli" and any(i.uniform for i in indices):
            a, b = indices if indices[1].uniform else reversed(indices)
            return self.math.index_scale(a, b.base)
        return None

    def _index_comparison(self, op: ir.Operation, env: dict[ir.Value, Any]) -> ir.Value | None:
        """A signed comparison of the place along the lanes with a number."""
        if op.name != "arith.cmpi" or not isinstance(op.operands[0].type, ir.IndexType):
            return None
        a, b = (self._as_index(self._get(env, v)) for v in op.operands)
        predicate = arith.CmpIPredicate(ir.IntegerAttr(op.attributes["predicate"]).value)
        if b.stride == 1 and a.uniform:
            a, b, predicate = b, a, _SWAPPED.get(predicate)  # type: ignore[assignment]
        if a.stride != 1 or not b.uniform or predicate not in _BELOW:
            return None
        inclusive, negative = _BELOW[predicate]
        mask = self.math.lanes_below(a, self.math.add(b.base, int(inclusive)))
        return self.math.negate(mask) if negative else mask

    def _clone(self, op: ir.Operation, env: dict[ir.Value, Any]) -> ir.Value:
        """The op on whatever shapes its operands have; scalars are broadcast if any operand is a vector."""
        args = [self._get(env, v, materialise=True) for v in op.operands]
        wide = any(isinstance(a.type, ir.VectorType) for a in args)
        if wide:
            args = [self.math.splat(a) for a in args]
        kinds = [self.math.vector_type(r.type) if wide else r.type for r in op.results]
        if op.regions and len(op.regions):
            raise CompileError(f"cannot vectorize {op.name}: it has a region")
        attributes = {a if isinstance(a, str) else a.name: op.attributes[a if isinstance(a, str) else a.name] for a in op.attributes}

        def create() -> ir.Value:
            return ir.Operation.create(op.name, results=kinds, operands=args, attributes=attributes).results[0]

        # What is the same in all lanes (where a row is) is computed once for all vectors.
        return create() if wide else self.math.once(("scalar", op.results[0], *args), create)

    def check(self, ok: ir.Value, message: str) -> None:
        """Set the status word if a lane inside the bounds violates the condition; `message` begins with the error's name."""
        if self._fetching:  # it is checked when it is loaded
            return
        self.math.once(("check", ok, message, self.mask), lambda: self._check(ok, message))

    def _check(self, ok: ir.Value, message: str) -> None:
        i1 = ir.IntegerType.get_signless(1)
        conditions = [ok]
        if isinstance(ok.type, ir.VectorType):
            registers = _registers(ok)
            if self.mask is not None:
                true = builders.constant(ok.type, 1)
                ok = arith.ori(ok, arith.xori(self.mask, true))
            n = ok.type.shape[0] // registers
            part = ir.VectorType.get([n], i1)
            parts = [ok] if registers == 1 else [vector.extract_strided_slice(part, ok, [i * n], [n], [1]) for i in range(registers)]
            conditions = [vector.reduction(i1, vector.CombiningKind.AND, p) for p in parts]
        for condition in conditions:
            branch = scf.IfOp(arith.xori(condition, builders.constant(i1, 1)))
            with ir.InsertionPoint(branch.then_block):
                i64 = ir.IntegerType.get_signless(64)
                llvm.StoreOp(builders.constant(i64, status_code(message)), self.status, ordering=llvm.AtomicOrdering.monotonic, alignment=8)
                scf.YieldOp([])

    # Points

    def _through(self, op: ir.Operation, point: Point) -> Point:
        """The point of a view's source that the view's point is."""
        m = self.math
        match op.name:
            case "tensor.cast":
                return point
            case "linalg.transpose":
                out: list[Index] = [Index()] * len(point)
                for i, d in enumerate(st.integers(op.attributes["permutation"])):
                    out[d] = point[i]
                return tuple(out)
            case "tensor.extract_slice":
                offsets, steps = st.slice_parts(op)
                at = [Index(self.number(o)) for o in offsets]
                for i, d in zip(point, st.slice_dims(op)):
                    at[d] = m.index_add(m.index_scale(i, steps[d]), at[d])
                return tuple(at)
            case "tensor.expand_shape":
                sizes = [self.size(s) for s in self.shapes.of(op.results[0])]
                out = []
                for group in st.reassociation(op):
                    at = Index(0)
                    for d in group:
                        at = m.index_add(m.index_scale(at, sizes[d]), point[d]) if sizes[d] != 1 else at
                    out.append(at)
                return tuple(out)
        sizes = [self.size(s) for s in self.shapes.of(op.operands[0])]
        out = [Index()] * len(sizes)
        for n, group in enumerate(st.reassociation(op)):
            real = [d for d in group if sizes[d] != 1]
            rest = point[n]
            for d in reversed(real[1:]):
                rest, out[d] = m.index_divmod(rest, sizes[d])
            if real:
                out[real[0]] = rest
        return tuple(out)

    def size(self, s: Any) -> Number:
        """A size as `Shapes` gives it, as a number of this function."""
        if s is None:
            raise CompileError("a size inside a kernel is not known")
        return self.number(s)

    def _pad(self, op: ir.Operation, point: Point) -> ir.Value:
        """The source inside, the padding value outside; points outside are clamped so that loads stay in bounds."""
        m = self.math
        low, _ = st.pads(op)
        sizes = [self.size(s) for s in self.shapes.of(op.operands[0])]
        out = [self.size(s) for s in self.shapes.of(op.results[0])]
        inside: ir.Value | None = None
        inner: list[Index] = []
        lane_mask: ir.Value | None = None
        left: Number | None = None
        for i, lo, n, padded in zip(point, low, sizes, out):
            lo = self.number(lo)
            if lo == 0 and n == padded:
                inner.append(i)
                continue
            at = m.index_add(i, m.index_scale(Index(lo), -1))
            if i.inside:
                inner.append(at)
                continue
            if isinstance(at.base, int) and isinstance(n, int) and at.vector is None and at.stride in (0, 1):
                if 0 <= at.base and at.base + (m.lanes if at.stride else 1) <= n:
                    inner.append(at)
                    continue
                if at.base >= n or at.base + (m.lanes if at.stride else 1) <= 0:
                    return self._padding(op)
            ult = arith.CmpIPredicate.ult
            if at.uniform:
                ok = arith.cmpi(ult, m.value(at.base), m.value(n))
                at = Index(m.maximum(m.minimum(at.base, m.sub(n, 1)), 0))
                inside = ok if inside is None else arith.andi(*self.alike(inside, ok))
            else:
                if at.stride == 1:
                    ok = m.lanes_below(at, n)
                    left = m.sub(n, at.base)
                    ok = ok if lo == 0 else arith.andi(ok, m.negate(m.lanes_below(at, 0)))
                else:
                    ok = arith.cmpi(ult, m.lanes_of(at), m.splat(m.value(n)))
                lane_mask = ok if lane_mask is None else arith.andi(lane_mask, ok)
                if at.vector is not None:
                    zero = m.splat(m.value(0))
                    at = Index(vector=arith.select(ok, at.vector, zero))
            inner.append(at)
        pad = self._padding(op)
        if lane_mask is None and inside is None:
            return self.value(op.operands[0], tuple(inner))
        old = self.mask
        if lane_mask is not None:
            self.mask = lane_mask if old is None else arith.andi(old, lane_mask)
        with nullcontext() if self.tile is None or left is None else self.tile.ending(m, left):
            got = self.value(op.operands[0], tuple(inner))
        self.mask = old
        conditions = [c for c in (inside, lane_mask) if c is not None]
        for c in conditions:
            got, p = self.alike(got, self._as_pairs(pad, got))
            if isinstance(c.type, ir.VectorType):
                got, p = m.splat(got), m.splat(p)
            got = arith.select(c, got, p)
        return got

    def _as_pairs(self, v: ir.Value, like: ir.Value) -> ir.Value:
        """A scalar twice, as one integer, where pairs of 16-bit values are moved as such."""
        element = builders.element_type(like) if isinstance(like.type, ir.VectorType) else like.type
        if v.type == element:
            return v
        pair = vector.broadcast(ir.VectorType.get([2], v.type), v)
        return vector.extract(vector.bitcast(ir.VectorType.get([1], element), pair), [], [0])

    def alike(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Both as vectors if one is."""
        if isinstance(a.type, ir.VectorType) or isinstance(b.type, ir.VectorType):
            return self.math.splat(a), self.math.splat(b)
        return a, b

    def _padding(self, op: ir.Operation) -> ir.Value:
        block = op.regions[0].blocks[0]
        last = st.operation(block.operations[len(block.operations) - 1])
        return self.scalar(last.operands[0])

    # Memory

    def offset(self, place: Memory, point: Point) -> Index:
        at = Index(place.begin)
        for i, s in zip(point, place.strides):
            at = self.math.index_add(at, self.math.index_scale(i, s))
        return at

    def load(self, place: Memory, point: Point) -> ir.Value:
        at = self.offset(place, point)
        m = self.math
        if at.uniform:
            return self._from_storage(memref.load(place.buffer, [m.value(at.base)]), place)
        if self.tile is not None and place.buffer in self.tile.buffers:
            return self._from_storage(self.tile.load(m, place, at), place)
        kind = m.vector_type(place.storage)
        if at.vector is None and at.stride == 1:
            base = [m.value(at.base)]
            if self._fetching:
                memref.prefetch(place.buffer, base, False, 3, True)
                return self._from_storage(builders.constant(kind, 0), place)
            if self.mask is None:
                return self._from_storage(vector.load(kind, place.buffer, base), place)
            zero = builders.constant(kind, 0)
            return self._from_storage(vector.maskedload(kind, place.buffer, base, self.mask, zero), place)
        if at.vector is None and is_near(at.stride):
            return self._from_storage(strided.load(m, place, at.base, at.stride, self.mask), place)  # type: ignore[arg-type]
        mask = self.mask
        if mask is None:
            mask = m.once("all lanes", lambda: builders.constant(m.vector_type(ir.IntegerType.get_signless(1)), 1))
        zero = builders.constant(kind, 0)
        # What is the same in all lanes stays apart: what is left of the indices is that of other rows, too.
        uniform, rest = Index(place.begin), Index(0)
        for i, s in zip(point, place.strides):
            same, own = (i, Index(0)) if i.uniform else (Index(0), i) if i.vector is not None else (Index(i.base), Index(0, i.stride))
            uniform = m.index_add(uniform, m.index_scale(same, s))
            rest = m.index_add(rest, m.index_scale(own, s))
        got = vector.gather(kind, place.buffer, [m.value(uniform.base)], m.lanes_of(rest), mask, zero)
        if at.vector is not None:
            got.owner.operation.attributes[NEAR] = ir.UnitAttr.get()
        return self._from_storage(got, place)

    def fetch_for_store(self, place: Memory, point: Point) -> None:
        """Ask for the memory that `store` at this point will write."""
        at = self.offset(place, point)
        if at.vector is None:
            memref.prefetch(place.buffer, [self.math.value(at.base)], True, 3, True)

    def store(self, place: Memory, point: Point, v: ir.Value) -> None:
        at = self.offset(place, point)
        m = self.math
        v = self.to_storage(v, place)
        if at.uniform:
            if isinstance(v.type, ir.VectorType):
                v = vector.extract(v, [], [0])
            memref.store(v, place.buffer, [m.value(at.base)])
            return
        v = m.splat(v)
        if at.vector is None and at.stride == 1:
            if self.mask is None:
                vector.store(v, place.buffer, [m.value(at.base)], nontemporal=place.streams or None)
            elif one_lane(self.mask):
                memref.store(vector.extract(v, [], [0]), place.buffer, [m.value(at.base)])
            else:
                vector.maskedstore(place.buffer, [m.value(at.base)], self.mask, v)
            return
        mask = self.mask
        if mask is None:
            mask = m.once("all lanes", lambda: builders.constant(m.vector_type(ir.IntegerType.get_signless(1)), 1))
        if at.vector is None:
            base, lanes = m.value(at.base), m.lanes_of(Index(0, at.stride))
        else:
            base, lanes = m.value(0), at.vector
        vector.scatter(None, place.buffer, [base], lanes, mask, v)

    def _from_storage(self, v: ir.Value, place: Memory) -> ir.Value:
        if place.storage == place.element:
            return v
        return arith.cmpi(arith.CmpIPredicate.ne, v, builders.constant(v.type, 0))

    def to_storage(self, v: ir.Value, place: Memory) -> ir.Value:
        if place.storage == place.element:
            return v
        kind = place.storage
        if isinstance(v.type, ir.VectorType):
            kind = ir.VectorType.get(list(v.type.shape), kind)
        return arith.extui(kind, v)
