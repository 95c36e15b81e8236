"""16-bit values inside of a kernel: which are rounded, and that the others are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.dialects.mlir import ir
from mlirc.options import Options
from mlirc.passes.keep_wide import ROUND_OPS, keep_wide
from mlirc.tests.frontend.compare import compare, kernels
from mlirc.tests.passes.graph_text import check, function, generic

X, ROW = "tensor<9x40xbf16>", "tensor<9xf32>"
TWO = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n"
ONE = "%u = arith.extf %a0 : bf16 to f32\n"
NARROW = "\n%o = arith.truncf %f : f32 to bf16"
PRODUCT = TWO + "%f = arith.mulf %u, %v : f32" + NARROW
SUM = TWO + "%f = arith.addf %u, %v : f32" + NARROW


def group(n: int) -> str:
    return f"mlirc.group = {n} : i32"


def chain(first: str = PRODUCT, second: str = SUM, groups: tuple[int, int] = (1, 1), results: str = "%r", reads: str = "%p") -> str:
    """%r = second(%p, %y) of %p = first(%x, %y)."""
    body = generic("%p", [("%x", X), ("%y", X)], X, body=first, attributes=group(groups[0]))
    body += generic("%r", [(reads, X), ("%y", X)], X, body=second, attributes=group(groups[1]))
    return function([("%x", X), ("%y", X)], body, [(r.strip(), X) for r in results.split(",")])


def test_a_product_in_a_sum_is_not_rounded():
    check(chain(), keep_wide, """
        CHECK: %[[P:.*]] = linalg.generic {{.*}} -> tensor<9x40xf32>
        CHECK: linalg.generic {{.*}} ins(%[[P]], %{{.*}} : tensor<9x40xf32>, tensor<9x40xbf16>)
        CHECK-NEXT: ^bb0(%[[A:.*]]: f32, %[[B:.*]]: bf16, %{{.*}}: bf16)
        CHECK-NEXT: %[[V:.*]] = arith.extf %[[B]]
        CHECK-NEXT: %[[S:.*]] = arith.addf %[[A]], %[[V]]
        CHECK-NEXT: %[[O:.*]] = arith.truncf %[[S]]
        CHECK-NEXT: linalg.yield %[[O]]
    """.replace("{{.*}} -> tensor<9x40xf32>", "{{.*}} outs(%{{.*}} : tensor<9x40xf32>)"))


FLAT, PART = "tensor<360xbf16>", "tensor<100xbf16>"


def viewed(readers: str = "%r", groups: tuple[int, int] = (1, 1)) -> str:
    """%r = (%x * %y) + %z of 100 places of the product, laid flat."""
    body = generic("%p", [("%x", X), ("%y", X)], X, body=PRODUCT, attributes=group(groups[0]))
    body += f"%flat = tensor.collapse_shape %p [[0, 1]] : {X} into {FLAT}\n%g = tensor.extract_slice %flat[5][100][2] : {FLAT} to {PART}\n"
    body += generic("%r", [("%g", PART), ("%z", PART)], PART, body=SUM, attributes=group(groups[1]))
    return function([("%x", X), ("%y", X), ("%z", PART)], body, [(r.strip(), PART if r.strip() in ("%r", "%g") else FLAT) for r in readers.split(",")])


def test_views_of_what_is_not_rounded_are_wide():
    check(viewed(), keep_wide, """
        CHECK: %[[P:.*]] = linalg.generic {{.*}} outs(%{{.*}} : tensor<9x40xf32>)
        CHECK-NOT: truncf
        CHECK: %[[F:.*]] = tensor.collapse_shape %[[P]] {{.*}} : tensor<9x40xf32> into tensor<360xf32>
        CHECK: %[[G:.*]] = tensor.extract_slice %[[F]]{{.*}} : tensor<360xf32> to tensor<100xf32>
        CHECK: linalg.generic {{.*}} ins(%[[G]], %{{.*}} : tensor<100xf32>, tensor<100xbf16>)
        CHECK: truncf
    """)


@pytest.mark.parametrize("text", [viewed("%r, %g"), viewed("%r, %flat"), viewed(groups=(1, 2))], ids=["a view is a result", "the first view is", "another group"])
def test_views_that_are_stored_are_rounded(text):
    check(text, keep_wide, "CHECK: truncf\nCHECK: truncf")


def test_what_a_contraction_stores_is_not_rounded():
    w, sums = "tensor<40x40xbf16>", "tensor<9x40xf32>"
    dot = "%u = arith.extf %a0 : bf16 to f32\n%v = arith.extf %a1 : bf16 to f32\n%m = arith.mulf %u, %v : f32\n%o = arith.addf %a2, %m : f32"
    body = generic("%c", [("%x", X), ("%w", w)], sums, ["i, k", "j, k", "i, j"], dot, "ppr", "ijk", "0.0", "contraction", group(1))
    body += generic("%p", [("%c", sums)], X, body="%o = arith.truncf %a0 : f32 to bf16", attributes=group(1))
    body += generic("%r", [("%p", X), ("%x", X)], X, body=SUM, attributes=group(1))
    check(function([("%x", X), ("%w", w)], body, [("%r", X)]), keep_wide, "CHECK: truncf\nCHECK-NOT: truncf")


EXP = ONE + "%f = math.exp %u : f32" + NARROW
LARGER = TWO + "%c = arith.cmpf ogt, %u, %v : f32\n%f = arith.select %c, %u, %v : f32" + NARROW
AS_IT_IS = "%o = arith.maximumf %a0, %a1 : bf16"
CONVERTED = "%o = arith.truncf %a0 : f32 to bf16"


def converted() -> str:
    wide = "tensor<9x40xf32>"
    body = generic("%p", [("%z", wide)], X, body=CONVERTED, attributes=group(1))
    return function([("%z", wide), ("%y", X)], body + generic("%r", [("%p", X), ("%y", X)], X, body=SUM, attributes=group(1)), [("%r", X)])


NARROW_ROW = "tensor<9xbf16>"


def reduced(body: str) -> str:
    """The rows of a product reduced, and rounded."""
    text = generic("%p", [("%x", X), ("%y", X)], X, body=PRODUCT, attributes=group(1))
    text += generic("%s", [("%p", X)], ROW, ["i, j", "i"], f"{ONE}%o = {body} %u, %a1 : f32", "pr", "ij", "0.0", attributes=group(1))
    text += generic("%r", [("%s", ROW)], NARROW_ROW, body=CONVERTED, attributes=group(1))
    return function([("%x", X), ("%y", X)], text, [("%r", NARROW_ROW)])


@pytest.mark.parametrize(
    "text",
    [
        chain(groups=(1, 2)),
        chain(results="%r, %p"),
        chain(second=EXP),
        chain(first=EXP),
        chain(second=LARGER),
        chain(second=AS_IT_IS),
        converted(),
        reduced("arith.maximumf"),
    ],
    ids=["another kernel", "returned", "in a function", "of a function", "compared", "not widened", "converted", "the largest"],
)
def test_what_is_rounded(text):
    check(text, keep_wide, "CHECK: linalg.generic\nCHECK: arith.truncf\nCHECK: yield {{.*}} : bf16\nCHECK: linalg.generic")


@pytest.mark.parametrize("convert", ["sitofp", "uitofp"])
@pytest.mark.parametrize("bits, wide", [(8, True), (16, False)])
def test_bytes_are_converted_once(convert, bits, wide):
    """bf16 has all of them, so that there is nothing to round; not of longer integers."""
    body = generic("%p", [("%x", f"tensor<9x40xi{bits}>")], X, body=f"%o = arith.{convert} %a0 : i{bits} to bf16", attributes=group(1))
    body += generic("%r", [("%p", X), ("%y", X)], X, body=PRODUCT, attributes=group(1))
    check(function([("%x", f"tensor<9x40xi{bits}>"), ("%y", X)], body, [("%r", X)]), keep_wide, f"""
        CHECK: arith.{convert} %{{{{.*}}}} : i{bits} to {"f32" if wide else "bf16"}
        CHECK: linalg.generic {{{{.*}}}} ins(%{{{{.*}}}} : tensor<9x40x{"f32" if wide else "bf16"}>, tensor<9x40xbf16>)
    """)


def test_all_ops_of_a_function_are_rounded():
    def run(main: ir.Operation) -> None:
        main.attributes[ROUND_OPS] = ir.UnitAttr.get()
        keep_wide(main)

    check(chain(), run, "CHECK: linalg.generic\nCHECK: arith.truncf\nCHECK: linalg.generic")


def test_sums_of_what_is_not_stored():
    check(reduced("arith.addf"), keep_wide, "CHECK: linalg.generic\nCHECK: yield {{.*}} : f32\nCHECK: truncf\nCHECK-NOT: truncf")


def softmax(after: str) -> str:
    """`after` makes %f of the sums and the largest of their row."""
    text = generic("%p", [("%x", X), ("%y", X)], X, body=SUM, attributes=group(1))
    text += generic("%m", [("%p", X)], ROW, ["i, j", "i"], f"{ONE}%o = arith.maximumf %u, %a1 : f32", "pr", "ij", "0.0", attributes=group(1))
    text += generic("%r", [("%p", X), ("%m", ROW)], X, ["i, j", "i", "i, j"], ONE + after + NARROW, attributes=group(1))
    return function([("%x", X), ("%y", X)], text, [("%r", X)])


def test_the_sums_of_a_softmax_are_not_rounded():
    """A function of the difference between two numbers is in no table."""
    check(softmax("%d = arith.subf %u, %a1 : f32\n%f = math.exp %d : f32"), keep_wide, "CHECK: math.exp\nCHECK: truncf\nCHECK-NOT: truncf")
    text = softmax("%d = arith.subf %u, %a1 : f32\n%f = math.exp %d : f32")
    check(text, keep_wide, "CHECK: linalg.generic\nCHECK: yield {{.*}} : f32\nCHECK: yield {{.*}} : f32")


@pytest.mark.parametrize(
    "after",
    ["%d = arith.subf %u, %a1 : f32\n%e = math.exp %u : f32\n%f = arith.mulf %d, %e : f32", "%c = arith.cmpf oeq, %u, %a1 : f32\n%f = arith.uitofp %c : i1 to f32"],
    ids=["a function of one", "compared"],
)
def test_the_sums_of_other_rows_are(after):
    check(softmax(after), keep_wide, "CHECK: linalg.generic\nCHECK: arith.truncf\nCHECK: linalg.generic")


# Whole graphs


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("width", [1, 17, 33, 64])
def test_values(dtype, width, dynamic):
    def f(x, y, w):
        h = (x * w + y) * x - y / (w.abs() + 1)
        return h, (x - y).square().sum(-1), F.layer_norm(x * w + y, (x.shape[-1],), w), ((x + y) * w).exp(), (x + y).amax(-1), F.hardswish(x * w + y), (x * 2 + y).softmax(-1)

    x, y, w = torch.randn(5, width), torch.randn(5, width), torch.randn(width)
    x[0, 0], x[1, -1], x[2, 0], y[3, 0] = float("nan"), float("inf"), 1e-39, -0.0
    compare(f, x.to(dtype), y.to(dtype), w.to(dtype), dynamic=dynamic)


def test_products_with_what_follows():
    """Batch norm, a residual and an activation behind a convolution; scores that are scaled and shifted."""

    def f(x, c, b, mean, var, w):
        norm = lambda h: F.batch_norm(h, mean, var.abs(), b, mean)  # noqa: E731
        h = F.relu(norm(F.conv2d(x, c, b, padding=1)))
        return F.relu6(norm(F.conv2d(h, c[:, :1].expand(-1, 16, -1, -1), b, padding=1)) + h), F.hardswish(h[:, :, 0] @ w * 0.5 + 1) - w[0]

    for width in (7, 16, 33):
        made = torch.randn(2, 8, 16, width), torch.randn(16, 8, 3, 3) / 8, *(torch.randn(16) for _ in range(3)), torch.randn(width, 5) / 4
        compare(f, *(t.bfloat16() for t in made))


def test_the_largest_is_one_of_them():
    """What is compared is what was chosen from, also if nothing of it is stored."""
    f = torch.compile(lambda x, y: ((h := x * y + y) == h.amax(-1, keepdim=True)).sum(-1), backend="mlirc", options={"strict": True})
    x, y = torch.randn(33, 100).bfloat16(), torch.randn(33, 100).bfloat16()
    assert (f(x, y) >= 1).all()


BF16, F16 = torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    "f, args",
    [
        (lambda a, b: (a + b).float() == 1.0, ([1.0, 2.0], [2.0**-9, 1.0], BF16)),
        (lambda a, b: torch.floor((a + b).float()), ([1.0, 1.0], [-(2.0**-10), 0.5], BF16)),
        (lambda a, b: torch.isfinite((a * b).float()), ([300.0, 2.0], [300.0, 2.0], F16)),
        (lambda a, b: (a + b) * torch.ones(2) == 1.0, ([1.0, 2.0], [2.0**-9, 1.0], BF16)),
        (lambda a, b: torch.round((a + b) * torch.full((2,), 0.5)), ([1.0, 1.0], [-(2.0**-10), 0.5], BF16)),
        (lambda a, b: (a + b) * torch.ones(2), ([1.0, 2.0], [2.0**-9, 1.0], BF16)),
        (lambda a, b: (a * torch.ones(2)).to(BF16).float() - a.float(), ([1 + 2.0**-10, 1.0], [0.0, 0.0], F16)),
        (lambda a, b: a.to(BF16).float() - a.float() + b, ([1 + 2.0**-10, 1.0], [0.0, 0.0], F16)),
        (lambda a, b: a.to(BF16).float() * b.float(), ([1 + 2.0**-10, 1.0], [1.0, 1.0], torch.float64)),
    ],
    ids=["compared", "floor", "finite", "promoted", "rounded later", "stored wider", "narrowed", "f16 to bf16", "f64 to bf16"],
)
def test_what_is_widened_has_been_rounded(f, args):
    a, b, dtype = args
    a, b = torch.tensor(a, dtype=torch.float64).to(dtype), torch.tensor(b, dtype=torch.float64).to(dtype)
    assert torch.equal(torch.compile(f, backend="mlirc", options={"strict": True})(a, b), f(a, b))


def test_a_product_of_f32_is_narrowed_where_the_program_says():
    """The part of a product that bf16 does not have."""
    f = torch.compile(lambda a, b: (c := a @ b) - c.to(BF16).float(), backend="mlirc", options={"strict": True})
    left = f(torch.randn(33, 40), torch.randn(40, 17)).abs()
    assert 0 < left.mean() < 0.1


def test_all_ops_are_rounded_if_asked_for():
    def f(x, y):
        return ((x * y + y) * x - y) * y + x

    x, y = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    exact = f(x.double(), y.double())
    eager, got = f(x, y), torch.compile(f, backend="mlirc", options={"strict": True})(x, y)
    assert len(kernels()) == 1
    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend="mlirc", options={"strict": True, "rounding": "ops"})(x, y), eager)
    assert (got.double() - exact).abs().mean() < (eager.double() - exact).abs().mean()


def test_the_option_has_two_values():
    with pytest.raises(ValueError, match="unknown rounding 'never'; valid: stored, ops"):
        Options.make({"rounding": "never"})
