"""Short spellings for the upstream ops that the importer and the passes build all the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from .mlir import arith, ir, linalg, tensor

Size = Union[int, ir.Value]
"""One extent of a tensor: a static int, or an `index` value."""

DYNAMIC = ir.ShapedType.get_dynamic_size()


def index(value: int) -> ir.Value:
    """An `index` constant."""
    return arith.ConstantOp(ir.IndexType.get(), value).result


def constant(type: ir.Type, value: float | int | bool) -> ir.Value:
    """A scalar constant of `type`, or a splat where `type` is a vector."""
    element = type.element_type if isinstance(type, ir.VectorType) else type
    if isinstance(element, ir.IntegerType):
        width = element.width
        value = int(value) & ((1 << width) - 1)
        if value >= 1 << (width - 1) and width > 1:
            value -= 1 << width
        attribute = ir.IntegerAttr.get(element, value)
    elif isinstance(element, ir.IndexType):
        attribute = ir.IntegerAttr.get(element, int(value))
    else:
        attribute = ir.FloatAttr.get(element, float(value))
    if element != type:
        attribute = ir.DenseElementsAttr.get_splat(type, attribute)
    return arith.ConstantOp(type, attribute).result


def static(sizes: Sequence[Size]) -> list[int]:
    """The sizes as a tensor type spells them, `?` for values."""
    return [s if isinstance(s, int) else DYNAMIC for s in sizes]


def dynamic(sizes: Sequence[Size]) -> list[ir.Value]:
    """Only the sizes that are values."""
    return [s for s in sizes if not isinstance(s, int)]


def tensor_type(sizes: Sequence[Size], element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(static(sizes), element)


def empty(sizes: Sequence[Size], element: ir.Type) -> ir.Value:
    return tensor.EmptyOp(list(sizes), element).result


def sizes_of(empty: ir.Operation) -> list[Size]:
    """The sizes that a tensor.empty was made with."""
    left = list(empty.operands)
    return [s if s >= 0 else left.pop(0) for s in ir.RankedTensorType(empty.results[0].type).shape]


def fill(sizes: Sequence[Size], value: ir.Value) -> ir.Value:
    """A tensor that holds `value` everywhere."""
    return linalg.fill(value, empty(sizes, value.type))


def element_type(value: ir.Value) -> ir.Type:
    return ir.ShapedType(value.type).element_type


_ITERATORS: dict[str, str] = {"p": "#linalg.iterator_type<parallel>", "r": "#linalg.iterator_type<reduction>"}


def iterator_types(letters: str) -> ir.Attribute:
    """The attribute of a `linalg.generic`, a letter a loop: `p`arallel, `r`eduction."""
    return ir.ArrayAttr.get([ir.Attribute.parse(_ITERATORS[c]) for c in letters])


def generic(
    inputs: Sequence[ir.Value],
    inits: Sequence[ir.Value],
    maps: Sequence[ir.AffineMap],
    iterators: str,
    body: Callable[..., Sequence[ir.Value]],
    kind: str | None = None,
) -> list[ir.Value]:
    """`linalg.generic`; `iterators` is a letter a loop (`p`arallel, `r`eduction), `body` gets the scalars.

    `kind` becomes the attribute `mlirc.kind`, by which passes recognise contractions and convolutions.
    """
    op = linalg.GenericOp(
        [v.type for v in inits],
        list(inputs),
        list(inits),
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        iterator_types(iterators),
    )
    block = op.regions[0].blocks.append(*(element_type(v) for v in (*inputs, *inits)))
    try:
        with ir.InsertionPoint(block):
            linalg.YieldOp(list(body(*block.arguments)))
    except Exception:
        op.operation.erase()  # a body without its end would make the whole module invalid
        raise
    if kind is not None:
        op.operation.attributes["mlirc.kind"] = ir.StringAttr.get(kind)
    return list(op.results)


def contraction(body: ir.Block, operands: Sequence[ir.Value], init: ir.Value, maps: Sequence[str], loops: str) -> ir.Value:
    """A product with the body of another one, which loses it. `maps` has a letter of `loops` for each dim of the operands and of the result.

    What is reduced are the loops that the result has not.
    """
    attributes = [ir.AffineMapAttr.get(projection(len(loops), [loops.index(x) for x in m])) for m in maps]
    iterators = iterator_types("".join("p" if x in maps[-1] else "r" for x in loops))
    op = linalg.GenericOp([init.type], list(operands), [init], ir.ArrayAttr.get(attributes), iterators)
    op.operation.attributes["mlirc.kind"] = ir.StringAttr.get("contraction")
    body.append_to(op.regions[0])
    return op.results[0]


def identity(rank: int) -> ir.AffineMap:
    return ir.AffineMap.get_identity(rank)


def projection(rank: int, dims: Sequence[int | None]) -> ir.AffineMap:
    """The map from `rank` loops to the given loops, `None` standing for the constant 0 (a broadcast unit dim)."""
    return ir.AffineMap.get(
        rank, 0, [ir.AffineConstantExpr.get(0) if d is None else ir.AffineDimExpr.get(d) for d in dims]
    )


def collapse(source: ir.Value, groups: Sequence[Sequence[int]], sizes: Sequence[Size]) -> ir.Value:
    return tensor.CollapseShapeOp(
        tensor_type(sizes, element_type(source)), source, [list(g) for g in groups]
    ).result


def expand(source: ir.Value, groups: Sequence[Sequence[int]], sizes: Sequence[Size]) -> ir.Value:
    return tensor.ExpandShapeOp(
        tensor_type(sizes, element_type(source)), source, [list(g) for g in groups], dynamic(sizes), static(sizes)
    ).result


def transpose(source: ir.Value, permutation: Sequence[int], sizes: Sequence[Size]) -> ir.Value:
    """`sizes` are those of the result; result dim i is source dim `permutation[i]`."""
    return linalg.transpose(source, empty(sizes, element_type(source)), list(permutation))


def pad(source: ir.Value, low: Sequence[Size], high: Sequence[Size], sizes: Sequence[Size], value: float | int | bool | ir.Value = 0) -> ir.Value:
    """`source` between `low` and `high` elements of `value`, a number or a scalar; `sizes` are those of the result."""
    kind = element_type(source)
    op = tensor.PadOp(tensor_type(sizes, kind), source, dynamic(low), dynamic(high), static(low), static(high))
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * len(sizes))
    with ir.InsertionPoint(block):
        tensor.YieldOp(value if isinstance(value, ir.Value) else constant(kind, value))
    return op.result


MAX_CONCAT = 32
"""Parts of a concatenation: its kernel has code of its own for each. 32 parts of 64 x 33, exp of each: compiled in 0.5 s, run in 37 us, in
groups of 16 0.4 s and 65 us; 64 parts 1.0 s and 70 us, in groups of 32 0.7 s and 77 us."""


def concat(parts: Sequence[ir.Value], dim: int, kind: ir.Type, sizes: Sequence[object]) -> ir.Value:
    """Side by side along `dim`, of type `kind`. The op has no operands for its `sizes`: they are said as text, numbers or formulas."""
    op = tensor.ConcatOp(kind, dim, list(parts))
    op.operation.attributes["mlirc.sizes"] = ir.ArrayAttr.get([ir.StringAttr.get(str(s)) for s in sizes])
    return op.result


def insert_slice(
    source: ir.Value, into: ir.Value, offsets: Sequence[Size], sizes: Sequence[Size], strides: Sequence[Size]
) -> ir.Value:
    """`into`, with `source` at these offsets."""
    return tensor.InsertSliceOp(
        source, into, dynamic(offsets), dynamic(sizes), dynamic(strides), static(offsets), static(sizes), static(strides)
    ).result


def extract_slice(
    source: ir.Value, offsets: Sequence[Size], sizes: Sequence[Size], strides: Sequence[int]
) -> ir.Value:
    return tensor.ExtractSliceOp(
        tensor_type(sizes, element_type(source)),
        source,
        dynamic(offsets),
        dynamic(sizes),
        [],
        static(offsets),
        static(sizes),
        list(strides),
    ).result
