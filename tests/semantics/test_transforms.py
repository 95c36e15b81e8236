"""torch.func over and inside compiled functions, control flow as ops, custom ops, exported programs, AOTAutograd's cache."""

from __future__ import annotations

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from mlirc.frontend import aten
from mlirc.runtime.storage import Storage
from mlirc.tests.semantics.agree import agree, compiled

R = torch.randn


def loss(x, w):
    return (torch.tanh(x @ w).square().sum(-1) + x.mean(-1)).sum()


def row(x, w):
    return torch.softmax(x * 2, -1) @ w + x.amax()


INSIDE = {
    "grad": lambda x, w: grad(loss)(x, w),
    "grad of both": lambda x, w: grad(loss, argnums=(0, 1))(x, w),
    "grad of grad": lambda x, w: grad(lambda y: grad(loss, argnums=1)(y, w).square().sum())(x),
    "vjp": lambda x, w: vjp(loss, x, w)[1](torch.tensor(2.0)),
    "jvp": lambda x, w: jvp(lambda y: loss(y, w), (x,), (x.cos(),)),
    "jacrev": lambda x, w: jacrev(lambda y: row(y, w))(x[0]),
    "jacfwd": lambda x, w: jacfwd(lambda y: row(y, w))(x[0]),
    "hessian": lambda x, w: hessian(lambda y: row(y, w).sum())(x[0]),
    "vmap": lambda x, w: vmap(row, in_dims=(0, None))(x, w),
    "vmap of dims": lambda x, w: vmap(lambda a, b: a.unsqueeze(0) * b, in_dims=(1, None), out_dims=1)(x, w[0]),
    "gradients per sample": lambda x, w: vmap(grad(lambda a, b: row(a, b).sum(), argnums=1), in_dims=(0, None))(x, w),
    "vmap of vmap": lambda x, w: vmap(vmap(lambda a, b: a * b.sum(), (None, 0)), (0, None))(x[:, 0], w),
}


@pytest.mark.parametrize("name", INSIDE)
def test_transforms_inside(name):
    agree(INSIDE[name], R(4, 6), R(6, 3), tolerance=1e-4)  # derivatives of derivatives


OVER = {
    "grad": lambda f, x, w: grad(lambda a, b: f(a, b).sum(), argnums=(0, 1))(x, w),
    "vmap": lambda f, x, w: vmap(f, in_dims=(0, None))(x, w),
    "jacrev": lambda f, x, w: jacrev(f, argnums=1)(x[0], w),
    "jvp": lambda f, x, w: jvp(lambda a: f(a, w), (x[0],), (x[1],)),
    "gradients per sample": lambda f, x, w: vmap(grad(lambda a, b: f(a, b).sum(), argnums=1), in_dims=(0, None))(x, w),
}


@pytest.mark.parametrize("name", OVER)
def test_transforms_over_a_compiled_function(name):
    x, w = R(4, 6), R(6, 3)
    ours = compiled(row)
    ours(x[0], w)
    torch.testing.assert_close(OVER[name](ours, x, w), OVER[name](row, x, w), rtol=1e-4, atol=1e-5)


def test_functional_call():
    nets = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(3)]
    x = R(5, 6)
    ours = compiled(nets[0])
    inside = compiled(lambda p, x: functional_call(nets[0], p, (x,)))
    for net in nets:
        p = {k: v.detach() for k, v in net.named_parameters()}
        with torch.no_grad():
            torch.testing.assert_close(inside(p, x), net(x))
            torch.testing.assert_close(functional_call(ours, {f"_orig_mod.{k}": v for k, v in p.items()}, (x,)), net(x))
            torch.testing.assert_close(ours(x), nets[0](x))
    parameters, buffers = stack_module_state(nets)
    ensemble = lambda p, b, x: vmap(lambda p, b: functional_call(nets[0], (p, b), (x,)))(p, b)  # noqa: E731
    torch.testing.assert_close(compiled(ensemble)(parameters, buffers, x), torch.stack([net(x) for net in nets]))

    def step(p, x):
        gradients = grad(lambda p: functional_call(nets[0], p, (x,)).square().mean())(p)
        return {k: v - 0.1 * gradients[k] for k, v in p.items()}

    p = {k: v.detach() for k, v in nets[1].named_parameters()}
    torch.testing.assert_close(compiled(step)(p, x), step(p, x))


