"""Tensor-level building blocks of the importer: each method adds a few linalg or tensor ops to the graph function.

A `T` is an SSA tensor with what the IR does not say: its torch dtype and its sizes as integers or sympy expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import sympy
import torch
import torch.fx

from ..dialects import builders
from ..dialects.mlir import arith, cf, ir, linalg, math, tensor
from ..errors import CompileError
from .dtypes import cast, compute_dtype, is_unsigned, mlir_type, scalar
from .extents import Extent, guards, normal, product, regroup, same
from .registry import Unsupported


@dataclass(frozen=True)
class T:
    """A tensor value: `value` has type tensor<shape x dtype>, logical order of dims."""

    value: ir.Value
    shape: tuple[Extent, ...]
    dtype: torch.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Scalar:
    """A number known only at run time: an `index` value and the expression that it stands for.

    A lowering that wants to know it now raises Unsupported.
    """

    expr: sympy.Expr

    def __float__(self) -> float:
        raise Unsupported("a number known only at run time")

    __int__ = __float__  # type: ignore[assignment]


Operand = T | Scalar | float | int | bool


class GraphBuilder:
    """Builds tensor ops at the current insertion point. `symbols` maps Dynamo's symbols to `index` arguments. `kept` are the placeholders
    that stay the same from call to call; None if all may, as far as is known."""

    def __init__(self, symbols: dict[sympy.Symbol, ir.Value], kept: Container[torch.fx.Node] | None = None) -> None:
        self._sizes: dict[sympy.Expr, ir.Value] = dict(symbols)
        self._kept = kept
        self.parts: dict[ir.Value, tuple[T, T]] = {}
        """Of complex numbers, as far as they are known apart (`ops.complex_numbers`)."""

    def keeps(self, node: torch.fx.Node) -> bool:
        """Whether what a kernel makes of a node's value is kept from call to call: it depends on nothing that changes."""
        if self._kept is None:
            return True
        left, seen = [node], {node}
        while left:
            n = left.pop()
            if n.op == "placeholder" and n not in self._kept:
                return False
            left += [i for i in n.all_input_nodes if i not in seen]
            seen.update(n.all_input_nodes)
        return True

    # Sizes

    def size(self, extent: Extent) -> builders.Size:
        """The extent as an int or as an `index` value computed from the symbols."""
        extent = normal(extent)
        return extent if isinstance(extent, int) else self.index(extent)

    def sizes(self, shape: Sequence[Extent]) -> list[builders.Size]:
        return [self.size(s) for s in shape]

    def index(self, expr: Extent) -> ir.Value:
        """An `index` value for the expression; CompileError for an expression that has no lowering."""
        expr = normal(expr)
        if isinstance(expr, int):
            return builders.index(expr)
        if expr not in self._sizes:
            with self._outside():
                self._sizes[expr] = self._lower(expr)
        return self._sizes[expr]

    def _outside(self) -> ir.InsertionPoint:
        """In front of the op in whose body we are: later ops may use the value too."""
        point = ir.InsertionPoint.current
        owner = point.block.owner
        return point if owner.operation.name == "func.func" else ir.InsertionPoint(owner)

    def _lower(self, expr: sympy.Expr) -> ir.Value:
        over, under = sympy.fraction(sympy.together(expr))
        if under != 1:  # a size: the quotient is whole
            return arith.floordivsi(self.index(over), self.index(under))
        fold = {sympy.Add: arith.addi, sympy.Mul: arith.muli}
        if type(expr) in fold:
            first, *rest = [self.index(a) for a in expr.args]
            for value in rest:
                first = fold[type(expr)](first, value)
            return first
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
            return self.index(sympy.Mul(*[expr.base] * int(expr.exp), evaluate=False))
        name = type(expr).__name__
        if name == "PowByNatural" and expr.args[1].is_Integer:
            return self.index(sympy.Mul(*[expr.args[0]] * int(expr.args[1]), evaluate=False))
        if name in ("floor", "ceiling"):
            over, under = sympy.fraction(sympy.together(expr.args[0]))
            divide = arith.floordivsi if name == "floor" else arith.ceildivsi
            return divide(self.index(over), self.index(under))
        if name in ("TruncToInt", "FloorToInt", "CeilToInt"):
            value = self._real(expr.args[0])
            value = {"T": lambda x: x, "F": math.floor, "C": math.ceil}[name[0]](value)
            return arith.index_cast(ir.IndexType.get(), arith.fptosi(ir.IntegerType.get_signless(64), value))
        if name in ("FloorDiv", "CleanDiv"):
            return arith.floordivsi(self.index(expr.args[0]), self.index(expr.args[1]))
        if name == "CeilDiv":
            return arith.ceildivsi(self.index(expr.args[0]), self.index(expr.args[1]))
        if name in ("Mod", "PythonMod"):
            a, b = self.index(expr.args[0]), self.index(expr.args[1])
            return arith.subi(a, arith.muli(arith.floordivsi(a, b), b))
        if name in ("Max", "Min"):
            first, *rest = [self.index(a) for a in expr.args]
            for value in rest:
                first = (arith.maxsi if name == "Max" else arith.minsi)(first, value)
            return first
        raise CompileError(f"no lowering for the size expression {expr}")

    def number(self, x: Scalar, dtype: torch.dtype) -> ir.Value:
        """A number known at run time, as a scalar of `dtype`, computed where we are from sizes computed outside."""
        if x.expr.is_integer:
            i = arith.index_cast(ir.IntegerType.get_signless(64), self.index(x.expr))
            return cast(i, torch.int64, dtype)
        return cast(self._real(x.expr), torch.float64, dtype)

    def factor(self, x: Scalar | float, dtype: torch.dtype) -> ir.Value:
        """A number of either kind, as a scalar of `dtype`."""
        return self.number(x, dtype) if isinstance(x, Scalar) else scalar(dtype, x)

    def _real(self, expr: sympy.Expr) -> ir.Value:
        """An f64 for an expression of Python floats and sizes."""
        name = type(expr).__name__
        if expr.is_number:
            return scalar(torch.float64, float(expr))
        if name == "ToFloat" or expr.is_integer:
            inner = expr.args[0] if name == "ToFloat" else expr
            return self.number(Scalar(inner), torch.float64)
        args = expr.args
        if isinstance(expr, sympy.Pow) or name in ("FloatPow", "PowByNatural"):
            base = self._real(args[0])
            if args[1] == -1:
                return arith.divf(scalar(torch.float64, 1), base)
            if args[1] in (0.5, sympy.Rational(1, 2)):
                return math.sqrt(base)
            return math.powf(base, self._real(args[1]))
        fold = {"Add": arith.addf, "Mul": arith.mulf, "Max": arith.maximumf, "Min": arith.minimumf}
        fold |= {"IntTrueDiv": arith.divf, "FloatTrueDiv": arith.divf}
        unary = {"OpaqueUnaryFn_sqrt": math.sqrt, "OpaqueUnaryFn_exp": math.exp, "OpaqueUnaryFn_log": math.log}
        if name in unary:
            return unary[name](self._real(args[0]))
        if name not in fold:
            raise CompileError(f"no lowering for the number {expr}")
        first, *rest = [self._real(a) for a in args]
        for value in rest:
            first = fold[name](first, value)
        return first

    # Elementwise

    def pointwise(
        self,
        shape: Sequence[Extent],
        inputs: Sequence[Operand],
        compute: torch.dtype | Sequence[torch.dtype],
        result: torch.dtype,
        out: torch.dtype,
        body: Callable[..., ir.Value],
    ) -> T:
        """One elementwise op over `shape`, inputs broadcast as ATen does.

        Every input is converted to its `compute` dtype; `body` returns a scalar of dtype `result`, stored as `out`.
        """
        computes = [compute] * len(inputs) if isinstance(compute, torch.dtype) else list(compute)
        tensors = [x for x in inputs if isinstance(x, T)]

        def region(*block: ir.Value) -> list[ir.Value]:
            left = list(block)
            scalars = []
            for x, dtype in zip(inputs, computes):
                if isinstance(x, T):
                    scalars.append(cast(left.pop(0), x.dtype, dtype))
                elif isinstance(x, Scalar):
                    scalars.append(self.number(x, dtype))
                else:
                    scalars.append(scalar(dtype, x))
            return [cast(body(*scalars), result, out)]

        rank = len(shape)
        maps = [self._broadcast(x, shape) for x in tensors] + [builders.identity(rank)]
        init = builders.empty(self.sizes(shape), mlir_type(out))
        (value,) = builders.generic([x.value for x in tensors], [init], maps, "p" * rank, region)
        return T(value, tuple(shape), out)

    def _broadcast(self, x: T, shape: Sequence[Extent]) -> ir.AffineMap:
        rank, lead = len(shape), len(shape) - x.rank
        dims = [None if guards.get().stretched(s, shape[lead + i]) else lead + i for i, s in enumerate(x.shape)]
        return builders.projection(rank, dims)

    def convert(self, x: T, dtype: torch.dtype) -> T:
        if x.dtype == dtype:
            return x
        return self.pointwise(x.shape, [x], x.dtype, x.dtype, dtype, lambda v: v)

    def copy(self, x: T) -> T:
        """An identity op: a place where the tensor is laid out anew."""
        return self.pointwise(x.shape, [x], x.dtype, x.dtype, x.dtype, lambda v: v)

    def full(self, shape: Sequence[Extent], dtype: torch.dtype, value: float | int | bool | Scalar) -> T:
        return self.pointwise(shape, [value], dtype, dtype, dtype, lambda v: v)

    def from_indices(
        self,
        shape: Sequence[Extent],
        inputs: Sequence[T],
        out: torch.dtype,
        body: Callable[..., ir.Value],
        aligned: bool = True,
    ) -> T:
        """An op whose body sees its own coordinates: `body(coordinates, *scalars)` with `index` coordinates.

        `inputs` are broadcast to `shape`; other tensors may be read in the body by `tensor.extract`.
        """
        rank = len(shape)
        maps = [self._broadcast(x, shape) for x in inputs] + [builders.identity(rank)]
        init = builders.empty(self.sizes(shape), mlir_type(out))

        def region(*block: ir.Value) -> list[ir.Value]:
            coordinates = [linalg.IndexOp(d).result for d in range(rank)]
            return [body(coordinates, *block[: len(inputs)])]

        (value,) = builders.generic([x.value for x in inputs], [init], maps, "p" * rank, region)
        return T(value, tuple(shape), out)

    def windows(self, x: T, shape: Sequence[Extent], places: ir.AffineMap) -> T:
        """What lies at `places` of x, which may overlap: an affine map from the coordinates of `shape`."""
        init = builders.empty(self.sizes(shape), mlir_type(x.dtype))
        maps = [places, builders.identity(len(shape))]
        (value,) = builders.generic([x.value], [init], maps, "p" * len(shape), lambda u, _: [u])
        return T(value, tuple(shape), x.dtype)

    def checked_index(self, value: ir.Value, dtype: torch.dtype, extent: Extent, wrap: bool = True) -> ir.Value:
        """An `index` from a loaded integer; negative ones count from the end, others out of range set the status."""
        i = arith.index_cast(ir.IndexType.get(), cast(value, dtype, torch.int64))
        size = self.index(extent)
        if wrap:
            negative = arith.cmpi(arith.CmpIPredicate.slt, i, builders.index(0))
            i = arith.select(negative, arith.addi(i, size), i)
        inside = arith.cmpi(arith.CmpIPredicate.ult, i, size)
        cf.assert_(inside, "IndexError: index out of range in self")
        return arith.select(inside, i, builders.index(0))

    # Reductions

    def reduce(
        self,
        x: T,
        dims: Sequence[int],
        combine: str,
        keepdim: bool,
        compute: torch.dtype | None = None,
        map: Callable[[ir.Value], ir.Value] | None = None,
        mapped: torch.dtype | None = None,
    ) -> T:
        """Reduce over `dims` with `add`, `mul`, `max`, `min`, `and`, `or` or `maxnum`.

        Elements are converted to `compute` (default: f32 for two-byte floats), go through `map` (which may change the
        dtype to `mapped`), and the result keeps that dtype. max and min propagate NaN; maxnum, for floats, drops it.
        """
        compute = compute or compute_dtype(x.dtype)
        acc = mapped or compute
        dims = sorted({d % max(x.rank, 1) for d in dims}) if x.rank else []
        keep = [d for d in range(x.rank) if d not in dims]
        shape = [x.shape[d] for d in keep]
        init = builders.fill(self.sizes(shape), scalar(acc, neutral(combine, acc)))

        def region(v: ir.Value, a: ir.Value) -> list[ir.Value]:
            v = cast(v, x.dtype, compute)
            return [combiner(combine, acc)(map(v) if map else v, a)]

        maps = [builders.identity(x.rank), builders.projection(x.rank, keep)]
        iterators = "".join("r" if d in dims else "p" for d in range(x.rank))
        (value,) = builders.generic([x.value], [init], maps, iterators, region)
        out = T(value, tuple(shape), acc)
        if keepdim:
            out = self.reshape(out, [1 if d in dims else s for d, s in enumerate(x.shape)])
        return out

    def window_reduce(
        self,
        shape: Sequence[Extent],
        window: Sequence[Extent],
        inputs: Sequence[tuple[T, ir.AffineMap]],
        combine: str,
        acc: torch.dtype,
        body: Callable[..., ir.Value],
    ) -> T:
        """Reduce over a window at every place of `shape`: `body(coordinates, *scalars)` gives the element of dtype `acc`.

        Coordinates are those of `shape`, then those of `window`; the maps of the inputs are over both.
        """
        rank, total = len(shape), len(shape) + len(window)
        init = builders.fill(self.sizes(shape), scalar(acc, neutral(combine, acc)))
        # Nothing else says how large the window is: an operand that is not read has its shape.
        extent = builders.empty(self.sizes(window), mlir_type(acc))
        maps = [m for _, m in inputs] + [builders.projection(total, range(rank, total)), builders.projection(total, range(rank))]

        def region(*block: ir.Value) -> list[ir.Value]:
            at = [linalg.IndexOp(d).result for d in range(total)]
            return [combiner(combine, acc)(body(at, *block[: len(inputs)]), block[-1])]

        values = [x.value for x, _ in inputs] + [extent]
        (value,) = builders.generic(values, [init], maps, "p" * rank + "r" * len(window), region)
        return T(value, tuple(shape), acc)

    # Views

    def reshape(self, x: T, shape: Sequence[Extent]) -> T:
        """Regroup dims, row-major. The element counts must be equal."""
        shape = tuple(normal(s) for s in shape)
        if len(shape) == x.rank and all(same(a, b) for a, b in zip(x.shape, shape)):
            return x
        if any(same(s, 0) for s in (*shape, *x.shape)):
            return self.full(shape, x.dtype, 0)
        groups = regroup(x.shape, shape)
        kind = mlir_type(x.dtype)
        middle = [self._merged([x.shape[i] for i in old]) for old, _ in groups]
        value = x.value
        if len(middle) != x.rank:
            value = builders.collapse(value, [old for old, _ in groups] if middle else [], middle)
        if len(middle) != len(shape):
            whole = [self._merged([shape[j] for j in new]) for _, new in groups]
            if builders.static(whole) != list(ir.ShapedType(value.type).shape):  # a guard made a size a number
                value = tensor.cast(builders.tensor_type(whole, kind), value)
            value = builders.expand(value, [new for _, new in groups] if middle else [], self.sizes(shape))
        elif middle and value.type != builders.tensor_type(self.sizes(shape), kind):
            value = tensor.cast(builders.tensor_type(self.sizes(shape), kind), value)
        return T(value, shape, x.dtype)

    def _merged(self, sizes: Sequence[Extent]) -> builders.Size:
        """The size of dims merged into one, or of the dim that they come from: a value if one of theirs is, as MLIR wants it."""
        whole = product(sizes)
        return self.size(whole) if all(isinstance(self.size(s), int) for s in sizes) else self.index(whole)

    def permute(self, x: T, order: Sequence[int]) -> T:
        order = [d % max(x.rank, 1) for d in order]
        if order == list(range(x.rank)):
            return x
        shape = tuple(x.shape[d] for d in order)
        return T(builders.transpose(x.value, order, self.sizes(shape)), shape, x.dtype)

    def expand(self, x: T, shape: Sequence[Extent]) -> T:
        """Broadcast to `shape` (leading dims may be new)."""
        shape = tuple(normal(s) for s in shape)
        if len(shape) == x.rank and all(same(a, b) for a, b in zip(x.shape, shape)):
            return x
        return self.pointwise(shape, [x], x.dtype, x.dtype, x.dtype, lambda v: v)

    def slice(self, x: T, offsets: Sequence[Extent], shape: Sequence[Extent], steps: Sequence[int]) -> T:
        shape = tuple(normal(s) for s in shape)
        beyond = any(isinstance(at, int) and isinstance(n, int) and at >= n for at, n in zip(offsets, x.shape))
        if beyond or any(same(s, 0) for s in shape):  # a slice that begins at the end is empty, even if its size is a symbol
            return self.full(shape, x.dtype, 0)
        value = builders.extract_slice(x.value, self.sizes(offsets), self.sizes(shape), list(steps))
        return T(value, shape, x.dtype)

    def pad(self, x: T, low: Sequence[Extent], high: Sequence[Extent], value: float | int | bool) -> T:
        """Constant padding; the amounts must not be negative."""
        shape = tuple(normal(s + a + b) for s, a, b in zip(x.shape, low, high))
        if any(same(s, 0) for s in x.shape):
            return self.full(shape, x.dtype, value)
        value = value != 0 if x.dtype == torch.bool else value
        op = builders.pad(x.value, self.sizes(low), self.sizes(high), self.sizes(shape), value)
        return T(op, shape, x.dtype)

    def concat(self, xs: Sequence[T], dim: int) -> T:
        xs = [x for x in xs if not same(x.shape[dim], 0)] or list(xs[:1])
        if len(xs) == 1:
            return xs[0]
        if len(xs) > (most := builders.MAX_CONCAT):  # in groups, which share a kernel
            return self.concat([self.concat(xs[i : i + most], dim) for i in range(0, len(xs), most)], dim)
        shape = list(xs[0].shape)
        shape[dim] = normal(sum((x.shape[dim] for x in xs[1:]), xs[0].shape[dim]))
        kind = builders.tensor_type(self.sizes(shape), mlir_type(xs[0].dtype))
        return T(builders.concat([x.value for x in xs], dim, kind, shape), tuple(shape), xs[0].dtype)

    # Contractions

    def contract(
        self, a: T, b: T, maps: tuple[str, str, str], out: Sequence[Extent], kind: str = "contraction", acc: torch.dtype | None = None
    ) -> T:
        """`einsum(maps)`: e.g. ("mk", "kn", "mn"). Letters missing in the result are summed, in `acc`, by default in what is computed in."""
        letters = sorted(set("".join(maps)), key=lambda c: (c not in maps[2], maps[2].find(c), c))
        dims = [builders.projection(len(letters), [letters.index(c) for c in m]) for m in maps]
        iterators = "".join("p" if c in maps[2] else "r" for c in letters)
        return self.multiply_reduce(a, b, dims, iterators, out, acc or compute_dtype(a.dtype), kind)

    def multiply_reduce(
        self, a: T, b: T, maps: Sequence[ir.AffineMap], iterators: str, out: Sequence[Extent], acc: torch.dtype, kind: str
    ) -> T:
        """A sum of products with arbitrary affine maps; the result has dtype `acc`."""
        init = builders.fill(self.sizes(out), scalar(acc, 0))

        def region(x: ir.Value, y: ir.Value, s: ir.Value) -> list[ir.Value]:
            x, y = cast(x, a.dtype, acc), cast(y, b.dtype, acc)
            if acc.is_floating_point:
                return [arith.addf(s, arith.mulf(x, y))]
            return [arith.addi(s, arith.muli(x, y))]

        (value,) = builders.generic([a.value, b.value], [init], maps, iterators, region, kind)
        return T(value, tuple(out), acc)


def neutral(combine: str, dtype: torch.dtype) -> float | int | bool:
    """The neutral element of a reduction."""
    if combine in ("add", "or"):
        return 0
    if combine in ("mul", "and"):
        return 1
    if dtype == torch.bool:
        return combine == "min"
    if dtype.is_floating_point:
        return float("-inf") if combine in ("max", "maxnum") else float("inf")
    info = torch.iinfo(dtype)
    return info.min if combine == "max" else info.max


def combiner(combine: str, dtype: torch.dtype) -> Callable[[ir.Value, ir.Value], ir.Value]:
    """The scalar op of a reduction."""
    if combine in ("and", "or") or dtype == torch.bool:
        return {"and": arith.andi, "mul": arith.andi, "min": arith.andi}.get(combine, arith.ori)
    if dtype.is_floating_point:
        folds = {"add": arith.addf, "mul": arith.mulf, "max": arith.maximumf, "min": arith.minimumf, "maxnum": arith.maxnumf}
        return folds[combine]
    if is_unsigned(dtype):
        return {"add": arith.addi, "mul": arith.muli, "max": arith.maxui, "min": arith.minui}[combine]
    return {"add": arith.addi, "mul": arith.muli, "max": arith.maxsi, "min": arith.minsi}[combine]
