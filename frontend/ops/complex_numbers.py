"""Complex numbers of two f32: rotary embeddings as Llama's reference has them, and arithmetic around transforms.

    view_as_real(view_as_complex(x) * y)       re, im = x[..., 0], x[..., 1]; c, d = generic: the halves of y, an i64
                                               cat(generic: re * c - im * d, generic: re * d + im * c)

A tensor of them is one of i64 in the IR, as all are that kernels only copy (`dtypes.STORABLE`), with the real part in the lower half. What
is computed is parts, which are put together where somebody stores, moves or leaves to ATen the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...dialects import own
from ...dialects.mlir import arith, ir, math
from ..dtypes import mlir_type
from ..graph_builder import GraphBuilder, Operand, T
from ..registry import COMPLEX_LOWERINGS, LOWERINGS, Unsupported, lowers, lowers_complex
from . import rearranging, views  # noqa: F401  (fill LOWERINGS, of which MOVES are)
from . import scalars as s
from .pointwise import out_shape

aten = torch.ops.aten
C64, F32 = torch.complex64, torch.float32

Number = tuple[ir.Value, ir.Value]
"""Real and imaginary part, f32."""


def _zero() -> ir.Value:
    return _constant(0)


def _constant(x: float) -> ir.Value:
    return arith.ConstantOp(mlir_type(F32), float(x)).result


def _parts(b: GraphBuilder, z: T) -> tuple[T, T]:
    """Both parts of numbers: what these were made of here, or what is in memory."""
    if z.value not in b.parts:
        i32 = ir.IntegerType.get_signless(32)

        def half(v: ir.Value, n: int) -> ir.Value:
            return arith.bitcast(mlir_type(F32), arith.trunci(i32, arith.shrui(v, arith.ConstantOp(v.type, 32).result) if n else v))

        re, im = (b.pointwise(z.shape, [z], C64, F32, F32, lambda v, n=n: half(v, n)) for n in (0, 1))
        b.parts[z.value] = re, im
    return b.parts[z.value]


def _join(b: GraphBuilder, re: T, im: T) -> T:
    """Numbers of both parts; nobody computes them who only asks for these."""
    i32, i64 = (ir.IntegerType.get_signless(n) for n in (32, 64))

    def both(u: ir.Value, v: ir.Value) -> ir.Value:
        low, high = (arith.extui(i64, arith.bitcast(i32, p)) for p in (u, v))
        return arith.ori(low, arith.shli(high, arith.ConstantOp(i64, 32).result))

    z = b.pointwise(re.shape, [re, im], F32, C64, C64, both)
    b.parts[z.value] = re, im
    return z


def _apply(b: GraphBuilder, node: Any, inputs: list[Any], body: Callable[..., Number]) -> T:
    """Elementwise ops for both parts of a result, which `body` returns, from those of numbers; real ones have None as the imaginary one."""
    re, im = (_real(b, node, inputs, lambda *numbers, n=n: body(*numbers)[n]) for n in (0, 1))
    return _join(b, re, im)


def _real(b: GraphBuilder, node: Any, inputs: list[Any], body: Callable[..., ir.Value]) -> T:
    """The same for a result that is an f32."""
    operands: list[Operand] = []
    places: list[Any] = []
    """Of each input: a number that is known, or how many of the operands it is."""
    for x in inputs:
        if isinstance(x, (complex, float, int)):
            places.append(complex(x))
        elif isinstance(x, T) and x.dtype == C64:
            operands += _parts(b, x)
            places.append(2)
        else:
            operands.append(x)
            places.append(1)

    def region(*values: ir.Value) -> ir.Value:
        left, numbers = iter(values), []
        for place in places:
            if isinstance(place, complex):
                numbers.append((_constant(place.real), _constant(place.imag) if place.imag else None))
            else:
                numbers.append((next(left), next(left) if place == 2 else None))
        return body(*numbers)

    return b.pointwise(out_shape(node), operands, F32, F32, F32, region)


def _product(x: Any, y: Any) -> Number:
    """Real factors are multiplied as numbers with an imaginary part of 0, which makes NaN of infinity, as in ATen."""
    (a, b), (c, d) = ((p[0], _zero() if p[1] is None else p[1]) for p in (x, y))
    return arith.subf(arith.mulf(a, c), arith.mulf(b, d)), arith.addf(arith.mulf(a, d), arith.mulf(b, c))


def _quotient(x: Any, y: Any) -> Number:
    (a, b), (c, _) = x, y
    zero = _zero()
    return arith.divf(arith.addf(a, arith.mulf(b, zero)), c), arith.divf(arith.subf(b, arith.mulf(a, zero)), c)


@lowers_complex(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: GraphBuilder, node: Any, x: Any, y: Any) -> T:
    return _apply(b, node, [x, y], _product)


@lowers_complex(aten.div.Tensor, aten.div.Scalar)
def div(b: GraphBuilder, node: Any, x: Any, y: Any) -> T:
    if isinstance(y, complex) or isinstance(y, T) and y.dtype == C64:
        raise Unsupported("a division by complex numbers, which ATen scales so that it overflows in no step")
    return _apply(b, node, [x, y], _quotient)


@lowers_complex(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar)
def add_sub(b: GraphBuilder, node: Any, x: Any, y: Any, alpha: Any = 1) -> T:
    if not isinstance(alpha, (int, float)):
        raise Unsupported("a factor that is complex, or known only at run time")
    packet = node.target.overloadpacket
    op = arith.addf if packet is aten.add else arith.subf
    if packet is aten.rsub and alpha == 1:
        x, y = y, x
    elif packet is aten.rsub:
        raise Unsupported("a number less a multiple of a tensor")

    def body(u: Any, v: Any) -> Number:
        v = _product(v, (_constant(alpha), None))  # if that is 1, too: infinity becomes NaN in ATen
        return op(u[0], v[0]), op(_zero() if u[1] is None else u[1], v[1])

    return _apply(b, node, [x, y], body)


@lowers_complex(aten.neg.default)
def neg(b: GraphBuilder, node: Any, x: T) -> T:
    return _apply(b, node, [x], lambda u: (arith.negf(u[0]), arith.negf(u[1])))


@lowers(aten._neg_view.default)
def neg_view(b: GraphBuilder, node: Any, x: T) -> T:
    """The imaginary parts of conjugates."""
    return b.pointwise(x.shape, [x], x.dtype, x.dtype, x.dtype, lambda v: s.neg(x.dtype, v))


@lowers_complex(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)
def conj(b: GraphBuilder, node: Any, x: T) -> T:
    return _apply(b, node, [x], lambda u: (u[0], arith.negf(u[1])))


@lowers_complex(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(b: GraphBuilder, node: Any, x: T) -> T:
    re, im = (LOWERINGS[aten.select.int](b, node, x, -1, n) for n in (0, 1))
    return _join(b, re, im)


@lowers_complex(aten.complex.default)
def complex_(b: GraphBuilder, node: Any, re: T, im: T) -> T:
    return _apply(b, node, [re, im], lambda u, v: (u[0], v[0]))


@lowers_complex(aten.polar.default)
def polar(b: GraphBuilder, node: Any, size: T, angle: T) -> T:
    return _apply(b, node, [size, angle], lambda r, t: (arith.mulf(r[0], math.cos(t[0])), arith.mulf(r[0], math.sin(t[0]))))


@lowers_complex(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(b: GraphBuilder, node: Any, z: T) -> T:
    return LOWERINGS[aten.cat.default](b, node, [b.reshape(p, [*p.shape, 1]) for p in _parts(b, z)], z.rank)


@lowers_complex(aten.real.default)
def real(b: GraphBuilder, node: Any, z: T) -> T:
    return _parts(b, z)[0]


@lowers_complex(aten.imag.default)
def imag(b: GraphBuilder, node: Any, z: T) -> T:
    return _parts(b, z)[1]


@lowers_complex(aten.abs.default)
def absolute(b: GraphBuilder, node: Any, z: T) -> T:
    return _real(b, node, [z], lambda u: s.hypot(F32, *u))


@lowers_complex(aten.angle.default)
def angle(b: GraphBuilder, node: Any, z: T) -> T:
    return _real(b, node, [z], lambda u: own.function("atan2", u[1], u[0]))


@lowers_complex(aten._to_copy.default)
def to_copy(b: GraphBuilder, node: Any, x: T, **kwargs: Any) -> T:
    """Of real numbers, or as they are."""
    if node.meta["val"].dtype != C64:
        raise Unsupported(f"complex numbers as {node.meta['val'].dtype}")
    return _apply(b, node, [x], lambda u: (u[0], _zero() if u[1] is None else u[1]))


MOVES = (
    aten.alias.default, aten.cat.default, aten.clone.default, aten.detach.default, aten.expand.default, aten.flip.default, aten.index.Tensor,
    aten.index_select.default, aten.permute.default, aten.repeat.default, aten.roll.default, aten.select.int, aten.slice.Tensor, aten.split.Tensor,
    aten.split_with_sizes.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.stack.default, aten.t.default,
    aten.transpose.int, aten.unbind.int, aten.unsqueeze.default, aten.view.default, aten._unsafe_view.default,
)  # fmt: skip
"""What only moves numbers is the same for all."""

COMPLEX_LOWERINGS.update({target: LOWERINGS[target] for target in MOVES if target in LOWERINGS})
