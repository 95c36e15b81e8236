"""A product of rows in groups becomes that of one group, whose rows are as many as a symbol says.

    func @kernel(%x: tensor<64x8xf32>, %w: tensor<4x2x8x16xf32>, %ends: tensor<4xi64>) -> tensor<64x32xf32>
      generic {mlirc.ragged = 3} (s, n, k, g): total + (ends[g - 1] <= s < ends[g] ? x[s, k] * w[g, n floordiv 16, k, n mod 16] : 0)
    ->
    func @kernel(%x: tensor<?x8xf32>, %w: tensor<2x8x16xf32>, %ends: tensor<4xi64>, %rows: index) -> tensor<?x32xf32>
      generic (s, n, k): total + x[s, k] * w[n floordiv 16, k, n mod 16]

All strategies and vectorizers of products are good for that; `vectorize.groups_of_rows` calls it for one group after the other, with the
addresses of their rows and matrices. What is fused behind the product narrows it: rows behind the last group are zero.

Runs when a kernel is read (`vectorize.kernel`), before its strategy is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dialects import builders
from ..dialects.mlir import ir
from ..errors import CompileError
from . import structure as st
from .layouts import row_major
from .outline import texts

PASS_NAME = "mlirc-ragged"

ROWS = "rows_of_a_group"
"""The name of the size that is a symbol."""

Number = int | str
"""Or the name of the argument that says it."""


@dataclass(frozen=True)
class Ragged:
    """How a kernel of one group is called for all of them. What is said of arguments are their numbers."""

    ends: int
    """Where each group ends, a tensor of integers."""
    groups: int
    matrices: int
    """What has a matrix for each group."""
    next_matrix: Number
    """Elements from one of them to the next."""
    rows: int
    """What has the rows that are multiplied."""
    next_row: Number
    count: Number
    """Of all rows."""


def one_group(function: ir.Operation) -> Ragged | None:
    """Rewrite a kernel's function in place; None if it has no such product. Raises CompileError for one that is not as `fuse` leaves it."""
    block = function.regions[0].blocks[0]
    product = next((op for op in map(st.operation, block.operations) if st.RAGGED in op.attributes), None)
    if product is None:
        return None
    with function.context, function.location:
        return _Rewriting(function, product).run()


class _Rewriting:
    def __init__(self, function: ir.Operation, product: ir.Operation) -> None:
        self.function = function
        self.block = function.regions[0].blocks[0]
        self.product = product
        self.arguments = list(self.block.arguments)
        attributes = function.attributes
        given = ir.ArrayAttr(attributes["arg_attrs"]) if "arg_attrs" in attributes else [ir.DictAttr.get({})] * len(self.arguments)
        self.attributes = [{a.name: a.attr for a in ir.DictAttr(of_one)} for of_one in given]

    def run(self) -> Ragged:
        rows, matrices = (self.arguments.index(v) for v in list(self.product.operands)[:2])
        (ends,) = [self.arguments.index(v) for v in st.captured(self.product) if st.is_tensor(v)]
        read, multiplied, stored = map(st.map_dims, st.maps(self.product))
        if stored[0] is None or stored[0] not in read:
            raise CompileError("a product of rows in groups without rows")
        over_rows, over_groups = read.index(stored[0]), multiplied.index(st.ragged_loop(self.product))
        sizes, steps = self._sizes(rows), self._strides(rows)
        of_matrices, between = self._sizes(matrices), self._strides(matrices)
        groups, count = of_matrices.pop(over_groups), sizes[over_rows]
        assert isinstance(groups, int)
        found = Ragged(ends, groups, matrices, between.pop(over_groups), rows, steps[over_rows], count)
        sizes[over_rows] = ROWS
        self._retype(rows, sizes, steps)
        self._retype(matrices, of_matrices, between)
        self._fewer_rows(self.block.add_argument(ir.IndexType.get(), self.function.location))
        self._without_groups(over_groups)
        self.attributes.append({"mlirc.name": ir.StringAttr.get(ROWS)})
        self.function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in self.attributes])
        results = list(st.operation(self.block.operations[len(self.block.operations) - 1]).operands)
        kind = ir.FunctionType.get([v.type for v in self.block.arguments], [v.type for v in results])
        self.function.attributes["function_type"] = ir.TypeAttr.get(kind)
        return found

    def _sizes(self, n: int) -> list[Number]:
        attributes = self.attributes[n]
        return _numbers(attributes["mlirc.sizes"]) if "mlirc.sizes" in attributes else list(st.shape(self.arguments[n]))

    def _strides(self, n: int) -> list[Number]:
        attributes = self.attributes[n]
        return _numbers(attributes["mlirc.strides"]) if "mlirc.strides" in attributes else list(row_major(st.shape(self.arguments[n])))  # type: ignore[arg-type]

    def _retype(self, n: int, sizes: Sequence[Number], strides: Sequence[Number]) -> None:
        self.attributes[n] |= {"mlirc.sizes": texts(sizes), "mlirc.strides": texts(strides)}
        v = self.arguments[n]
        v.set_type(builders.tensor_type([builders.DYNAMIC if isinstance(s, str) else s for s in sizes], builders.element_type(v)))

    def _fewer_rows(self, rows: ir.Value) -> None:
        """The first dim of what is computed has so many elements."""
        for op in [st.operation(o) for o in self.block.operations][:-1]:
            if op.name == "tensor.empty":
                with ir.InsertionPoint(op):
                    new = builders.empty([rows, *builders.sizes_of(op)[1:]], builders.element_type(op.results[0]))
                op.results[0].replace_all_uses_with(new)
                op.erase()
            elif op.name in ("linalg.fill", "linalg.generic"):
                op.results[0].set_type(op.operands[len(op.operands) - 1].type)

    def _without_groups(self, over_groups: int) -> None:
        """The product without the loop over groups, the last one, and without the question which of them has a row."""
        op, n = self.product, len(st.iterators(self.product)) - 1
        dims = [list(m.results) for m in st.maps(op)]
        del dims[1][over_groups]
        iterators = "".join("r" if it == "reduction" else "p" for it in st.iterators(op)[:n])
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get(n, 0, exprs)) for exprs in dims])
        op.attributes["iterator_types"] = builders.iterator_types(iterators)
        del op.attributes[st.RAGGED]
        body = st.body_ops(op)
        (choice,) = [o for o in body if o.name == "arith.select" and not isinstance(o.results[0].type, ir.IndexType)]
        choice.results[0].replace_all_uses_with(choice.operands[1])
        kept = _behind(body[-1])
        for o in reversed(body):
            if o not in kept:
                o.erase()


def _behind(op: ir.Operation) -> set[ir.Operation]:
    """An op, and all of its block that it is computed from."""
    found, todo = {op}, [op]
    while todo:
        for v in todo.pop().operands:
            p = st.owner(v)
            if p is not None and p not in found and p.operation.block == op.block:
                found.add(p)
                todo.append(p)
    return found


def _numbers(attribute: ir.Attribute) -> list[Number]:
    names = [ir.StringAttr(s).value for s in ir.ArrayAttr(attribute)]
    return [int(t) if t.lstrip("-").isdigit() else t for t in names]
