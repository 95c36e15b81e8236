"""Ops that hold graphs: what they hold is compiled, and what is around them is."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mlirc.frontend.report import listening
from mlirc.tests.exported import export

R = torch.randn


def agree(f, *args, grad=False, dynamic=None, others=()):
    """Compiled in one graph against eager mode in f64, also with `others`; the reports."""

    def results(function, inputs, dtype=None):
        inputs = [x.detach().to(dtype) if x.is_floating_point() else x for x in inputs]
        inputs = [x.clone().requires_grad_(grad and x.is_floating_point()) for x in inputs]
        out = [t for t in torch.utils._pytree.tree_leaves(function(*inputs)) if isinstance(t, torch.Tensor)]
        if grad:
            loss = sum((t * t.detach().cos()).sum() for t in out if t.is_floating_point())
            out += torch.autograd.grad(loss, [x for x in inputs if x.requires_grad])
        return out

    compiled = torch.compile(f, backend="mlirc", fullgraph=True, dynamic=dynamic)
    with listening() as graphs, torch.set_grad_enabled(grad):
        for inputs in (args, *others):
            got, expected = results(compiled, inputs), results(f, inputs, torch.float64)
            for g, e in zip(got, expected, strict=True):
                torch.testing.assert_close(g, e.to(g.dtype), rtol=1e-4, atol=1e-4 * (1 + e.abs().nan_to_num(posinf=0).max().item() if e.numel() else 0))
    return graphs


def left(graphs):
    return [a.op for g in graphs for a in g.aten]


# flex_attention

S = 33
BIAS = R(4, S, S)
DOCUMENTS = torch.randint(0, 3, (S,)).sort()[0]
FLEX = {
    "plain": lambda q, k, v: flex_attention(q, k, v),
    "position": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1, scale=0.3),
    "heads": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s * (h + 1) / 5) * 5) + 1,
    "bias": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + BIAS.to(s.dtype)[h, i, j]),
    "fewer heads": lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    "logsumexp": lambda q, k, v: flex_attention(q, k, v, return_lse=True),
    "rows without anything": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(j > i + 20, s, -float("inf"))),
    "turned": lambda q, k, v: flex_attention(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))).transpose(1, 2).flatten(2),
    "twice": lambda q, k, v: flex_attention(flex_attention(q, k, v), k, v, score_mod=lambda s, b, h, i, j: s * 2),
}


@pytest.mark.parametrize("name", FLEX)
def test_flex_attention(name):
    q, k, v = (R(2, 4, S, 16) for _ in range(3))
    graphs = agree(FLEX[name], q, k, v)
    assert left(graphs) == [] and [g.direction for g in graphs] == ["inference"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_flex_attention_of_a_mask(dynamic):
    def masked(n):
        return create_block_mask(lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j), None, None, n, n, device="cpu")

    mask = masked(S)
    graphs = agree(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), *(R(2, 4, S, 16) for _ in range(3)), dynamic=dynamic)
    assert left(graphs) == []


@pytest.mark.parametrize("name", ["position", "length"])
def test_flex_attention_of_several_lengths(name):
    f = {**FLEX, "length": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * q.shape[2] / 20)}[name]
    shapes = [(2, 4, 20, 16), (2, 4, 33, 16), (2, 4, 7, 16)]
    first, *others = [[R(shape) for _ in range(3)] for shape in shapes]
    graphs = agree(f, *first, dynamic=True, others=others)
    assert left(graphs) == [] and len(graphs) == 1


def test_flex_attention_in_half_precision():
    q, k, v = (R(2, 4, 64, 32).bfloat16() for _ in range(3))
    f = torch.compile(FLEX["position"], backend="mlirc", fullgraph=True)
    torch.testing.assert_close(f(q, k, v).double(), FLEX["position"](q.double(), k.double(), v.double()), rtol=3e-2, atol=3e-2)


def test_flex_attention_in_double_precision():
    q, k, v = (R(2, 4, 20, 8).double() for _ in range(3))
    out, lse = torch.compile(FLEX["logsumexp"], backend="mlirc", fullgraph=True)(q, k, v)
    expected, sums = FLEX["logsumexp"](q, k, v)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-6, atol=1e-6)  # f32, as torch describes them to what is traced


def test_flex_attention_exported(tmp_path):
    class Attention(nn.Module):
        def forward(self, q, k, v):
            return FLEX["position"](q, k, v)

    q, k, v = (R(1, 2, 20, 16) for _ in range(3))
    model = export(Attention(), (q, k, v), tmp_path / "attention.a")
    torch.testing.assert_close(model([q, k, v], [q])[0], FLEX["position"](q, k, v))


# Regions


@torch.compiler.nested_compile_region
def region(x, w):
    return torch.relu(x @ w) + 1, x * 2


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_region_of_several_calls(grad, dynamic):
    """The calls have one graph, and each its own results: what they save for their gradients must not be taken for one another's."""

    def f(x, w):
        y, z = region(x, w)
        y, u = region(y, w + 1)
        return y.sin() + z + u

    graphs = agree(f, R(8, 8), R(8, 8), grad=grad, dynamic=dynamic)
    assert left(graphs) == [] and {g.direction for g in graphs} == ({"forward", "backward"} if grad else {"inference"})


