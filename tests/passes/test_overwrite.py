"""Kernels write to the inputs that they update, and to no others."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc.dialects.mlir import ir
from mlirc.frontend.report import listening
from mlirc.passes.fuse import fuse
from mlirc.passes.layouts import Layouts
from mlirc.passes.outline import outline
from mlirc.passes.overwrite import overwrite
from mlirc.tests.frontend.compare import OPTIONS, compare
from mlirc.tests.passes.graph_text import check, function, generic
from mlirc.tests.passes.vectorize.kernels import kernel, stages

R = torch.randn
T = "tensor<30x70xf32>"


def fused(main: ir.Operation) -> None:
    fuse(main, Layouts(main).shapes)
    overwrite(main)


def update(maps: list[str] | None = None, write: int = 0) -> str:
    body = generic("%n", [("%m", T), ("%g", T)], T, maps, body="arith.addf")
    body += generic("%c", [("%n", T)], T, body="%o = arith.addf %a0, %zero : f32", attributes=f"mlirc.write = {write} : i32")
    return function([("%m", T), ("%g", T)], "%zero = arith.constant -0.0 : f32\n" + body, [("%c", T)])


def test_an_update_is_written_at_once():
    check(update(), fused, "CHECK: %[[N:.*]] = linalg.generic\nCHECK-SAME: mlirc.overwrites = 0\nCHECK-NOT: linalg.generic\nCHECK: return %[[N]]")
    check(update(), lambda main: (fused(main), outline(main, [0])), "CHECK: call @k00_copy(%arg0, %arg1) {{.*}}mlirc.overwrites = array<i64: 0>")


@pytest.mark.parametrize("maps", [["i, j", "i, j", "i, j"], ["0, j", "i, j", "i, j"]])
def test_an_input_that_is_read_elsewhere_is_copied_to(maps):
    """The second time, a row of it is read for all rows."""
    line = "CHECK: mlirc.overwrites" if maps[0] == "i, j" else "CHECK-NOT: mlirc.overwrites\nCHECK: mlirc.write"
    check(update(maps), fused, line)


def test_everything_is_computed_before_the_first_store():
    """Another result may need what is overwritten."""
    body = generic("%a", [("%y", T)], T, body="math.absf") + generic("%b", [("%x", T), ("%y", T)], T, body="arith.addf")
    text = kernel([("%x", T), ("%y", T)], body, [("%a", T), ("%b", T)], [[70, 1], [70, 1]])
    for attribute, order in (("", ["load", "store", "load", "store"]), ("mlirc.overwrites, ", ["load", "load", "store", "store"])):
        code = stages(text.replace("mlirc.result_strides", attribute + "mlirc.result_strides", 1), "x86-64-v4")["vector"]
        assert re.findall(r"vector\.(load|store)", code)[:4] == order


def momentum(p, g, m):
    m.mul_(0.9).add_(g)
    p.add_(m, alpha=-1e-3)


def swap(a, b):
    t = a.clone()
    a.copy_(b)
    b.copy_(t)


def old_values(a, b):
    c = a * 2
    a.copy_(b + 1)
    return c, a.sum()


def chain(a, b, c):
    a.add_(b)
    b.mul_(a)
    c.copy_(a * b)
    return a.sum()


def columns(a, b):
    a.mul_(2)
    b.copy_(a[:, :2] * b)
    return b * 1


CASES = {
    "momentum": (momentum, [(77, 33)] * 3, 1),
    "one element": (momentum, [(1,)] * 3, 1),
    "no elements": (momentum, [(0, 3)] * 3, 1),
    "swap": (swap, [(17, 33)] * 2, 3),
    "old values": (old_values, [(17, 33)] * 2, None),
    "filled": (lambda a: (a * 3, a.fill_(2.0))[0], [(3, 5)], None),
    "transposed": (lambda a: a.add_(a.t().clone()), [(33, 33)], 2),
    "flipped": (lambda a: a.copy_(a.flip(0) + 1), [(33, 17)], 2),
    "shifted": (lambda a: a[1:].add_(a[:-1].clone()), [(33, 17)], None),
    "centred": (lambda a: a.sub_(a.mean(1, keepdim=True)), [(33, 17)], 2),
    "returned": (lambda a: a.add_(1), [(33, 17)], 1),
    "chain": (chain, [(33, 17)] * 3, None),
    "columns": (columns, [(400, 3), (400, 2)], None),
    "broadcast": (lambda a, b: a.add_(b), [(40, 33), (33,)], 1),
    "gathered": (lambda a, b: a.add_(a[b[0].int().remainder(7)]), [(7, 7), (3, 7)], 2),
}


def _updates(name, order, dynamic):
    f, shapes, calls = CASES[name]
    with listening() as graphs:
        compare(f, *(order(R(s)) for s in shapes), dynamic=dynamic)
    assert calls is None or [g.calls for g in graphs] == [calls]


@pytest.mark.parametrize("name", CASES)
def test_updates(name):
    _updates(name, lambda x: x, dynamic=False)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["momentum", "swap", "chain", "columns"])
def test_updates_of_transposed_tensors_and_symbolic_sizes(name, dynamic):
    _updates(name, lambda x: x.t().contiguous().t() if x.dim() == 2 else x, dynamic)


def test_an_input_is_as_it_was_if_something_fails():
    def f(a, b, i):
        a.mul_(2)
        return b[i]

    a, b = R(5, 7), R(5, 7)
    before = a.clone()
    compiled = torch.compile(f, backend="mlirc", options=OPTIONS)
    with pytest.raises(IndexError):
        compiled(a, b, torch.tensor([0, 5]))
    assert torch.equal(a, before)
    assert torch.equal(compiled(a, b, torch.tensor([0, 4])), b[[0, 4]]) and torch.equal(a, before * 2)
