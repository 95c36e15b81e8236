"""Sizes of tensors while a graph is imported: ints, or sympy expressions of Dynamo's symbols."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from ..dialects.sizes import SIGNED
from ..errors import CompileError

Extent = int | sympy.Expr


def product(sizes: Sequence[Extent]) -> Extent:
    out: Extent = 1
    for s in sizes:
        out = out * s
    return normal(out)


rounded: ContextVar[dict[sympy.Expr, sympy.Symbol]] = ContextVar("rounded")
"""Sizes that are rounded floats (`interpolate` by 1.5) -> the symbols that stand for them while a graph is imported.

Python computes them, once a call: what comes out of a float product depends on its rounding."""

class Guards:
    """What torch holds a graph's sizes to: numbers that expressions are, and the sizes of the call that was traced."""

    def __init__(self, symbolic: torch.SymInt | None) -> None:
        self._env = symbolic.node.shape_env if symbolic is not None else None
        self.numbers: dict[sympy.Expr, int] = {}
        """`x.chunk(2)[1] + y` broadcasts because s - (s + 1)//2 is 1."""
        for guard in self._env.guards if self._env else ():
            if (number := self._number(guard.expr)) is not None:
                expr = _signed(guard.expr.lhs)
                self.numbers[sympy.expand(expr)] = number
                if number > 1:  # a stride, and the size that it is made of
                    self.numbers[sympy.expand(without_max(expr))] = number

    def _number(self, guard: sympy.Expr) -> int | None:
        """What a guard says that its left side is: `s//2 == 1`, or `s//2 < 2` where s is at least 2."""
        if not isinstance(guard, sympy.core.relational.Relational) or not guard.rhs.is_Integer:
            return None
        if isinstance(guard, sympy.Eq):
            return int(guard.rhs)
        most = int(guard.rhs) - (1 if isinstance(guard, sympy.StrictLessThan) else 0)
        least = self._env.bound_sympy(guard.lhs).lower if isinstance(guard, (sympy.StrictLessThan, sympy.LessThan)) else None
        return most if least == most else None

    def negative(self, expr: Extent) -> bool:
        """Whether an expression is negative in the traced call. Where torch decides something by a sign, a guard keeps it."""
        if isinstance(expr, int) or self._env is None or expr.is_nonnegative or expr.is_negative:
            return bool(expr < 0) if isinstance(expr, int) else bool(expr.is_negative)
        return bool(self._traced(expr) < 0)

    def stretched(self, size: Extent, to: Extent) -> bool:
        """Whether a size is broadcast to another in the traced call: torch's guards hold it to that, in whatever form."""
        if same(size, to) or isinstance(size, int) or self._env is None:
            return same(size, 1) and not same(to, 1)
        return bool(self._traced(size) == 1 and self._traced(sympy.sympify(to)) != 1)

    def _traced(self, expr: sympy.Expr) -> sympy.Expr:
        return expr.xreplace({_signed(s): v for s, v in self._env.backed_var_to_val.items()})


guards: ContextVar[Guards] = ContextVar("guards", default=Guards(None))  # noqa: B039 - never changed


def _signed(expr: sympy.Expr) -> sympy.Expr:
    """Symbols of numbers that need not be positive, as sizes are, get another name (see `dialects.sizes.symbol`)."""
    free = [s for s in expr.free_symbols if not s.is_positive and not s.name.startswith(SIGNED)]
    return expr.xreplace({s: sympy.Symbol(SIGNED + s.name, integer=True) for s in free}) if free else expr


_ROUNDING = ("TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt")


def _symbol_of(expr: sympy.Expr) -> sympy.Symbol:
    known = rounded.get()
    return known.setdefault(expr, sympy.Symbol(f"z{len(known)}", integer=True, positive=True))


@functools.cache
def _quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """a // b, without the division where it leaves no rest: torch keeps s**2 // s."""
    exact = sympy.cancel(a / b)
    return exact if exact.is_polynomial() and sympy.denom(sympy.together(exact)) == 1 else FloorDiv(a, b)