# Control flow


def test_cond():
    def f(x, y):
        z = torch.cond(x.sum() > 0, lambda x, y: (x @ y).relu(), lambda x, y: (x - 1) @ y * 2, (x, y))
        return z + 1, torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (x,))

    ours = agree(f, R(3, 4), R(4, 2))
    agree(f, R(3, 4).abs(), R(4, 2), ours=ours)
    agree(f, -R(3, 4).abs(), R(4, 2), ours=ours)


def test_while_loop():
    def f(x):
        n, y = while_loop(lambda n, y: (n < 5) & (y.sum() < 100), lambda n, y: (n + 1, y * 2 + n), (torch.zeros((), dtype=torch.long), x.abs()))
        return n, y + 1

    ours = agree(f, R(3, 4), grad=False)
    agree(f, R(3, 4) * 30, ours=ours)


def test_loops_of_other_kinds():
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.map import map as map_over

    agree(lambda x: map_over(lambda row: row.softmax(0) + 1, x), R(4, 5))
    agree(lambda x: associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic"), R(6, 5))


# Custom ops


@torch.library.custom_op("mlirc_test::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    assert x.is_contiguous(), "strides are those of eager mode"
    return torch.from_numpy(x.detach().numpy() * by).to(x.dtype)


@scale.register_fake
def _(x, by):
    return torch.empty_like(x)


scale.register_autograd(lambda ctx, g: (g * ctx.by, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))


@torch.library.custom_op("mlirc_test::add_into", mutates_args=("out", "extra"))
def add_into(x: torch.Tensor, out: torch.Tensor, extra: torch.Tensor | None = None) -> None:
    out.add_(x)
    if extra is not None:
        extra.fill_(x.sum().item())


@torch.library.custom_op("mlirc_test::split_sum", mutates_args=("x",))
def split_sum(x: torch.Tensor, parts: list[torch.Tensor], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x.mul_(2)
    return x[:n].clone(), sum(parts) + x.sum()


@split_sum.register_fake
def _(x, parts, n):
    return x.new_empty(n, *x.shape[1:]), torch.empty_like(parts[0])


@torch.library.custom_op("mlirc_test::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("mlirc_test::strides", mutates_args=())
def strides(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.stride())


@strides.register_fake
def _(x):
    return torch.empty(x.dim(), dtype=torch.long)


def writes(x, y):
    z = x * 2
    add_into(z, y)
    part = y[1:]
    extra = torch.zeros(3)
    add_into(z[:-1], part, extra)
    return y + 1, part, extra


CUSTOM = {
    "pure": (lambda x, y: scale(x + 1, 3.0) * y, 2),
    "pure, on views": (lambda x, y: scale(x.t().contiguous(), 0.5).t() + y, 2),
    "strides": (lambda x, y: (strides(x.t()), strides((x * 2).t()), strides(y[:, ::2]), strides(y[None] + 1), strides(y.expand(2, 4, 5)), y + 1), 2),
    "writes": (writes, 2),
    "writes and returns": (lambda x, y: (split_sum(x, [y, y + 1], 2), x.sum(), y * 2), 2),
    "sizes that depend on data": (lambda x, y: positive(x * 2) + 1, 2),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CUSTOM)
def test_custom_ops(name, dynamic):
    f, n = CUSTOM[name]
    agree(f, R(4, 5), R(4, 5), dynamic=dynamic)


_log: list[torch.Tensor] = []


@torch.library.custom_op("mlirc_test::logged", mutates_args=())
def logged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _log.extend((x, y.detach()[1:].t()))
    return x + y


@logged.register_fake
def _(x, y):
    return torch.empty_like(x)


@pytest.mark.parametrize("can_move", [True, False], ids=["moved", "copied before"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_tensors_that_a_custom_op_keeps(dynamic, can_move, monkeypatch):
    """They outlive the memory that the program has given it."""
    if not can_move:
        monkeypatch.setattr(aten, "movable", lambda: False)

    def f(x):
        y = logged(x, (x * 2).softmax(-1))
        return logged(y.exp(), x).sum(0) * 3

    ours = compiled(f, dynamic=dynamic)
    inputs = [R(30, 50) for _ in range(3)]
    ours(inputs[0])
    _log.clear()
    for x in inputs:
        ours(x.clone())
    got = list(_log)
    del ours
    torch._dynamo.reset()
    _log.clear()
    for x in inputs:
        f(x)
    torch.testing.assert_close(got, _log)
    got[0].add_(1)
    torch.testing.assert_close(got[4], _log[4])
    _log.clear()


def test_memory_that_a_custom_op_does_not_keep_is_not_copied(monkeypatch):
    monkeypatch.setattr(Storage, "move", lambda *args: pytest.fail("a copy"))
    for name in ("pure", "strides"):
        agree(CUSTOM[name][0], R(4, 5), R(4, 5))


def test_custom_ops_run_in_order():
    """One may print or count: it has its place, whatever kernels its argument and its result are in."""

    def f(x):
        y = x * 2
        return logged(y, x), y + logged(x, y), y * 3 - logged(x.sum(0).expand(4, 5), y)

    ours = compiled(f)
    x = R(4, 5)
    ours(x)
    _log.clear()
    ours(x)
    got = list(_log)
    _log.clear()
    f(x)
    torch.testing.assert_close(got, _log)
    _log.clear()


@torch.library.custom_op("mlirc_test::keeps_and_fails", mutates_args=())
def keeps_and_fails(x: torch.Tensor) -> torch.Tensor:
    _log.append(x)
    raise ValueError("no")


keeps_and_fails.register_fake(torch.empty_like)


def test_tensors_that_a_failing_custom_op_keeps():
    ours = compiled(lambda x: keeps_and_fails((x * 2).softmax(-1)).exp())
    inputs = [R(30, 50) for _ in range(3)]
    for x in inputs:
        with pytest.raises(ValueError):
            ours(x)
    torch.testing.assert_close(_log, [(x * 2).softmax(-1) for x in inputs])
    _log.clear()


def test_gradients_of_custom_ops():
    agree(lambda x: scale(x.exp(), 2.0).sum(0), R(4, 5, requires_grad=True))


def test_ops_of_a_library_and_wrapped_kernels():
    library = torch.library.Library("mlirc_test_lib", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("mlirc_test_lib::double", lambda x: torch.empty_like(x), lib=library)
    agree(lambda x: torch.ops.mlirc_test_lib.double(x + 1) - 1, R(4))
    library._destroy()


# Exported programs, the cache


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x, scale: float = 2.0):
        self.calls += 1
        return {"y": self.norm(self.linear(x)) * scale, "n": x.shape[0]}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_exported_programs(dynamic, tmp_path):
    net, x = Net().eval(), R(5, 6)
    sizes = {"x": {0: torch.export.Dim("batch", min=2)}, "scale": None} if dynamic else None
    program = torch.export.export(net, (x, 2.0), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    ours = compiled(loaded)
    for rows in (5, 9, 2) if dynamic else (5,):
        x = R(rows, 6)
        with torch.no_grad():
            torch.testing.assert_close(ours(x, 2.0), net(x, 2.0))
    assert loaded.calls == (3 if dynamic else 1)
    ours = compiled(program.run_decompositions().module())
    torch.testing.assert_close(ours(R(5, 6) * 0 + x[:1], 2.0)["y"][:1], net(x, 2.0)["y"][:1])


def test_cache_of_aot_autograd():
    """Turned on, it neither breaks our graphs nor hands them to the wrong backend."""
    with torch._functorch.config.patch(enable_autograd_cache=True):
        f = lambda x, w: F.gelu(x @ w).sum(0)  # noqa: E731
        for _ in range(3):
            torch._dynamo.reset()
            for backend in ("aot_eager", "mlirc"):
                ours = torch.compile(f, backend=backend)
                x, w = R(4, 6, requires_grad=True), R(6, 3)
                torch.testing.assert_close(ours(x, w), f(x, w))
                torch.testing.assert_close(torch.autograd.grad(ours(x, w).sum(), x), torch.autograd.grad(f(x, w).sum(), x))
                with torch.no_grad():
                    torch.testing.assert_close(ours(x, w), f(x, w))


def test_aot_compile_is_refused():
    ours = torch.compile(lambda x: x.sin(), backend="mlirc", fullgraph=True)
    with pytest.raises(Exception, match="cannot be saved"):
        ours.aot_compile(((R(4),), {}))
