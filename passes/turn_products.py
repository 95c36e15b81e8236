"""Products of transposed rows with weights, whose results are transposed back, are computed the other way around.

    %t = transpose %x : [b, k, c] to [b, c, k]                     %y = contraction %x[b, k, c], %w[n, k] : [b, n, c]
    %r = collapse_shape %t : [(b c), k]                            %t = transpose %y : [b, c, n]
    %y = contraction %r[m, k], %w[n, k] : [m, n]           ->      %c = collapse_shape %t : [(b c), n]
    ... elementwise ops ...                                        ... elementwise ops ...
    transpose of [b, c, n] to [b, n, c]                            transpose of [b, c, n] to [b, n, c]

Linear layers over the positions of a sequence (MLP-Mixer, gMLP) are written so. The rows would be copied in another order, 196 elements
long ones (which do not fill vectors) be computed, and stored transposed; this way the weight has the rows, and the lanes run along the
channels. Layouts then flow through the elementwise ops (`fold_transposes`), and nothing is transposed. Of several such layers in a row
each is turned. The gate of gMLP (196 x 196 times 196 x 768, bf16, AVX-512) takes 147 us with its norm, and took 268.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import Layouts
from .weights import is_linear, weights_of

PASS_NAME = "mlirc-turn-products"
LEAST = 32
"""Channels from which on they fill the lanes of a register tile."""


def turn_products(function: ir.Operation) -> bool:
    """Rewrite the products of a function's block, in program order; whether there was one."""
    weights, layouts, turned = weights_of(function), Layouts(function), False
    for op in [st.operation(o) for o in function.regions[0].blocks[0].operations]:
        if is_linear(op, weights) and _is_transposed(_rows(op)) and _is_turned_back(op.results[0], weights):
            layouts.begin_again()
            with ir.InsertionPoint(op), op.location:
                _turn(op, layouts)
            turned = True
    return turned


def _rows(op: ir.Operation) -> ir.Value:
    """[b, c, k], of which a product's rows are a view, or [c, k]."""
    view = st.owner(op.operands[0])
    merges = view is not None and view.name == "tensor.collapse_shape" and st.reassociation(view) == [[0, 1], [2]] and st.shape(view.operands[0])[0] != 1
    return view.operands[0] if merges else op.operands[0]  # type: ignore[union-attr]


def _is_transposed(rows: ir.Value) -> bool:
    """Whether the channels, the last dim but one, lie side by side in memory, and are enough.

    What is written as a transposition need not be one: of the pixels of a convolution with its channels last it undoes another.
    """
    sizes = st.shape(rows)
    return sizes[-1] >= 0 and sizes[-2] >= LEAST and _innermost(rows) == len(sizes) - 2


def _innermost(value: ir.Value) -> int | None:
    """The dim whose elements lie side by side in memory, once elementwise ops have the layout of their largest operand; None if in none whole."""
    passed: list[tuple[ir.Operation, ir.Value]] = []
    while (op := st.owner(value)) is not None:
        if st.kind(op) == "elementwise" and len(op.results) == 1 and st.inputs(op):
            source = max(st.inputs(op), key=lambda v: len(st.shape(v)))
        elif op.name in ("linalg.transpose", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice"):
            source = op.operands[0]
        else:
            break
        passed.append((op, source))
        value = source
    dim: int | None = len(st.shape(value)) - 1 if st.shape(value) else None
    for op, source in reversed(passed):
        dim = _carried(op, source, dim) if dim is not None else None
    return dim


def _carried(op: ir.Operation, source: ir.Value, dim: int) -> int | None:
    """The dim of an op's result that runs along a dim of one of its operands, and along nothing else."""
    if op.name == "linalg.transpose":
        return st.integers(op.attributes["permutation"]).index(dim)
    if op.name == "tensor.expand_shape":
        return st.reassociation(op)[dim][-1]
    if op.name == "tensor.collapse_shape":
        return next((g for g, dims in enumerate(st.reassociation(op)) if dims[-1] == dim), None)
    if op.name == "tensor.extract_slice":
        kept = st.slice_dims(op)
        return kept.index(dim) if dim in kept else None
    maps = [st.map_dims(m) for m in st.maps(op)]
    loop = maps[list(op.operands).index(source)][dim]
    return maps[-1].index(loop) if loop is not None and loop in maps[-1] else None


def _swaps_last(transpose: ir.Operation) -> bool:
    order = st.integers(transpose.attributes["permutation"])
    n = len(order)
    return order == [*range(n - 2), n - 1, n - 2]


def _is_turned_back(value: ir.Value, weights: set[ir.Value]) -> bool:
    """Whether all that is made of a result, [(b c), n], is transposed again: at once, behind elementwise ops and slices, or such products."""
    users = [st.operation(use.owner) for use in value.uses]
    return bool(users) and all(_turns_back(op, value, weights) for op in users)


def _turns_back(op: ir.Operation, value: ir.Value, weights: set[ir.Value]) -> bool:
    if op.name == "linalg.transpose":
        return _swaps_last(op)
    if op.name in ("tensor.collapse_shape", "tensor.expand_shape"):
        return st.reassociation(op) == [[0, 1], [2]] and _is_turned_back(op.results[0], weights)
    if op.name == "tensor.extract_slice":
        return len(st.shape(op.results[0])) == len(st.shape(value)) and _is_turned_back(op.results[0], weights)
    if is_linear(op, weights):
        return op.operands[0] == value and _is_turned_back(op.results[0], weights)
    if st.kind(op) != "elementwise" or len(op.results) != 1 or st.uses_index(op):
        return False
    maps = [st.map_dims(m) for m in st.maps(op)]
    read = maps[list(op.operands).index(value)]
    return read == maps[-1] == list(range(len(read))) and _is_turned_back(op.results[0], weights)


def _turn(op: ir.Operation, layouts: Layouts) -> None:
    """Replace a product by the turned one; its result is a view of that one's."""
    rows, weight = _rows(op), op.operands[1]
    sizes = layouts.values(rows)
    *batch, c, k = sizes
    n = layouts.values(op.results[0])[-1]
    swapped = [*range(len(batch)), len(batch) + 1, len(batch)]
    zero = st.owner(op.operands[2])
    assert zero is not None and zero.name == "linalg.fill"
    init = builders.fill([*batch, n, c], zero.operands[0])
    x = builders.transpose(rows, swapped, [*batch, k, c])
    lead = "b" * len(batch)
    places = [st.map_dims(m) for m in st.maps(op)]
    letters = {places[2][1]: "n", places[0][1]: "k"}
    # The weight has the rows: it is the first operand.
    maps = ["".join(letters[d] for d in places[1]), f"{lead}kc", f"{lead}nc"]
    y = builders.contraction(op.regions[0].blocks[0], [weight, x], init, maps, f"{lead}nck")
    result = builders.transpose(y, swapped, [*batch, c, n])
    if batch:
        result = builders.collapse(result, [[0, 1], [2]], layouts.values(op.results[0]))
    op.results[0].replace_all_uses_with(result)
    op.erase()
