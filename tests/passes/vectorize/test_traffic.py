"""Bytes moved: norms, softmax, rotary embedding and SwiGLU are one kernel, which takes each element of its inputs from memory once
and stores each element of its outputs once.

Counted from the kernel's vector IR: its loops are walked over with numbers for their indices, and what is loaded and stored is
noted. A row that later phases read again is in the cache and counts once; what a later row reads again counts again, except for
what all rows share (weights, the tables of a rotary embedding).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mlirc import driver
from mlirc.dialects.mlir import ir
from mlirc.lowering.target import Target
from mlirc.passes import structure as st

ROWS, WIDTH = 12, 80


def rotary(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def rms_norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


CASES: dict[str, Any] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b), [(ROWS, WIDTH), (WIDTH,), (WIDTH,)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(ROWS, WIDTH)]),
    "rms_norm": (rms_norm, [(ROWS, WIDTH), (WIDTH,)]),
    "swiglu": (lambda x, y: F.silu(x) * y, [(ROWS, WIDTH), (ROWS, WIDTH)]),
}


class Walk:
    """Runs the index arithmetic and the loops of a body; `loads` and `stores` count (slot, element, outermost iteration)."""

    def __init__(self, body: ir.Operation, trip: int) -> None:
        self.loads: Counter[tuple[int, int, int]] = Counter()
        self.stores: Counter[tuple[int, int, int]] = Counter()
        self.row = -1
        block = body.regions[0].blocks[0]
        self.values: dict[ir.Value, Any] = {block.arguments[0]: 0, block.arguments[1]: trip}
        self.slots: dict[ir.Value, int] = {}
        self.block(block, 0)

    def block(self, block: ir.Block, depth: int) -> None:
        for o in block.operations:
            self.op(st.operation(o), depth)

    def op(self, op: ir.Operation, depth: int) -> None:
        get = self.values.get
        if op.name == "scf.for":
            begin, end, step = (self.values[v] for v in list(op.operands)[:3])
            inner = op.regions[0].blocks[0]
            for i in range(begin, end, step):
                self.row = i if depth == 0 else self.row
                self.values[inner.arguments[0]] = i
                self.block(inner, depth + 1)
        elif op.name == "builtin.unrealized_conversion_cast":
            self.values[op.results[0]] = get(op.operands[0])
            if isinstance(op.results[0].type, ir.MemRefType):
                self.slots[op.results[0]] = len(self.slots)
        elif op.name == "arith.constant" and isinstance(op.results[0].type, ir.IndexType):
            self.values[op.results[0]] = ir.IntegerAttr(op.attributes["value"]).value
        elif op.name in INDEX_OPS and isinstance(op.results[0].type, ir.IndexType):
            self.values[op.results[0]] = INDEX_OPS[op.name](*(self.values[v] for v in op.operands))
        elif op.name == "vector.constant_mask":
            self.values[op.results[0]] = list(op.attributes["mask_dim_sizes"])[0]
        elif op.name == "vector.create_mask":
            self.values[op.results[0]] = get(op.operands[0], 1)
        elif op.name in ("vector.load", "vector.maskedload", "memref.load"):
            self.touch(self.loads, op.operands[0], op.operands[1], op.results[0].type, op.operands[2] if "masked" in op.name else None)
        elif op.name in ("vector.store", "memref.store"):
            self.touch(self.stores, op.operands[1], op.operands[2], op.operands[0].type, None)
        elif op.name == "vector.maskedstore":
            self.touch(self.stores, op.operands[0], op.operands[1], op.operands[3].type, op.operands[2])
        else:
            assert "gather" not in op.name and "scatter" not in op.name

    def touch(self, counter: Counter, place: ir.Value, index: ir.Value, kind: ir.Type, mask: ir.Value | None) -> None:
        if place in self.slots:  # else scratch
            lanes = ir.VectorType(kind).shape[0] if isinstance(kind, ir.VectorType) else 1
            lanes = min(lanes, self.values[mask]) if mask is not None else lanes
            counter.update((self.slots[place], self.values[index] + i, self.row) for i in range(lanes))


INDEX_OPS: dict[str, Any] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.select": lambda c, a, b: a,
}


def walked(text: str) -> Walk:
    found: list[Walk] = []

    def look(name: str, what: Any) -> None:
        if name == "vector":
            ops = [st.operation(o) for o in what.body.operations]
            entry = next(o for o in ops if ir.StringAttr(o.attributes["sym_name"]).value == "k")
            constants: list[int] = []

            def collect(op: ir.Operation) -> ir.WalkResult:
                if op.name == "arith.constant" and str(op.results[0].type) == "i64":
                    constants.append(ir.IntegerAttr(op.attributes["value"]).value)
                return ir.WalkResult.ADVANCE

            entry.walk(collect)
            found.append(Walk(ops[0], constants[1]))  # zero, the number of iterations, the grain

    driver.compile_kernel(text, Target.parse("x86-64-v4"), "k", look)
    return found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_inputs_and_outputs_move_once(name, dtype, monkeypatch):
    function, shapes = CASES[name]
    arguments = [torch.randn(s, dtype=dtype) for s in shapes]
    walk = only_kernel(function, arguments, monkeypatch)
    largest = max(a.numel() for a in arguments)
    loaded, stored = set(walk.loads), set(walk.stores)
    per_slot = Counter(slot for slot, _, _ in loaded)
    # Of each large input every element, in one row each.
    assert [per_slot[i] for i, a in enumerate(arguments) if a.numel() == largest] == [a.numel() for a in arguments if a.numel() == largest]
    assert len({(slot, at) for slot, at, _ in loaded}) == sum(a.numel() for a in arguments)
    assert len(stored) == largest and max(walk.stores.values()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_rotary_embedding(dtype, monkeypatch):
    """One kernel. What a row takes from the other half of x, it has just read: x, and its halves, are three slots of one memory."""
    x, table = torch.randn(3, ROWS, 64, dtype=dtype), torch.randn(ROWS, 64, dtype=dtype)
    walk = only_kernel(rotary, [x, table, table + 1], monkeypatch)
    per_slot = sorted(Counter(slot for slot, _, _ in walk.loads).values())
    assert per_slot == [x.numel() // 2, x.numel() // 2, x.numel(), x.numel(), x.numel()]
    assert max(walk.loads.values()) == 1 and set(walk.stores.values()) == {1} and len(walk.stores) == x.numel()


def only_kernel(function: Any, arguments: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Walk:
    texts: list[str] = []
    compile_kernels = driver.compile_kernels

    def record(kernels, *rest):
        texts.extend(k.text for k in kernels)
        return compile_kernels(kernels, *rest)

    monkeypatch.setattr(driver, "compile_kernels", record)
    torch._dynamo.reset()
    torch.compile(function, backend="mlirc")(*arguments)
    assert len(texts) == 1
    return walked(texts[0])
