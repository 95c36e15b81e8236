"""Elementwise ops, from tables: the scalar body and the type promotion of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from ...dialects.mlir import arith, ir, math
from ..dtypes import compute_dtype, is_unsigned, scalar
from ..graph_builder import GraphBuilder, Operand, Scalar, T, normal
from ..registry import Unsupported, lowers

aten = torch.ops.aten
Body = Callable[..., ir.Value]


def promote(args: list[Operand], metas: list[Any], kind: Kind) -> tuple[torch.dtype, torch.dtype]:
    """(dtype to compute in, dtype of the result) as ATen's type promotion has them."""
    compute, result = elementwise_dtypes(*metas, type_promotion_kind=kind)
    return compute_dtype(compute), result


def meta(x: Any) -> Any:
    """What type promotion wants to see of an argument of an FX node."""
    return x.meta["val"] if isinstance(x, torch.fx.Node) else x


def out_shape(node: torch.fx.Node) -> tuple[Any, ...]:
    return tuple(normal(s) for s in node.meta["val"].shape)


def apply(b: GraphBuilder, node: torch.fx.Node, args: list[Operand], raw: list[Any], kind: Kind, body: Any) -> T:
    """Build one elementwise node: `body(dtype, *scalars)`; comparisons give bool."""
    compute, _ = promote(args, [meta(a) for a in raw], kind)
    out = node.meta["val"].dtype
    result = torch.bool if kind == Kind.ALWAYS_BOOL else compute
    return b.pointwise(out_shape(node), args, compute, result, out, lambda *s: body(compute, *s))


def add_scaled(
    b: GraphBuilder, x: T, y: T, alpha: float, beta: float, compute: torch.dtype, out: torch.dtype
) -> T:
    """alpha * x + beta * y over the shape of x. With beta = 0, y is not read (NaN in it is ignored)."""
    if beta == 0:
        return b.pointwise(x.shape, [x, alpha], compute, compute, out, lambda u, a: mul(compute, u, a))

    def body(u: ir.Value, v: ir.Value) -> ir.Value:
        u = u if alpha == 1 else mul(compute, u, scalar(compute, alpha))
        v = v if beta == 1 else mul(compute, v, scalar(compute, beta))
        return add(compute, u, v)

    return b.pointwise(x.shape, [x, y], compute, compute, out, body)


# Arithmetic on scalars of one dtype


def add(d: torch.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    if d == torch.bool:
        return arith.ori(x, y)
    return arith.addf(x, y) if d.is_floating_point else arith.addi(x, y)


def sub(d: torch.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.subf(x, y) if d.is_floating_point else arith.subi(x, y)


def mul(d: torch.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
    if d == torch.bool:
        return arith.andi(x, y)
    return arith.mulf(x, y) if d.is_floating_point else arith.muli(x, y)


def compare(predicate: str) -> Body:
    """A comparison; ordered for floats but `ne`, which is true for NaN."""

    def body(d: torch.dtype, x: ir.Value, y: ir.Value) -> ir.Value:
        if d.is_floating_point:
            name = "UNE" if predicate == "ne" else "O" + predicate.upper()
            return arith.cmpf(getattr(arith.CmpFPredicate, name), x, y)
        sign = "" if predicate in ("eq", "ne") else "u" if is_unsigned(d) else "s"
        return arith.cmpi(getattr(arith.CmpIPredicate, sign + predicate), x, y)

    return body


UNARY_FLOAT: dict[Any, Body] = {
    aten.exp: lambda d, x: math.exp(x),
    aten.log: lambda d, x: math.log(x),
    aten.sqrt: lambda d, x: math.sqrt(x),
    aten.rsqrt: lambda d, x: math.rsqrt(x),
    aten.tanh: lambda d, x: math.tanh(x),
    aten.erf: lambda d, x: math.erf(x),
    aten.sigmoid: lambda d, x: arith.divf(
        scalar(d, 1), arith.addf(scalar(d, 1), math.exp(arith.negf(x)))
    ),
}
BINARY: dict[Any, Body] = {aten.mul: mul}
COMPARE: dict[Any, Body] = {getattr(aten, p): compare(p) for p in ("eq", "ne", "lt", "le", "gt", "ge")}


def _register(table: dict[Any, Body], kind: Kind) -> None:
    for op, body in table.items():

        def lowering(b: GraphBuilder, node: Any, *args: Any, _body: Body = body, **kwargs: Any) -> T:
            if kwargs:
                raise Unsupported(f"{node.target} with {', '.join(kwargs)}")
            return apply(b, node, list(args), list(node.args), kind, _body)

        lowers(op)(lowering)


_register(UNARY_FLOAT, Kind.INT_TO_FLOAT)
_register(BINARY, Kind.DEFAULT)
_register(COMPARE, Kind.ALWAYS_BOOL)


@lowers(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def add_sub(b: GraphBuilder, node: Any, x: Operand, y: Operand, alpha: Any = 1) -> T:
    op = add if node.target.overloadpacket is aten.add else sub

    def body(d: torch.dtype, u: ir.Value, v: ir.Value) -> ir.Value:
        if isinstance(alpha, Scalar) or alpha != 1:
            if isinstance(alpha, Scalar):
                raise Unsupported("symbolic alpha")
            v = mul(d, v, scalar(d, alpha))
        return op(d, u, v)

    return apply(b, node, [x, y], list(node.args[:2]), Kind.DEFAULT, body)


@lowers(aten.relu.default)
def relu(b: GraphBuilder, node: Any, x: T) -> T:
    def body(d: torch.dtype, u: ir.Value) -> ir.Value:
        if d.is_floating_point:
            return arith.maximumf(u, scalar(d, 0))
        return arith.maxsi(u, scalar(d, 0)) if not is_unsigned(d) else u

    return apply(b, node, [x], [node.args[0]], Kind.DEFAULT, body)


@lowers(aten.gelu.default)
def gelu(b: GraphBuilder, node: Any, x: T, approximate: str = "none") -> T:
    def body(d: torch.dtype, u: ir.Value) -> ir.Value:
        c = lambda v: scalar(d, v)  # noqa: E731
        if approximate == "tanh":
            inner = arith.mulf(c(0.7978845608028654), arith.addf(u, arith.mulf(c(0.044715), arith.mulf(u, arith.mulf(u, u)))))
            return arith.mulf(arith.mulf(c(0.5), u), arith.addf(c(1), math.tanh(inner)))
        return arith.mulf(arith.mulf(c(0.5), u), arith.addf(c(1), math.erf(arith.mulf(u, c(0.7071067811865476)))))

    return apply(b, node, [x], [node.args[0]], Kind.DEFAULT, body)
