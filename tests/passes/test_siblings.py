"""Products of the same rows in one kernel: which, why not, and that they are as right as apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mlirc
from mlirc import driver
from mlirc.benchmarks.verdict import reference, relative_error, same, tensors
from mlirc.lowering.caches import Caches
from mlirc.lowering.target import Target
from mlirc.passes import siblings
from mlirc.passes.fuse import fuse
from mlirc.passes.layouts import Layouts
from mlirc.passes.siblings import mark_siblings
from mlirc.passes.strategy import pack_shape
from mlirc.passes.strategy.siblings import Sizes, why_apart
from mlirc.tests.frontend.compare import compare
from mlirc.tests.passes.graph_text import check, function, generic

TARGET = Target.parse("x86-64-v4")
R = torch.randn


def linear(name: str, x: str, w: str, k: int, n: int, m: int = 1) -> str:
    """%name[m, n] = %x[m, k] %w[n, k]."""
    body = "%product = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %product : f32"
    kinds = f"tensor<{m}x{k}xf32>", f"tensor<{n}x{k}xf32>", f"tensor<{m}x{n}xf32>"
    return generic(name, [(x, kinds[0]), (w, kinds[1])], kinds[2], ["i, k", "j, k", "i, j"], body, "ppr", "ijk", "0.0", "contraction")


def arguments(k: int, *columns: int) -> list[tuple[str, str]]:
    return [("%x", f"tensor<1x{k}xf32>"), *((f"%w{i}", f"tensor<{n}x{k}xf32>") for i, n in enumerate(columns))]


def marked(f):  # noqa: ANN001, ANN201
    mark_siblings(f, TARGET)


def fused(f):  # noqa: ANN001, ANN201
    mark_siblings(f, TARGET)
    fuse(f, Layouts(f).shapes)


def test_products_of_the_same_rows_are_one_kernel():
    row = "tensor<1x48xf32>"
    body = linear("%q", "%x", "%w0", 32, 48) + generic("%a", [("%q", row)], row, body="math.absf")
    body += linear("%k", "%x", "%w1", 32, 16) + linear("%v", "%x", "%w2", 32, 16)
    check(
        function(arguments(32, 48, 16, 16), body, [("%a", row), ("%k", "tensor<1x16xf32>"), ("%v", "tensor<1x16xf32>")]),
        fused,
        """
        CHECK: mlirc.group = [[G:[0-9]+]] : i32, mlirc.kind = "contraction", mlirc.siblings = 0 : i32
        CHECK: mlirc.group = [[G]] : i32
        CHECK: math.absf
        CHECK: mlirc.group = [[G]] : i32, mlirc.kind = "contraction", mlirc.siblings = 0 : i32
        CHECK: mlirc.group = [[G]] : i32, mlirc.kind = "contraction", mlirc.siblings = 0 : i32
        """,
    )


def test_what_joins_them_is_in_the_kernel():
    row = "tensor<1x48xf32>"
    body = linear("%g", "%x", "%w0", 32, 48) + generic("%a", [("%g", row)], row)
    body += linear("%u", "%x", "%w1", 32, 48) + generic("%m", [("%a", row), ("%u", row)], row, body="arith.mulf")
    check(
        function(arguments(32, 48, 48), body, [("%m", row)]),
        fused,
        """
        CHECK-COUNT-4: mlirc.group = [[G:[0-9]+]] : i32
        CHECK-NOT: mlirc.unfused = "two anchors"
        """,
    )


@pytest.mark.parametrize("case", ["rows", "reduction", "weights along the columns"])
def test_no_siblings(case):
    args = arguments(32, 48, 48)
    second = linear("%k", "%x", "%w1", 32, 48)
    if case == "rows":
        args.append(("%y", "tensor<1x32xf32>"))
        second = linear("%k", "%y", "%w1", 32, 48)
    elif case == "reduction":
        args[2:] = [("%w1", "tensor<48x16xf32>"), ("%y", "tensor<1x16xf32>")]
        second = linear("%k", "%y", "%w1", 16, 48)
    else:
        args[2] = ("%w1", "tensor<32x48xf32>")
        body = "%product = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %product : f32"
        second = generic("%k", [args[0], args[2]], "tensor<1x48xf32>", ["i, k", "k, j", "i, j"], body, "ppr", "ijk", "0.0", "contraction")
    text = function(args, linear("%q", "%x", "%w0", 32, 48) + second, [("%q", "tensor<1x48xf32>"), ("%k", "tensor<1x48xf32>")])
    check(text, marked, "CHECK-NOT: mlirc.siblings")


def test_a_gate_for_what_the_others_lead_to_keeps_its_own_kernel():
    """The gate's kernel takes the multiplication in, which comes after a kernel that reads the others."""
    row = "tensor<1x32xf32>"
    body = "".join(linear(f"%{n}", "%x", f"%w{i}", 32, 32) for i, n in enumerate("qkg"))
    body += generic("%s", [("%q", row), ("%k", row)], "tensor<1xf32>", ["i, j", "i, j", "i"], "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %m, %a2 : f32", "pr", "ij", "0.0")
    body += generic("%m", [("%s", "tensor<1xf32>"), ("%g", row)], row, ["i", "i, j", "i, j"], "arith.mulf")
    check(
        function(arguments(32, 32, 32, 32), body, [("%m", row)]),
        marked,
        """
        CHECK: mlirc.siblings = 0
        CHECK: mlirc.siblings = 0
        CHECK: mlirc.apart = "its epilogue needs what another one leads to"
        """,
    )


