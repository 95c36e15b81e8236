"""Generics that copy: the places where a tensor is laid out anew."""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .layouts import Layouts


def copy(value: ir.Value, layouts: Layouts, write: int | None = None) -> ir.Value:
    """An identity generic: the value, row-major in a buffer of its own."""
    rank = len(st.shape(value))
    init = empty_like(value, layouts)
    identity = builders.identity(rank)
    (out,) = builders.generic([value], [init], [identity, identity], "p" * rank, lambda v, _: [v])
    if out.type != value.type:
        raise AssertionError((out.type, value.type))
    if write is not None:
        st.operation(out.owner).attributes["mlirc.write"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), write)
    return out


def empty_like(value: ir.Value, layouts: Layouts) -> ir.Value:
    """A tensor of the same type, of which nothing is read."""
    layouts.sizes.forget()
    sizes: list[int | ir.Value] = []
    for static, s in zip(st.shape(value), layouts.shapes.of(value)):
        # More may be known about a size than the type says, which has to stay.
        if static == builders.DYNAMIC:
            sizes.append(arith.constant(ir.IndexType.get(), s) if isinstance(s, int) else layouts.sizes.value(s))
        else:
            sizes.append(static)
    return builders.empty(sizes, builders.element_type(value))


def reordered(value: ir.Value, order: Sequence[int], layouts: Layouts, widened: ir.Type | None = None) -> ir.Value:
    """A copy with the dims in this order, in another float type if a wider one is given."""
    rank, element = len(order), widened or builders.element_type(value)
    sizes = layouts.values(value)
    init = builders.empty([sizes[d] for d in order], element)
    source = builders.projection(rank, [order.index(d) for d in range(rank)])
    body = (lambda x, _: [arith.extf(element, x)]) if widened else (lambda x, _: [x])
    (out,) = builders.generic([value], [init], [source, builders.identity(rank)], "p" * rank, body)
    return out


def windows(convolution: ir.Operation, loops: Sequence[int], sizes: Sequence[builders.Size]) -> ir.Value:
    """A copy of what a convolution reads of its first operand, with a dim for each of these loops, whose sizes are given, in this order."""
    image = st.maps(convolution)[0]
    new = [ir.AffineConstantExpr.get(0)] * image.n_dims
    for i, d in enumerate(loops):
        new[d] = ir.AffineDimExpr.get(i)
    rank = len(loops)
    places = ir.AffineMap.get(rank, 0, [e.compose(ir.AffineMap.get(rank, 0, new)) for e in image.results])
    value = convolution.operands[0]
    init = builders.empty(sizes, builders.element_type(value))
    (copy,) = builders.generic([value], [init], [places, builders.identity(rank)], "p" * rank, lambda x, _: [x])
    return copy


def pad_behind(value: ir.Value, at: int, amount: int, sizes: Sequence[builders.Size]) -> ir.Value:
    """The value, whose sizes are given, with zeros behind dim `at`, whose size is known; itself where there are none to add."""
    if not amount:
        return value
    shape = [s + amount if d == at else s for d, s in enumerate(sizes)]  # type: ignore[operator]
    return builders.pad(value, [0] * len(shape), [amount if d == at else 0 for d in range(len(shape))], shape)
