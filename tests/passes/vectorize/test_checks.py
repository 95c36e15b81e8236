"""Checks of indices that are gathered themselves: what they cost the gathers after them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.vectorize.kernels import built, kernel, stages

INDEX, ORDER = "tensor<4096xi64>", "tensor<1000xi32>"


def places(size: int, kind: str = "i32") -> str:
    """The elements of %i in some order, checked, as integers of a kind or as floats."""
    body = f"""%k = arith.index_cast %a0 : i32 to index
        %e = tensor.extract %i[%k] : {INDEX}
        %x = arith.index_cast %e : i64 to index
        %zero = arith.constant 0 : index
        %n = arith.constant {size} : index
        %negative = arith.cmpi slt, %x, %zero : index
        %end = arith.addi %x, %n : index
        %w = arith.select %negative, %end, %x : index
        %ok = arith.cmpi ult, %w, %n : index
        cf.assert %ok, "IndexError: index out of range in self"
        %p = arith.select %ok, %w, %zero : index
        %j = arith.index_cast %p : index to i32
        %o = arith.{"sitofp" if "f" in kind else "bitcast"} %j : i32 to {kind}"""
    made = f"tensor<1000x{kind}>"
    return kernel([("%i", INDEX), ("%order", ORDER)], generic("%r", [("%order", ORDER)], made, body=body), [("%r", made)], [["1"]])


@pytest.mark.parametrize("target", ["znver4", "x86-64-v4"])
def test_gathers_do_not_wait_for_the_checks_before_them(target):
    """The mask of a gather of all lanes is made by `kxnor %k0, %k0`, which reads k0; nothing there writes it."""
    loops = [loop for loop in re.split(r"\n\.LBB\w+:", stages(places(300), target)["asm"]) if "kxnor" in loop]
    assert loops
    for loop in loops:
        assert "vpgatherdq" in loop and not re.search(r"%k0$", loop, re.M), loop


@pytest.mark.parametrize("kind,vectors", [("i32", 2), ("f64", 1)])
def test_each_vector_of_indices_is_looked_at(kind, vectors):
    """Of 16 lanes they are two, of the 8 that numbers of 64 bits have one."""
    loop = stages(places(300, kind), "x86-64-v4")["vector"].split("scf.for")[2]
    of_an_element = loop.count("vector.reduction <and>") / max(loop.count("vector.gather"), 1)
    assert of_an_element == vectors


@pytest.mark.parametrize("kind", ["i32", "f64"])
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
def test_every_lane_is_checked(target, kind):
    """Of both vectors of 64 bits that make one of 32, and of the last ones, which are not full."""
    run = built(places(300, kind), target)
    order = np.random.default_rng(0).permutation(4096)[:1000].astype(np.int32)
    index = np.random.default_rng(1).integers(-300, 300, 4096)
    got = np.zeros(1000, np.int32 if kind == "i32" else np.float64)
    assert run(index, order, got) == 0
    np.testing.assert_array_equal(got, index[order] % 300)
    for at in (0, 3, 7, 8, 12, 15, 16, 40, 987, 992, 999):
        for bad in (300, -301, 1 << 40):
            wrong = index.copy()
            wrong[order[at]] = bad
            assert run(wrong, order, got) != 0
            assert got[at] == 0
