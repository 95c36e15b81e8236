"""How much a kernel computes, counted from its linalg ops: what the vector units need at least, however the loops are written.

    %3 = generic { %a = mulf %x, %y; %b = addf %a, %z; %c = math.exp %b }  over 128x768

is 128 * 768 / lanes times (one product with a sum, and the arithmetic of `exp`). Every element counts once: what a kernel
computes several times, or in lanes that are not used, is its own loss. Addresses, loads and stores do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LANES = 16
"""Lanes of the vectors that ops are counted in; those of twice the width count as two."""


@dataclass
class Work:
    """Vector ops of `LANES` lanes of 32 bits: `products` (and multiply-adds), `divisions` (and square roots), and `all` of them."""

    products: float = 0.0
    divisions: float = 0.0
    all: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.products + other.products, self.divisions + other.divisions, self.all + other.all)

    def times(self, n: float) -> Work:
        return Work(self.products * n, self.divisions * n, self.all * n)


class Rates:
    """What one core does of such ops in a second, measured once."""

    def __init__(self) -> None:
        from . import limits

        self.products, self.divisions, self.all = (limits.vector_ops(kind) * limits.lanes() / LANES for kind in ("fma", "fdiv", "xor"))

    def seconds(self, work: Work) -> float:
        """The least time for the work: divisions keep the unit that products need."""
        return max(work.products / self.products + work.divisions / self.divisions, work.all / self.all)


def count(text: str) -> Work | None:
    """The work of a kernel, given as the text of its module; None where its sizes are symbols."""
    from mlirc.dialects.mlir import ir
    from mlirc.dialects.own import load_for
    from mlirc.passes.domain import loop_sizes
    from mlirc.passes.vectorize import KernelFunction

    with ir.Context(), ir.Location.unknown():
        load_for(text)
        module = ir.Module.parse(text)
        kernel = KernelFunction.of(module)
        work = Work()
        for op in kernel.domain.loops:
            if op.name != "linalg.generic":
                continue
            n = 1
            for size in loop_sizes(op, kernel.shapes):
                if not isinstance(size, int):
                    return None
                n *= size
            work += _body(op).times(n / LANES)
        return work


def _body(op: Any) -> Work:
    """The ops of a region on vectors, after the expansion of the functions in it."""
    from mlirc.dialects.mlir import PassManager, func, ir
    from mlirc.lowering.target import Target
    from mlirc.passes import structure as st
    from mlirc.passes.expand_math import expand_math

    module = ir.Module.create()

    def vector(kind: Any) -> Any:
        return ir.VectorType.get([LANES], kind)

    block = op.regions[0].blocks[0]
    inner = [o for o in st.body_ops(op) if o.name not in ("linalg.yield", "cf.assert")]
    made = {r for o in inner for r in o.results if o.name not in ("linalg.index", "tensor.extract")}
    # What an op of the region gets from elsewhere is an argument; constants stay constants.
    given: dict[Any, None] = dict.fromkeys(v for o in inner for v in o.operands if v not in made and not st.is_tensor(v))
    yielded = [v for v in st.body_ops(op)[-1].operands if v in made]
    constants = {v: st.owner(v) for v in given if (p := st.owner(v)) is not None and p.name == "arith.constant"}
    arguments = [v for v in given if v not in constants]
    with ir.InsertionPoint(module.body):
        f = func.FuncOp("f", ir.FunctionType.get([vector(v.type) for v in arguments], [vector(v.type) for v in yielded]))
    with ir.InsertionPoint(f.add_entry_block()):
        env = dict(zip(arguments, f.arguments))

        def value(v: Any) -> Any:
            if v not in env:
                attribute = ir.DenseElementsAttr.get_splat(vector(v.type), constants[v].attributes["value"])
                env[v] = ir.Operation.create("arith.constant", results=[vector(v.type)], attributes={"value": attribute}).results[0]
            return env[v]

        for o in inner:
            if o.name in ("linalg.index", "tensor.extract"):
                continue
            if o.name == "arith.constant":
                constants[o.results[0]] = o
                continue
            attributes = {a if isinstance(a, str) else a.name: o.attributes[a if isinstance(a, str) else a.name] for a in o.attributes}
            new = ir.Operation.create(o.name, results=[vector(r.type) for r in o.results], operands=[value(v) for v in o.operands], attributes=attributes)
            env.update(zip(o.results, new.results))
        func.ReturnOp([value(v) for v in yielded])
    assert block is not None
    expand_math(module, Target.host())
    PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
    work = Work()
    for o in f.body.blocks[0].operations:
        work += _op(st.operation(o))
    return work


_FREE = ("arith.constant", "func.return", "vector.broadcast", "arith.bitcast", "vector.bitcast", "arith.index_cast", "arith.index_castui")
_PRODUCTS = ("arith.mulf", "math.fma", "arith.muli")
_DIVISIONS = ("arith.divf", "math.sqrt", "arith.remf")


def _op(op: Any) -> Work:
    from mlirc.dialects.mlir import ir
    from mlirc.passes import structure as st

    values = [*op.operands, *op.results]
    kinds = [ir.VectorType(v.type).element_type for v in values if isinstance(v.type, ir.VectorType)]
    if op.name in _FREE or any(isinstance(k, ir.IndexType) for k in kinds):
        return Work()
    width = 2.0 if any(getattr(k, "width", 32) == 64 for k in kinds) else 1.0
    if op.name == "arith.mulf" and len(uses := list(op.results[0].uses)) == 1:
        user = st.operation(uses[0].owner)
        if user.name in ("arith.addf", "arith.subf"):
            return Work()  # one instruction with the sum
    fused = op.name in ("arith.addf", "arith.subf") and any((p := st.owner(v)) is not None and p.name == "arith.mulf" for v in op.operands)
    return Work(width if op.name in _PRODUCTS or fused else 0.0, width if op.name in _DIVISIONS else 0.0, width)
