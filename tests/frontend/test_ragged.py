"""Products of rows in groups, as a mixture of experts has them: of all sizes of groups, with their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlirc

from .compare import compare, left_to_aten

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _fallback(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    output, start = input.new_zeros(input.size(0), weight.size(2)), 0
    for i, end in enumerate(offs.tolist()):
        if start != end:
            torch.mm(input[start:end], weight[i], out=output[start:end])
        start = end
    return output


def _gradients(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    of_input, of_weight, start = torch.zeros_like(input), torch.zeros_like(weight), 0
    for i, end in enumerate(offs.tolist()):
        of_input[start:end] = grad[start:end] @ weight[i].T
        of_weight[i] = input[start:end].T @ grad[start:end]
        start = end
    return of_input, of_weight


def _define() -> None:
    """The ops of transformers, as it defines them, where it is not there itself."""
    name = "transformers::grouped_mm_fallback"
    torch.library.custom_op(name, _fallback, mutates_args=(), schema="(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    torch.library.register_fake(name, lambda x, w, offs: x.new_empty(x.size(0), w.size(2)))
    behind = f"{name}_backward"
    schema = "(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)"
    torch.library.custom_op(behind, _gradients, mutates_args=(), schema=schema)
    torch.library.register_fake(behind, lambda x, w, offs, grad: (torch.empty_like(x), torch.empty_like(w)))

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *torch.ops.transformers.grouped_mm_fallback_backward(*ctx.saved_tensors, grad), None

    torch.library.register_autograd(name, backward, setup_context=setup)


if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
    _define()

product = torch.ops.transformers.grouped_mm_fallback


def ends(*rows: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(rows).cumsum(0).to(dtype)


class Experts(torch.nn.Module):
    """`transposed`: weights [groups, n, k], as layers keep them."""

    def __init__(self, groups: int, k: int, n: int, dtype: torch.dtype, transposed: bool = True) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(groups, n, k, dtype=dtype) if transposed else torch.randn(groups, k, n, dtype=dtype))
        self.transposed = transposed

    def forward(self, x: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return product(x, self.weight.mT if self.transposed else self.weight, offs)


def check(module: Experts, x: torch.Tensor, offs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Compiled, against each group's own product in fp64; returns the result."""
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="mlirc", options={"strict": True, **options})
    with torch.no_grad():
        got = compiled(x, offs)
    _right(got, module, x, offs)
    return got


def _right(got: torch.Tensor, module: Experts, x: torch.Tensor, offs: torch.Tensor) -> None:
    weight = (module.weight.mT if module.transposed else module.weight).detach().double()
    want = _fallback(x.double(), weight, offs.clamp(max=x.shape[0]))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[x.dtype]
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * max(1.0, want.abs().max().item()) if want.numel() else 0)


@pytest.mark.sampled
@pytest.mark.parametrize("target", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("k", "n"), [(1, 1), (33, 17), (64, 100)])
def test_groups(k: int, n: int, dtype: torch.dtype, target: str) -> None:
    """Of no row, of one, of some, and of many."""
    offs = ends(0, 1, 17, 0, 3, 40, 0)
    for transposed in (True, False):
        check(Experts(7, k, n, dtype, transposed), torch.randn(61, k, dtype=dtype), offs, target=target)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_few_rows(rows: int) -> None:
    check(Experts(3, 16, 24, torch.float32), torch.randn(rows, 16), ends(0, rows, 0, dtype=torch.int64))


def test_one_group() -> None:
    check(Experts(1, 16, 24, torch.float32), torch.randn(9, 16), ends(9))