def test_region_of_several_shapes():
    def f(x, y, w):
        return region(x, w), region(y, w)

    assert left(agree(f, R(5, 8), R(3, 8), R(8, 8))) == []


def test_region_that_sorts_and_holds_a_constant():
    @torch.compiler.nested_compile_region
    def sorts(x):
        return x.sort()[0] * torch.tensor([1.0, 2.0, 3.0]) + 1

    graphs = agree(lambda x: sorts(sorts(x) + 1), R(4, 3))
    assert left(graphs) == ["aten.sort.default"] * 2 and graphs[0].kernels


@pytest.mark.parametrize("grad", [False, True])
def test_region_that_holds_control_flow(grad):
    """Several calls of one graph within the graph within."""

    @torch.compiler.nested_compile_region
    def turns(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2, (x,))

    @torch.compiler.nested_compile_region
    def loops(x):
        return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 1.5), (torch.zeros((), dtype=torch.long), x))[1]

    whole = [g for g in agree(lambda x: turns(turns(x) + 1) + 1, R(3, 4), grad=grad) if g.direction != "subgraph"]
    assert set(left(whole)) == {"cond"} and all(g.kernels for g in whole)
    if not grad:
        graphs = agree(lambda x: loops(loops(x) + 1), R(3, 4))
        checked(graphs, "while_loop", 4, 1, calls=2)


def test_graphs_within_graphs_are_freed():
    import gc

    from mlirc.frontend.runner import Runner

    def live():
        torch._dynamo.reset()
        gc.collect()
        return sum(isinstance(x, Runner) for x in gc.get_objects())

    before = live()
    torch.compile(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,)), backend="mlirc")(R(3))
    assert live() <= before


# Control flow


def checked(graphs, op, parts, around, calls=1):
    """Calls of torch's, `parts` graphs that are compiled within, and kernels around it."""
    whole = [g for g in graphs if g.direction != "subgraph"]
    within = [g for g in graphs if g.direction == "subgraph"]
    assert left(whole) == [op] * len(whole) * calls and left(within) == []
    assert len(within) == parts and all(g.kernels for g in (*within, *whole)) and len(whole) == around


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_branches(grad, dynamic):
    def f(x, w):
        y = torch.cond(x.sum() > 0, lambda x, w: (x @ w).relu(), lambda x, w: (x - 1) @ w * 2, (x * 2, w))
        return y + 1

    x = R(4, 4).abs()
    graphs = agree(f, x, R(4, 4), grad=grad, dynamic=dynamic, others=[(-x, R(4, 4))])
    checked(graphs, "cond", 4 if grad else 2, 2 if grad else 1)


