"""A product of rows in groups becomes that of one group, whose rows are as many as a symbol says.

    func @kernel(%x: tensor<64x8xf32>, %w: tensor<4x2x8x16xf32>, %ends: tensor<4xi64>) -> tensor<64x32xf32>
      generic {mlirc.ragged = [0, 3]} (s, n, k, g): total + (ends[g - 1] <= s < ends[g] ? x[s, k] * w[g, n floordiv 16, k, n mod 16] : 0)
    ->
    func @kernel(%x: tensor<?x8xf32>, %w: tensor<2x8x16xf32>, %ends: tensor<4xi64>, %rows: index) -> tensor<?x32xf32>
      generic (s, n, k): total + x[s, k] * w[n floordiv 16, k, n mod 16]

All strategies and vectorizers of products are good for that; `vectorize.groups_of_rows` calls it for one group after the other, with the
addresses of their rows and matrices. So it is where rows are summed up, and each group makes a matrix (the gradient of `w`). What is fused
behind the product narrows it: rows in no group are zero.

Runs when a kernel is read (`vectorize.kernel`), before its strategy is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..dialects import builders
from ..dialects.mlir import ir
from . import structure as st
from .layouts import row_major
from .outline import texts

PASS_NAME = "mlirc-ragged"

ROWS = "rows_of_a_group"
"""The name of the size that is a symbol."""

Number = int | str
"""Or the name of the argument that says it."""


@dataclass
class Ragged:
    """How a kernel of one group is called for all of them."""

    ends: int
    """The number of the argument that says where each group ends."""
    groups: int
    count: Number
    """Of all rows."""
    summed: bool
    """Groups without rows make something, too: zeros."""
    next_row: dict[int, Number] = field(default_factory=dict)
    """Of an argument or, behind all of these, a result: elements from one row to the next."""
    next_group: dict[int, Number] = field(default_factory=dict)
    """And from the matrix of one group to that of the next."""


def one_group(function: ir.Operation) -> Ragged | None:
    """Rewrite a kernel's function in place; None if it has no such product."""
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
        loops = st.ragged_loops(product)
        assert loops is not None
        self.rows, self.groups = loops
        maps = [st.map_dims(m) for m in st.maps(product)]
        self.made = maps[-1]
        """The loop over each dim of what is computed."""
        self.read = {self.arguments.index(v): dims for v, dims in zip(st.inputs(product), maps)}
        attributes = function.attributes
        given = ir.ArrayAttr(attributes["arg_attrs"]) if "arg_attrs" in attributes else [ir.DictAttr.get({})] * len(self.arguments)
        self.attributes = [{a.name: a.attr for a in ir.DictAttr(of_one)} for of_one in given]

    def run(self) -> Ragged:
        # Where they are the same number everywhere, each place that reads them may have a copy.
        ends = next(self.arguments.index(v) for v in st.captured(self.product) if st.is_tensor(v))
        found = Ragged(ends, st.shape(self.arguments[ends])[0], 0, self.rows not in self.made)
        for n, loops in self.read.items():
            sizes = self._sizes(n)
            if self.rows in loops:
                found.count = sizes[loops.index(self.rows)]
            of_one = [ROWS if loop == self.rows else size for size, loop in zip(sizes, loops) if loop != self.groups]
            self.attributes[n] |= {"mlirc.sizes": texts(of_one), "mlirc.strides": self._strides_of_one(n, loops, self._strides(n), found)}
            v = self.arguments[n]
            v.set_type(builders.tensor_type([builders.DYNAMIC if isinstance(s, str) else s for s in of_one], builders.element_type(v)))
        attributes = self.function.attributes
        results = enumerate(map(_numbers, ir.ArrayAttr(attributes["mlirc.result_strides"])), len(self.arguments))
        attributes["mlirc.result_strides"] = ir.ArrayAttr.get([self._strides_of_one(n, self.made, strides, found) for n, strides in results])
        self._compute(self.block.add_argument(ir.IndexType.get(), self.function.location))
        self.attributes.append({"mlirc.name": ir.StringAttr.get(ROWS)})
        attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in self.attributes])
        returned = list(st.operation(self.block.operations[len(self.block.operations) - 1]).operands)
        kind = ir.FunctionType.get([v.type for v in self.block.arguments], [v.type for v in returned])
        attributes["function_type"] = ir.TypeAttr.get(kind)
        return found

    def _strides_of_one(self, n: int, loops: Sequence[int | None], strides: Sequence[Number], found: Ragged) -> ir.Attribute:
        """Of an argument or a result, by the loops over its dims; how far it is to what the next group has goes to `found`."""
        for loop, steps in ((self.rows, found.next_row), (self.groups, found.next_group)):
            if loop in loops:
                steps[n] = strides[loops.index(loop)]
        return texts([step for step, loop in zip(strides, loops) if loop != self.groups])

    def _sizes(self, n: int) -> list[Number]:
        attributes = self.attributes[n]
        return _numbers(attributes["mlirc.sizes"]) if "mlirc.sizes" in attributes else list(st.shape(self.arguments[n]))

    def _strides(self, n: int) -> list[Number]:
        attributes = self.attributes[n]
        return _numbers(attributes["mlirc.strides"]) if "mlirc.strides" in attributes else list(row_major(st.shape(self.arguments[n])))  # type: ignore[arg-type]

    def _compute(self, rows: ir.Value) -> None:
        """The results of one group, all of which have the dims of the product."""
        for op in [st.operation(o) for o in self.block.operations][:-1]:
            if op.name == "tensor.empty":
                sizes = [rows if loop == self.rows else n for n, loop in zip(builders.sizes_of(op), self.made) if loop != self.groups]
                with ir.InsertionPoint(op):
                    new = builders.empty(sizes, builders.element_type(op.results[0]))
                op.results[0].replace_all_uses_with(new)
                op.erase()
            elif op.name in ("linalg.fill", "linalg.generic"):
                out = op.operands[len(op.operands) - 1]
                op.results[0].set_type(out.type)
                if op != self.product and op.name == "linalg.generic":
                    rank = len(st.shape(out))
                    _set_loops(op, [builders.identity(rank)] * len(op.operands), "p" * rank)
        loops = range(len(st.iterators(self.product)) - 1)
        kept = [[e for e, loop in zip(m.results, st.map_dims(m)) if loop != self.groups] for m in st.maps(self.product)]
        iterators = "".join("r" if st.iterators(self.product)[d] == "reduction" else "p" for d in loops)
        _set_loops(self.product, [ir.AffineMap.get(len(loops), 0, exprs) for exprs in kept], iterators)
        self._multiply_all()

    def _multiply_all(self) -> None:
        """The product without the question which rows are in a group, which the one choice between numbers asks (`frontend.ops.ragged`)."""
        del self.product.attributes[st.RAGGED]
        body = st.body_ops(self.product)
        (choice,) = [o for o in body if o.name == "arith.select" and not isinstance(o.results[0].type, ir.IndexType)]
        choice.results[0].replace_all_uses_with(choice.operands[1])
        kept = _behind(body[-1])
        for o in reversed(body):
            if o not in kept:
                o.erase()


def _set_loops(op: ir.Operation, maps: Sequence[ir.AffineMap], iterators: str) -> None:
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    op.attributes["iterator_types"] = builders.iterator_types(iterators)


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
