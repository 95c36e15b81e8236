"""as_strided and its scatter: positions in the storage of a tensor, which has to be without gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...dialects import builders, own
from ...dialects.mlir import arith, ir, tensor
from ..extents import Extent, normal, product, same
from ..graph_builder import GraphBuilder, T
from ..memory_order import fills, tensor_spec
from ..registry import LeaveGraph, Unsupported, lowers
from .padding import extent
from .scatter import write_at

aten = torch.ops.aten


def _storage(b: GraphBuilder, x: T, node: Any) -> T:
    """The elements of x in the order in which eager has them in memory."""
    _check_inside(node)
    meta = node.args[0].meta["val"]
    strides = [normal(s) for s in meta.stride()]
    if not all(isinstance(s, int) for s in strides):
        if not meta.is_contiguous():
            raise _left_to_aten(node, "as_strided of a tensor in an order known only at run time")
        return b.reshape(x, [product(x.shape)])
    order = sorted(range(x.rank), key=lambda d: (-strides[d], d))  # type: ignore[operator]
    sizes = [x.shape[d] for d in order]
    if not _row_major(sizes, [strides[d] for d in order]):
        raise _left_to_aten(node, "as_strided of a tensor with gaps")
    return b.reshape(b.permute(x, order), [product(x.shape)])


def _check_inside(node: Any) -> None:
    """Raises LeaveGraph for a view of memory that its operand does not cover; adds guards that it stays inside."""
    meta = node.args[0].meta["val"]
    size, stride, offset = _geometry(node)
    if any(n == 0 for n in size):
        return
    first = 0 if offset is None else offset - meta.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(size, stride))
    covered = sum((n - 1) * s for n, s in zip(meta.shape, meta.stride()))
    if first < 0 or last > covered:
        raise LeaveGraph(f"{node.target} of memory outside of its operand", node=node.format_node())


def _geometry(node: Any) -> tuple[Any, Any, Any]:
    """Sizes, strides and offset of the view, as torch has them."""
    names = [a.name for a in node.target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return torch.fx.node.map_arg((given["size"], given["stride"], given.get("storage_offset")), lambda n: n.meta["val"])


def just_written(node: torch.fx.Node) -> torch.fx.Node | None:
    """What an `as_strided` shows that follows an `as_strided_scatter` to the same places, as the traces of writes through views
    have it. Nothing else is right where such places lie between the elements of an input."""
    if node.target is not aten.as_strided.default or node.args[0].target is not aten.as_strided_scatter.default:  # type: ignore[union-attr]
        return None
    scatter: Any = node.args[0]
    source, (size, stride, offset) = scatter.args[1], _geometry(node)
    extent = 1
    for n, s in sorted(zip(size, stride), key=lambda dim: normal(dim[1]) if isinstance(normal(dim[1]), int) else math.inf):
        if same(normal(n), 1):
            continue
        if not isinstance(normal(n), int) or not isinstance(normal(s), int) or s < extent:
            return None  # places that overlap, or may
        extent += (n - 1) * s
    if _geometry(scatter) != (size, stride, offset) or source.meta["val"].dtype != node.meta["val"].dtype:
        return None
    return source if list(source.meta["val"].shape) == list(size) else None


_WINDOWS = {
    aten.slice.Tensor, aten.select.int, aten.transpose.int, aten.permute.default, aten.t.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default,
}  # fmt: skip
"""Views that are the memory they show in the compiled program, too, with all that lies between their elements."""


def _left_to_aten(node: Any, reason: str) -> Exception:
    """The call in its place sees the operand alone, so that offsets count from there, and nothing between the elements of a copy."""
    operand = node.args[0]
    meta = operand.meta["val"]
    counts_elsewhere = _geometry(node)[2] is not None and not same(normal(meta.storage_offset()), 0)
    if counts_elsewhere or not (fills(meta, tensor_spec(meta)) or _is_window(operand)):
        return LeaveGraph(reason, node=node.format_node())
    return Unsupported(reason)


def _is_window(node: Any) -> bool:
    """Whether a tensor is a part of an input, or of what an op has made, as it lies there."""
    while node.target in _WINDOWS:
        node = node.args[0]
    storage = node.meta["val"].untyped_storage()._cdata
    made_from = (n.meta.get("val") for n in node.all_input_nodes)
    return all(v.untyped_storage()._cdata != storage for v in made_from if isinstance(v, torch.Tensor))


def _row_major(sizes: Sequence[Extent], strides: Sequence[Extent]) -> bool:
    return all(same(n, 1) or same(st, product(sizes[d + 1 :])) for d, (n, st) in enumerate(zip(sizes, strides)))


def _offset(offset: Any, node: Any) -> Extent:
    """Where the view begins, from the first element of the tensor."""
    meta = node.args[0].meta["val"]
    return 0 if offset is None else normal(extent(offset) - normal(meta.storage_offset()))


def _place(b: GraphBuilder, at: Sequence[ir.Value], strides: Sequence[Extent], start: Extent) -> ir.Value:
    """Where the element at these coordinates lies."""
    place = b.index(start)
    for i, st in zip(at, strides):
        if not same(st, 0):
            place = arith.addi(place, arith.muli(i, b.index(st)) if not same(st, 1) else i)
    return place


def _differ(x: ir.Value, y: ir.Value) -> ir.Value:
    """Whether two elements are not the same bits."""
    if not isinstance(x.type, ir.IntegerType):
        bits = ir.IntegerType.get_signless(x.type.width)  # type: ignore[attr-defined]
        x, y = arith.bitcast(bits, x), arith.bitcast(bits, y)
    return arith.cmpi(arith.CmpIPredicate.ne, x, y)


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(b: GraphBuilder, node: Any, x: T, size: Any, stride: Any, offset: Any = None) -> T:
    sizes, strides, start = [extent(s) for s in size], [extent(s) for s in stride], _offset(offset, node)
    flat = _storage(b, x, node)
    count = product(sizes)
    if _row_major(sizes, strides):
        if same(count, flat.shape[0]):
            return b.reshape(flat, sizes)
        return b.reshape(b.slice(flat, [start], [count], [1]), sizes)

    def body(at: list[ir.Value]) -> ir.Value:
        return tensor.extract(flat.value, [_place(b, at, strides, start)])

    return b.from_indices(sizes, [], x.dtype, body)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: GraphBuilder, node: Any, x: T, source: T, size: Any, stride: Any, offset: Any = None
) -> T:
    """Elementwise into consecutive elements of a contiguous tensor, otherwise one after the other.

    Where the view shows an element several times, it is what a write to a part of such a view has been traced as: what it writes is what
    differs. (ATen refuses to write to all of it.)
    """
    _check_inside(node)
    meta = node.args[0].meta["val"]
    sizes, strides, start = [extent(s) for s in size], [extent(s) for s in stride], _offset(offset, node)
    if not meta.is_contiguous():
        raise _left_to_aten(node, "as_strided_scatter into a tensor with gaps")
    total, count = product(x.shape), product(sizes)
    flat = b.reshape(b.convert(source, x.dtype), [count])
    if not _row_major(sizes, strides):
        i64 = ir.IntegerType.get_signless(64)
        whole = b.reshape(x, [total])
        repeats = any(same(st, 0) and not same(n, 1) for n, st in zip(sizes, strides))

        def place(at: list[ir.Value], *written: ir.Value) -> ir.Value:
            found = _place(b, at, strides, start)
            if repeats:  # nobody reads what is written behind the others
                found = arith.select(_differ(tensor.extract(whole.value, [found]), *written), found, b.index(total))
            return arith.index_cast(i64, found)

        places = b.from_indices(sizes, [b.reshape(flat, sizes)] if repeats else [], torch.int64, place)
        filled = b.pad(whole, [0], [1], 0) if repeats else whole
        written = write_at(b, filled, flat, [b.reshape(places, [count])], [0], [-1], own.SET)
        return b.reshape(b.slice(written, [0], [total], [1]) if repeats else written, x.shape)
    if same(total, count):
        return b.reshape(flat, x.shape)

    def body(at: list[ir.Value], u: ir.Value) -> ir.Value:
        i = arith.subi(at[0], b.index(start))
        inside = arith.cmpi(arith.CmpIPredicate.ult, i, b.index(count))
        i = arith.select(inside, i, builders.index(0))
        return arith.select(inside, tensor.extract(flat.value, [i]), u)

    return b.reshape(b.from_indices([total], [b.reshape(x, [total])], x.dtype, body), x.shape)