@pytest.mark.parametrize(
    ("sizes", "together", "reason"),
    [
        (Sizes(1, [1024, 256, 256], 1024, 16, True), False, None),
        (Sizes(None, [256, 256], 256, 32, False), False, None),
        (Sizes(128, [768, 768, 768], 768, 32, False), False, "128 x 768 x 768 multiplications: large enough on their own"),
        (Sizes(1, [688, 688], 256, 16, True), True, None),
        (Sizes(1, [2816, 2816], 1024, 16, True), True, "they meet, and 11264 KB of weights are better read in one stream each"),
        (Sizes(32, [256, 256], 512, 16, True), True, "they meet, and the kernels are large enough on their own"),
        (Sizes(None, [64, 64], 64, 32, False), True, "they meet, and the kernels are large enough on their own"),
    ],
)
def test_what_pays(sizes, together, reason):
    assert why_apart(sizes, together, Target.parse("znver4")) == reason


def test_tile_registers_keep_them_apart():
    assert why_apart(Sizes(32, [64, 64], 64, 16, True), False, Target.parse("sapphirerapids"))
    assert why_apart(Sizes(32, [64, 64], 64, 16, True), False, Target.parse("znver4")) is None


@pytest.fixture
def kernels(monkeypatch):
    """The kernels that are compiled, all siblings together."""
    monkeypatch.setattr(siblings, "why_apart", lambda *_: None)
    names: list[str] = []
    compile_kernels = driver.compile_kernels
    monkeypatch.setattr(driver, "compile_kernels", lambda ks, *a, **k: names.extend(x.name for x in ks) or compile_kernels(ks, *a, **k))
    return names


def agrees(module: nn.Module, x: torch.Tensor, dtype: torch.dtype, dynamic: bool, target: str = "host") -> None:
    """The module compiled does what it does in eager mode, as judged against fp64."""
    module, x = module.eval().to(dtype), x.to(dtype)
    with torch.no_grad():
        f = torch.compile(module, backend="mlirc", dynamic=dynamic, options={"strict": True, "target": target})
        eager, got, exact = (tensors(r) for r in (module(x), f(x), reference(module, (x,), {})))
    assert same(eager, got, exact, dtype)
    assert relative_error(exact, got) < (1e-5 if dtype == torch.float32 else 0.02)


def products(names: list[str]) -> int:
    return sum(("linear" in n or "matmul" in n) and "pack" not in n for n in names)


BIASES = {"all": (True, True, True), "none": (False, False, False), "some": (False, True, False)}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("rows", "k", "columns", "bias"),
    [
        (1, 33, (33, 33, 33), "all"), (1, 64, (64, 17, 17), "some"), (3, 17, (33, 17, 48), "some"), (17, 33, (100, 33, 33), "none"),
        (33, 17, (17, 33, 64), "all"), (100, 64, (33, 65, 97), "some"),
    ],
)  # fmt: skip
def test_one_kernel_is_as_right_as_several(kernels, rows, k, columns, bias, dynamic, dtype):
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(k, n, bias=b) for n, b in zip(columns, BIASES[bias]))

        def forward(self, x):
            q, kk, v = (layer(x) for layer in self.layers)
            return F.gelu(q), kk, kk.abs().t(), v.view(x.shape[0], -1, 1)  # the second one has two readers

    agrees(Three(), R(rows, k), dtype, dynamic)
    widens = dtype == torch.bfloat16 and (rows == 1 or "bf16" not in pack_shape(Target.host()).words)  # its rows, in a kernel before
    assert products(kernels) <= 1 + widens


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize(("rows", "k", "columns"), [(1, 33, 33), (1, 64, 100), (3, 17, 17), (17, 64, 65), (33, 33, 48), (100, 17, 33)])
def test_gate_and_up(kernels, rows, k, columns, target, dynamic, dtype):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(k, columns, bias=False), nn.Linear(k, columns)

        def forward(self, x):
            return F.silu(self.gate(x)) * self.up(x)

    agrees(Gated(), R(rows, k), dtype, dynamic, target)
    assert len([n for n in kernels if "silu" in n]) == 1


