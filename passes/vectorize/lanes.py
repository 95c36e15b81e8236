"""Scalars, lane-linear indices and vectors: what a value is along the vector lanes of a loop.

An `Index` is `base + lane * stride`: uniform for stride 0. Where an index is neither, it is a vector of `index`. Loads
follow from that: stride 1 in memory is a vector load, 0 a scalar load, anything else a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ...dialects import builders
from ...dialects.mlir import arith, ir, vector

Number = Union[int, ir.Value]


@dataclass(frozen=True)
class Index:
    """`base + lane * stride`, or, if `vector` is set, one `index` per lane. `inside`: it is known to be none of padding."""

    base: Number = 0
    stride: Number = 0
    vector: ir.Value | None = None
    inside: bool = False

    @property
    def uniform(self) -> bool:
        return self.vector is None and self.stride == 0


Point = tuple[Index, ...]

PART = "part"
"""A scope that is no body of a loop."""


class Arithmetic:
    """Index arithmetic with folding and value numbering.

    Values are remembered per scope: what is built in a loop body is forgotten when the body ends. Sums keep their constant
    part last, `(i * 8 + k) + 24` instead of `(i + 3) * 8 + k`: then the neighbours of an address share its variable part, and
    the constant goes into the instruction.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._scopes: list[dict[Hashable, Any]] = [{}]
        self._loops: list[Any] = [None]
        """Of each scope, the loop whose body it is, if that is known to run, or `PART`; None where nothing may be moved out of it."""
        self._sums: dict[ir.Value, tuple[ir.Value, int]] = {}
        self._multiples: dict[Number, tuple[Number, int]] = {}

    def enter(self, loop: ir.Operation | None = None) -> None:
        """Begin a scope: the body of a loop, if one is given, that is known to run."""
        self._scopes.append({})
        self._loops.append(loop)

    def enter_part(self) -> None:
        """Begin a scope for a part of the code of the one around it, in front of which that may be as well."""
        self._scopes.append({})
        self._loops.append(PART)

    def leave(self) -> None:
        self._scopes.pop()
        self._loops.pop()

    def once(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """The value remembered under `key` in this scope or an outer one, built if there is none."""
        for scope in reversed(self._scopes):
            if key in scope:
                return scope[key]
        value = build()
        self._scopes[-1][key] = value
        return value

    def once_outside(self, made_of: Sequence[ir.Value], key: Hashable, build: Callable[[], Any]) -> Any:
        """As `once`, for what is computed from these values alone: in front of as many of the loops around it as have none of them."""
        front = None
        for at in range(len(self._scopes) - 1, 0, -1):
            loop = self._loops[at]
            if loop is PART:
                continue
            if loop is None or any(_inside(v, loop) for v in made_of):
                break
            front = at
        if front is None:
            return self.once(key, build)
        inner, loops = self._scopes[front:], self._loops[front:]
        del self._scopes[front:], self._loops[front:]
        with ir.InsertionPoint(loops[0]):
            value = self.once(key, build)
        self._scopes += inner
        self._loops += loops
        return value

    # Numbers

    def value(self, n: Number) -> ir.Value:
        return n if isinstance(n, ir.Value) else self.once(("index", n), lambda: builders.index(n))

    def _parts(self, n: Number) -> tuple[Number, int]:
        """A number as its variable part, 0 if there is none, and a constant to add to it."""
        return (0, n) if isinstance(n, int) else self._sums.get(n, (n, 0))

    def add(self, a: Number, b: Number) -> Number:
        (x, m), (y, n) = self._parts(a), self._parts(b)
        if isinstance(x, int) or isinstance(y, int):
            variable = y if isinstance(x, int) else x
        else:
            variable = self.once(("add", x, y), lambda: arith.addi(x, y))
        return self._plus(variable, m + n)

    def _plus(self, variable: Number, constant: int) -> Number:
        if isinstance(variable, int) or constant == 0:
            return variable if constant == 0 else constant

        def build() -> ir.Value:
            value = arith.addi(variable, self.value(constant))
            self._sums[value] = variable, constant
            return value

        return self.once(("add", variable, constant), build)

    def sub(self, a: Number, b: Number) -> Number:
        (x, m), (y, n) = self._parts(a), self._parts(b)
        if x == y:
            return m - n
        variable = x if isinstance(y, int) else self.once(("sub", x, y), lambda: arith.subi(self.value(x), y))
        return self._plus(variable, m - n)

    def mul(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if isinstance(a, int):
            a, b = b, a
        if isinstance(b, int):
            if b in (0, 1):
                return a if b else 0
            variable, constant = self._parts(a)
            if constant:
                return self._plus(self.mul(variable, b), constant * b)
            out = self.once(("mul", a, b), lambda: arith.muli(self.value(a), self.value(b)))
            self._multiples[out] = a, b
            return out
        return self.once(("mul", a, b), lambda: arith.muli(self.value(a), self.value(b)))

    def floordiv(self, a: Number, b: Number) -> Number:
        """For numbers that are not negative."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if b == 1:
            return a
        if isinstance(b, int) and (x := self._over(a, b)) is not None:
            return self.add(x[0], x[1] // b)
        return self.once(("div", a, b), lambda: arith.divui(self.value(a), self.value(b)))

    def _over(self, a: Number, b: int) -> tuple[Number, int] | None:
        """(q, r) where `a` is known to be `q * b + r`."""
        variable, constant = self._parts(a)
        factor, n = self._multiples.get(variable, (0, 1))
        return (self.mul(factor, n // b), constant) if b and n % b == 0 else None

    def mod(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        if b == 1:
            return 0
        if isinstance(b, int) and (x := self._over(a, b)) is not None:
            return x[1] % b
        return self.once(("mod", a, b), lambda: arith.remui(self.value(a), self.value(b)))

    def minimum(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.once(("min", a, b), lambda: arith.minsi(self.value(a), self.value(b)))

    def maximum(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.once(("max", a, b), lambda: arith.maxsi(self.value(a), self.value(b)))

    def at_most(self, a: Number, b: Number) -> bool | ir.Value:
        """Whether a <= b; a bool if that is known."""
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        return self.once(("at most", a, b), lambda: arith.cmpi(arith.CmpIPredicate.sle, self.value(a), self.value(b)))

    def chosen(self, condition: bool | ir.Value, a: Number, b: Number) -> Number:
        """`a` where the condition holds, else `b`."""
        if isinstance(condition, bool):
            return a if condition else b
        return self.once(("chosen", condition, a, b), lambda: arith.select(condition, self.value(a), self.value(b)))

    def ceildiv(self, a: Number, b: int) -> Number:
        return self.floordiv(self.add(a, b - 1), b)

    # Indices along lanes

    def vector_type(self, element: ir.Type) -> ir.VectorType:
        return ir.VectorType.get([self.lanes], element)

    def splat(self, scalar: ir.Value) -> ir.Value:
        if isinstance(scalar.type, ir.VectorType):
            return scalar
        return self.once(("splat", scalar), lambda: vector.broadcast(self.vector_type(scalar.type), scalar))

    def steps(self) -> ir.Value:
        """The lane numbers 0, 1, 2, ..."""
        return self.once("steps", lambda: vector.step(self.vector_type(ir.IndexType.get())))

    def lanes_of(self, i: Index) -> ir.Value:
        """An index as a vector of `index`."""
        if i.vector is not None:
            return i.vector

        def build() -> ir.Value:
            out = self.splat(self.value(i.base))
            if i.stride == 0:
                return out
            steps = self.steps()
            if i.stride != 1:
                steps = arith.muli(steps, self.splat(self.value(i.stride)))
            return arith.addi(out, steps)

        return self.once(("lanes", i), build)

    def lanes_below(self, i: Index, bound: Number) -> ir.Value:
        """A mask of the lanes where `i`, of stride one, is less than `bound`: cheaper than to compare vectors of `index`."""
        first = self.minimum(self.maximum(self.sub(bound, i.base), 0), self.lanes)
        i1 = ir.IntegerType.get_signless(1)
        if isinstance(first, int) and first in (0, self.lanes):
            return self.once(("below", first), lambda: builders.constant(self.vector_type(i1), int(first != 0)))
        return self.once(("below", first), lambda: vector.create_mask(self.vector_type(i1), [self.value(first)]))

    def negate(self, mask: ir.Value) -> ir.Value:
        return self.once(("not", mask), lambda: arith.xori(mask, builders.constant(mask.type, 1)))

    def index_add(self, a: Index, b: Index) -> Index:
        if a.vector is None and b.vector is None:
            return Index(self.add(a.base, b.base), self.add(a.stride, b.stride))
        x, y = self.lanes_of(a), self.lanes_of(b)
        return Index(vector=self.once(("vadd", x, y), lambda: arith.addi(x, y)))

    def index_scale(self, a: Index, factor: Number) -> Index:
        if a.vector is None:
            return Index(self.mul(a.base, factor), self.mul(a.stride, factor))
        f = self.splat(self.value(factor))
        return Index(vector=self.once(("vmul", a.vector, f), lambda: arith.muli(a.vector, f)))

    def index_divmod(self, a: Index, b: Number) -> tuple[Index, Index]:
        """Quotient and remainder of an index that is not negative."""
        if a.uniform:
            return Index(self.floordiv(a.base, b)), Index(self.mod(a.base, b))
        v, d = self.lanes_of(a), self.splat(self.value(b))
        quotient = self.once(("vdiv", v, d), lambda: arith.divui(v, d))
        rest = self.once(("vrem", v, d), lambda: arith.remui(v, d))
        return Index(vector=quotient), Index(vector=rest)

    def affine(self, e: ir.AffineExpr, dims: Sequence[Index]) -> Index:
        """An affine expression (of dims only) applied to indices."""
        if isinstance(e, ir.AffineDimExpr):
            return dims[e.position]
        if isinstance(e, ir.AffineConstantExpr):
            return Index(e.value)
        left, right = self.affine(e.lhs, dims), self.affine(e.rhs, dims)
        if isinstance(e, ir.AffineAddExpr):
            return self.index_add(left, right)
        if isinstance(e, ir.AffineMulExpr):
            if right.uniform:
                return self.index_scale(left, right.base)
            return self.index_scale(right, left.base)
        quotient, rest = self.index_divmod(left, right.base)
        if isinstance(e, ir.AffineFloorDivExpr):
            return quotient
        if isinstance(e, ir.AffineModExpr):
            return rest
        raise NotImplementedError(f"affine expression {e}")


def _inside(v: ir.Value, loop: ir.Operation) -> bool:
    """Whether a value is made in a loop."""
    owner = v.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    while (op := block.owner.operation) != loop:
        if op.parent is None or op.name == "func.func":
            return False
        block = op.block
    return True