@pytest.mark.parametrize("lay", [lambda x: x[:, 2:35], lambda x: x[::2, :33], lambda x: x.t()[:33].t()], ids=["columns", "rows", "transposed"])
def test_rows_that_are_not_contiguous(lay: Any) -> None:
    x = lay(torch.randn(40, 40))
    check(Experts(4, 33, 20, torch.float32), x, ends(x.shape[0] - 9, 0, 4, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_in_no_group_are_zero(dtype: torch.dtype) -> None:
    """Whatever they hold."""
    x = torch.randn(33, 16, dtype=dtype)
    x[20:] = float("nan")
    got = check(Experts(3, 16, 40, dtype), x, ends(4, 0, 16))
    assert (got[20:] == 0).all()


def test_ends_beyond_the_rows() -> None:
    """They are cut off, as slices are."""
    check(Experts(3, 16, 40, torch.float32), torch.randn(33, 16), torch.tensor([30, 99, 1 << 40]), guard_pages="both")


def test_nan_stays_in_its_group() -> None:
    experts = Experts(3, 16, 8, torch.float32)
    with torch.no_grad():
        experts.weight[1] = float("nan")
    compiled = torch.compile(experts, backend="mlirc", options={"strict": True})
    with torch.no_grad():
        got = compiled(torch.randn(30, 16), ends(10, 10, 10))
    assert got.isnan().all(1).tolist() == [False] * 10 + [True] * 10 + [False] * 10


def test_any_number_of_rows() -> None:
    """One graph for all."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    experts = Experts(5, 40, 33, torch.float32)
    compiled = torch.compile(experts, backend="mlirc", options={"strict": True, "guard_pages": "both"})
    for rows in (50, 2, 3, 17, 131):
        x, offs = torch.randn(rows, 40), ends(rows // 2, 0, 1, rows - rows // 2 - 1, 0)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            _right(compiled(x, offs), experts, x, offs)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_two_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(Experts(3, 256, 300, torch.float32), torch.randn(150, 256), ends(1, 100, 49))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients(dtype: torch.dtype, transposed: bool) -> None:
    """Of a group without rows, zero."""

    def f(x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> Any:
        y = product(x, w.mT if transposed else w, offs)
        return y, *torch.autograd.grad((y * y).sum(), (x, w))

    shape = (5, 40, 33) if transposed else (5, 33, 40)
    x, w = torch.randn(60, 33, dtype=dtype, requires_grad=True), torch.randn(shape, dtype=dtype, requires_grad=True)
    compare(f, x, w, ends(20, 0, 3, 30, 0))
    assert not left_to_aten()


def test_gradients_of_any_number_of_rows() -> None:
    torch._dynamo.reset()
    experts = Experts(4, 24, 40, torch.float32)
    compiled = torch.compile(experts, backend="mlirc", options={"strict": True})
    for rows in (50, 3, 130):
        x, offs = torch.randn(rows, 24, requires_grad=True), ends(rows // 2, 0, rows - rows // 2 - 1, 1)
        torch._dynamo.mark_dynamic(x, 0)
        gradients = []
        for call in (compiled, experts):
            experts.zero_grad()
            x.grad = None
            call(x, offs).square().sum().backward()
            gradients.append((x.grad, experts.weight.grad))
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [8, 2000])
def test_matrices_that_change_are_not_packed_in_vain(rows: int, dtype: torch.dtype) -> None:
    """All of 16 would be packed for 8 rows. What lies as it is read is not."""

    def f(x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return product(x, w, offs)

    x, w, offs = torch.randn(rows, 128, dtype=dtype), torch.randn(16, 256, 128, dtype=dtype), ends(*[rows // 16] * 15, rows - rows // 16 * 15)
    with torch.no_grad():
        compare(lambda x, w, offs: f(x, w.mT, offs), x, w, offs, options={})
        assert bool(left_to_aten()) == (rows == 8)
        compare(f, x, w.mT.contiguous(), offs, options={})
        assert not left_to_aten()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        experts = Experts(16, 128, 256, dtype)
        _right(torch.compile(experts, backend="mlirc", options={"prepack": False})(x, offs), experts, x, offs)
        assert bool(left_to_aten()) == (rows == 8)
        check(experts, x, offs, prepack=False, fallback=False)  # where nothing may be left to ATen, nothing is


ENDS = {
    "every other one": lambda c: c[::2],
    "a column": lambda c: torch.stack([c, c], 1).cumsum(0)[:4, 1],
    "the same everywhere": lambda c: torch.full((4,), 7, dtype=torch.int32),
    "one, expanded": lambda c: c[3:4].expand(4),
    "none": lambda c: torch.zeros(4, dtype=torch.int32),
    "from the end": lambda c: c[:4].flip(0).flip(0),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_ends_however_they_lie(name: str, inside: bool) -> None:
    make, experts, counts = ENDS[name], Experts(4, 16, 24, torch.float32), torch.tensor([2, 3, 5, 5, 9, 9, 14, 14], dtype=torch.int32)
    x = torch.randn(20, 16)
    torch._dynamo.reset()
    call = torch.compile(lambda x, c: experts(x, make(c) if inside else c), backend="mlirc", options={"strict": True, "guard_pages": "both"})
    with torch.no_grad():
        _right(call(x, counts if inside else make(counts)), experts, x, make(counts))


def test_what_torch_calls() -> None:
    """`grouped_mm` has bf16 alone; with a batch it is a product with one."""
    experts = torch.nn.Parameter(torch.randn(3, 24, 40, dtype=torch.bfloat16), requires_grad=False)
    torch._dynamo.reset()
    f = torch.compile(lambda x, offs: F.grouped_mm(x, experts, offs=offs), backend="mlirc", options={"strict": True})
    x, offs = torch.randn(30, 24, dtype=torch.bfloat16), ends(7, 0, 23)
    torch.testing.assert_close(f(x, offs), F.grouped_mm(x, experts, offs=offs), rtol=2e-2, atol=5e-2)
    x = torch.randn(3, 8, 24, dtype=torch.bfloat16)
    g = torch.compile(lambda x: F.grouped_mm(x, experts), backend="mlirc", options={"strict": True})
    torch.testing.assert_close(g(x), x @ experts, rtol=2e-2, atol=5e-2)


def test_a_weight_that_changes_is_packed_anew() -> None:
    experts = Experts(3, 16, 40, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(experts, backend="mlirc", options={"strict": True})
    x, offs = torch.randn(33, 16), ends(4, 9, 20)
    with torch.no_grad():
        compiled(x, offs)
        experts.weight.mul_(-3)
        _right(compiled(x, offs), experts, x, offs)


def test_a_mixture() -> None:
    """Rows sorted by expert, two products with a gate in between, and back, as transformers writes it; its kernels and no others."""

    class Mixture(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (torch.nn.Parameter(torch.randn(s) / 8, requires_grad=False) for s in ((4, 96, 32), (4, 32, 48)))

        def forward(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            chosen = experts.shape[1]
            order = torch.argsort(experts.reshape(-1), stable=True)
            offs = (experts.reshape(-1, 1) == torch.arange(4)).sum(0).cumsum(0).to(torch.int32)
            gate, up = product(x[order // chosen], self.up.mT, offs).chunk(2, -1)
            y = product(F.silu(gate) * up, self.down.mT, offs) * weights.reshape(-1)[order][:, None]
            back = torch.empty_like(order)
            back[order] = torch.arange(order.numel())
            return y[back].view(-1, chosen, 32).sum(1)

    x, experts, weights, mixture = torch.randn(20, 32), torch.randint(0, 4, (20, 2)), torch.rand(20, 2), Mixture()
    report = mlirc.explain(mixture, x, experts, weights)
    assert sum("grouped_mm_fallback" in k and "pack" not in k for k in report.kernels) == 2
    assert [entry.op for entry in report.aten] == ["aten.sort.stable"]
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(mixture, backend="mlirc")(x, experts, weights), mixture(x, experts, weights), rtol=1e-4, atol=1e-4)