def test_gate_up_and_others(kernels):
    """Products that meet beside some that do not."""
    torch.manual_seed(0)
    for rows in (1, 5, 40):
        args = [R(rows, 33), R(40, 33), R(40, 33), R(17, 33), R(65, 33), R(40, 33)]
        compare(lambda x, g, u, a, b, c: (F.linear(x, a), (F.linear(x, g).relu() * F.linear(x, u)).abs() + F.linear(x, c), F.linear(x, b)), *args)


def test_a_weight_that_two_siblings_share(kernels):
    w, x = R(40, 33), R(4, 33)
    compare(lambda x, w, b: (F.linear(x, w, b), F.linear(x, w).sigmoid(), F.linear(x, w[:20]), F.linear(x, w[20:])), x, w, R(40))


@pytest.mark.parametrize("n", [2, 3, 17, 33])
def test_a_product_of_rows_with_themselves(kernels, n):
    """The rows are no operand of their own, as the others' weights are."""
    compare(lambda a, b, c: (a @ a.mT, a @ b.mT, a @ c.mT), R(n, 5), R(7, 5), R(9, 5))
    compare(lambda a, b, c: (a @ b.mT, a @ a.mT, a @ c.mT), R(n, 5), R(7, 5), R(9, 5))


@pytest.mark.parametrize("n", [2, 3, 17, 33])
def test_an_epilogue_that_reads_a_weight(kernels, n):
    """That of its own product, and that of another one."""
    args = [R(n, n) for _ in range(4)]
    compare(lambda x, a, b, c: (x @ a.mT + a + c, x @ b.mT + a - b, x @ c.mT * b + x), *args)
    compare(lambda x, a, b, c: ((x @ a.mT).relu() * (x @ b.mT) + a + b, x @ c.mT + a), *args)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 64), nn.Linear(32, 32, bias=False), nn.Linear(32, 32)
        self.out = nn.Linear(64, 32)

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], -1, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(*x.shape[:2], -1))


def test_weights_that_change(kernels):
    torch.manual_seed(0)
    net = Attention().eval()
    f = torch.compile(net, backend="mlirc", options={"strict": True})
    x = R(2, 7, 32)
    with torch.no_grad():
        for change in (lambda: None, lambda: net.k.weight.mul_(2), lambda: net.v.bias.zero_(), lambda: net.q.load_state_dict(nn.Linear(32, 64).state_dict())):
            change()
            torch.testing.assert_close(f(x), net(x), rtol=1e-4, atol=1e-5)
        net.v.weight.data[0, 0] += 3
        mlirc.invalidate()
        torch.testing.assert_close(f(x), net(x), rtol=1e-4, atol=1e-5)
    assert products(kernels) == 2  # and the one behind attention


def test_training(kernels):
    torch.manual_seed(0)
    net = Attention()
    f = torch.compile(net, backend="mlirc", options={"strict": True})
    x = R(2, 7, 32)
    f(x).square().sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).square().sum().backward()
    torch.testing.assert_close(got, [p.grad for p in net.parameters()], rtol=1e-3, atol=1e-4)


def test_caches_decide():
    tiny = Target.parse("znver4")
    small, large = (type(tiny)(**{**tiny.__dict__, "caches": Caches(second=n)}) for n in (1 << 14, 1 << 24))
    sizes = Sizes(1, [688, 688], 256, 16, True)
    assert why_apart(sizes, True, small) and why_apart(sizes, True, large) is None


def test_beside_products_that_are_none():
    """The layers of two recurrent networks meet in one kernel's question: some of the products there have siblings, others none."""

    def f(x, a, b, c, d):
        h = torch.rnn_tanh(x[None], x.new_zeros(1, 1, 3), [a, b], False, 1, 0.0, False, False, True)[1]
        return h, torch.gru(b[None], x.new_zeros(1, 1, 3), [c, d], False, 1, 0.0, False, False, True)[0]

    compare(f, torch.randn(2, 2), torch.randn(3, 2), torch.randn(3, 3), torch.randn(9, 3), torch.randn(9, 3))