def normal(size: object) -> Extent:
    """An int where the size is one, else the sympy expression. Of a condition, likewise."""
    if isinstance(size, int):
        return size
    if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        size = size.node.expr
    if isinstance(size, sympy.logic.boolalg.Boolean):
        return _signed(size) if size.free_symbols else bool(size)
    if isinstance(size, sympy.Expr):
        if size.is_Integer:
            return int(size)
        size = _signed(size)
        if size.is_Symbol or rounded.get(None) is None:
            return size
        if known := guards.get().numbers:
            if (number := known.get(sympy.expand(size))) is not None:
                return number
            size = size.xreplace(known)
            if size.is_Integer:
                return int(size)
        if size.has(FloorDiv):
            size = size.replace(FloorDiv, _quotient)
            if size.is_Integer:
                return int(size)
        return size.replace(lambda e: type(e).__name__ in _ROUNDING, _symbol_of)
    return int(size)  # type: ignore[call-overload]


def same(a: Extent, b: Extent) -> bool:
    """Whether two sizes are provably equal."""
    return a == b or (not (isinstance(a, int) and isinstance(b, int)) and sympy.expand(a - b) == 0)


def without_max(size: Extent) -> Extent:
    """`Max(1, s)` as s."""
    if isinstance(size, int):
        return size
    clamped = size.find(lambda e: type(e).__name__ == "Max" and len(e.args) == 2 and 1 in e.args)
    return size.xreplace({e: e.args[1] if e.args[0] == 1 else e.args[0] for e in clamped})


def floordiv(a: Extent, b: Extent) -> Extent:
    """a // b in the form in which torch writes it, so that equal sizes are seen to be equal."""
    return a // b if isinstance(a, int) and isinstance(b, int) else normal(FloorDiv(a, b))


def regroup(old: Sequence[Extent], new: Sequence[Extent]) -> list[tuple[list[int], list[int]]]:
    """Match dims of two shapes with the same element count into groups of equal products, as fine as possible."""
    tail = 0
    while tail < min(len(old), len(new)) and same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    if tail and (tail == len(old)) != (tail == len(new)):  # what is left over on one side needs a partner
        tail -= 1
    i, j = len(old) - tail, len(new) - tail
    return _heads(old[:i], new[:j]) + [([i + k], [j + k]) for k in range(tail)]


def _heads(old: Sequence[Extent], new: Sequence[Extent]) -> list[tuple[list[int], list[int]]]:
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        a, b = [i], [j]
        pa, pb = old[i], new[j]
        i, j = i + 1, j + 1
        while not same(pa, pb):
            smaller_old = pa < pb if isinstance(pa, int) and isinstance(pb, int) else None
            if smaller_old is None:  # symbolic: the side whose product divides the other's has to grow
                quotient = sympy.cancel(pb / pa) if i < len(old) else 0
                smaller_old = i < len(old) and (j >= len(new) or sympy.denom(quotient) == 1)
            if smaller_old and i < len(old):
                a.append(i)
                pa, i = normal(pa * old[i]), i + 1
            elif j < len(new):
                b.append(j)
                pb, j = normal(pb * new[j]), j + 1
            elif i < len(old):
                a.append(i)
                pa, i = normal(pa * old[i]), i + 1
            elif isinstance(pa, int) and isinstance(pb, int):
                raise CompileError(f"cannot view {list(old)} as {list(new)}")
            else:  # equal, as torch has made sure, in a way that the expressions do not show
                break
        groups.append((a, b))
    for rest, side in ((range(i, len(old)), 0), (range(j, len(new)), 1)):  # trailing unit dims
        for d in rest:
            if not groups:
                return [] if all(same(s, 1) for s in (*old, *new)) else _fail(old, new)
            groups[-1][side].append(d)
    return groups


def _fail(old: Sequence[Extent], new: Sequence[Extent]) -> list[tuple[list[int], list[int]]]:
    raise CompileError(f"cannot view {list(old)} as {list(new)}")