def test_branches_of_branches_and_of_nothing():
    def f(x):
        def inner(x):
            return torch.cond(x.max() > 1, lambda x: x.exp(), lambda x: x.clone(), (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x,)) * 2

    x = torch.tensor([0.5, 0.25])
    graphs = agree(f, x, others=[(x + 3,), (-x,)])
    assert {g.direction for g in graphs} == {"inference", "subgraph"} and left(graphs).count("cond") == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_loops(dynamic):
    def f(x):
        n, y = while_loop(lambda n, y: (n < 5) & (y.sum() < 100), lambda n, y: (n + 1, y.sin() * 2 + n), (torch.zeros((), dtype=torch.long), x.abs()))
        return n, y + 1

    graphs = agree(f, R(3, 4), dynamic=dynamic, others=[(R(3, 4) * 30,)])
    checked(graphs, "while_loop", 2, 1)


@pytest.mark.parametrize("grad", [False, True])
def test_scans_and_maps(grad):
    graphs = agree(lambda x: scan(lambda c, x: (c + x.sin(), c * x), x[0] * 2, x), R(6, 5), grad=grad)
    checked(graphs, "scan", 2 if grad else 1, 2 if grad else 1)
    graphs = agree(lambda x: map_over(lambda row: row.softmax(0) + 1, x * 2), R(4, 5), grad=grad)
    checked(graphs, "map_impl", 2 if grad else 1, 2 if grad else 1)


@pytest.mark.sampled
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_turned_operands(grad, dynamic):
    """Loops give the graph within slices that lie otherwise than those that it was traced with."""
    others = [(R(7, 4),)] if dynamic else []
    agree(lambda x: scan(lambda c, x: (c * 0.5 + x, c * x), x[:, 0] * 2, x, dim=1), R(6, 5), grad=grad, dynamic=dynamic, others=others)
    agree(lambda x: map_over(lambda row: row.softmax(0) + 1, x.t()), R(6, 5), grad=grad, dynamic=dynamic, others=others)
    agree(lambda x: torch.cond(x.sum() > 0, lambda y: y.reshape(-1) + 1, lambda y: y.reshape(-1) * 2, (x[:, 1:3].t(),)), R(6, 5), grad=grad, dynamic=dynamic)


def test_error_in_a_branch():
    f = torch.compile(lambda x, i: torch.cond(i.sum() > 0, lambda x, i: x[i], lambda x, i: x[i] * 2, (x, i)), backend="mlirc", fullgraph=True)
    x = R(5)
    torch.testing.assert_close(f(x, torch.tensor([4, 0])), x[[4, 0]])
    with pytest.raises(IndexError):
        f(x, torch.tensor([5, 0]))
    torch.testing.assert_close(f(x, torch.tensor([0, 1])), x[:2])


# Ops of others that write to their arguments


@torch.library.custom_op("mlirc_test::write_into", mutates_args=("out",))
def write_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


def test_around_an_op_that_writes():
    def f(x):
        out = torch.empty_like(x)
        write_into(x + 1, out)
        return out.exp()

    graphs = agree(f, R(5))
    assert left(graphs) == ["auto_functionalized_v2"] and graphs[0].kernels


@torch.library.custom_op("mlirc_test::add_one_and_row", mutates_args=("x",))
def add_one_and_row(x: torch.Tensor) -> None:
    x.add_(1 + torch.arange(x.shape[0], dtype=x.dtype)[:, None])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", [lambda x: x.mT, lambda x: x[1:].mT, lambda x: x.view(-1)[2:8].view(2, 3).mT, lambda x: (x * 2)[1:, 1:].mT], ids=["turned", "a part", "unlike", "made"])
def test_around_an_op_that_writes_to_a_view_of_an_input(view, dynamic):
    """The input lies behind others in its storage."""

    def f(x):
        add_one_and_row(view(x))
        return x * 2

    for first in (0, 2):
        torch._dynamo.reset()
        x, expected = (torch.arange(30.0).view(10, 3)[first : first + 4] for _ in range(2))
        compiled = torch.compile(f, backend="mlirc", dynamic=dynamic)
        torch.testing.assert_close(compiled(x), f(expected), rtol=0, atol=0)
        torch.testing.assert_close(x, expected, rtol=0, atol=0)
        if dynamic:
            x, expected = (torch.arange(39.0).view(13, 3)[first : first + 6] for _ in range(2))
            torch.testing.assert_close(compiled(x), f(expected), rtol=0, atol=0)
            torch.testing.assert_close(x._base, expected._base, rtol=0, atol=0)
