"""What cannot be compiled still runs, and right: a node, a kernel or a whole graph goes to ATen, with a warning that says why."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

import mlirc.driver
from mlirc.errors import CompileError
from mlirc.frontend.eager import EagerRunner
from mlirc.frontend.report import record, recorded
from mlirc.tests.frontend.compare import compare, left_to_aten

R = torch.randn
LENIENT = {"strict": False}


def caught(*args, **kwargs):
    """`compare`, and the texts of our warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        compare(*args, **kwargs)
    return [str(w.message) for w in found if str(w.message).startswith("mlirc")]


NODES = {
    "complex in the middle": (lambda x: torch.fft.rfft(x).abs() + 1, R(4, 16)),
    "float8": (lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) * 2, R(5)),
    "uint16": (lambda x: x.to(torch.float32) * 2, torch.arange(5).to(torch.uint16)),
    "an assertion": (lambda x: F.one_hot(x, 7) * 2, torch.tensor([1, 2, 5])),
    "results in overlapping memory": (lambda x: x.sort()[0].unfold(0, 3, 1) * 2, R(9)),
    "a result that is its operand": (lambda x: x.neg().sort(stable=True)[0].view(torch.int32) + 1, R(9)),
    "an op that counts on a copy": (lambda w, i: F.embedding_bag(i[::2], w, torch.tensor([0, 2]), mode="sum", padding_idx=1), R(9, 5), torch.arange(8)),
    "nothing from call to call": (lambda x: x.sort(0)[0].sort(1)[0], R(2, 0)),
    "several results": (lambda x: (*x.sort(0), *x.topk(2)), R(5, 6)),
    "numbers of the sizes": (lambda x: torch.topk(x, x.shape[0] // 2)[0] * (x.shape[0] / 3), R(9)),
    "float of the sizes as argument": (lambda x: torch.histc(x, 4, -x.shape[0] * 0.5, x.shape[0] / 1.5), R(9)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NODES)
def test_nodes(name, dynamic):
    f, *args = NODES[name]
    assert caught(f, *args, dynamic=dynamic) == []
    assert left_to_aten()


def around_a_call(x):
    y = x.exp()
    return y.sort()[0] + y


def around_several_calls(x):
    a = x.exp()
    b = a.sort()[0].sin()
    c = a.cos()
    d = b.sort()[0]
    return c + d, a * b, d * 2 + a


def test_values_that_go_around_calls():
    compare(around_a_call, R(9))
    compare(around_several_calls, R(9))


def of_double_precision(x):
    return (x * 2).abs() + 1


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def quantised_sizes(x):
    return torch.nonzero(x > 0) + 1


def number(x):
    return x * x.long().sum().item() + x.shape[0]


GRAPHS = {
    "complex128": (of_double_precision, (torch.randn(5, dtype=torch.cdouble),), "torch.complex128"),
    "sizes that depend on data": (quantised_sizes, (R(9),), "depends on data"),
    "numbers that depend on data": (number, (R(9),), "depends on data"),
}


@pytest.mark.parametrize("name", GRAPHS)
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_whole_graphs(name):
    f, args, reason = GRAPHS[name]
    texts = caught(f, *args)
    assert len(texts) == 1 and "as a whole" in texts[0] and reason in texts[0], texts
    report = recorded()[-1]
    assert report.kernels == [] and report.nodes == len(report.aten) > 0
    assert all(reason in a.reason for a in report.aten)


def test_reports_do_not_keep_graphs():
    gm = torch.fx.symbolic_trace(lambda x: torch.sin(x) + 1)
    record(EagerRunner(gm, "no", "inference", {}).report)
    kept = weakref.ref(gm)
    del gm
    gc.collect()
    assert kept() is None


def test_without_fallback():
    for f, args in ((lambda x: x.sort()[0] + 1, (R(5),)), (branch, (R(5),))):
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="mlirc", options={"fallback": False})
        with pytest.raises(Exception, match="left to ATen"):
            compiled(*args)


def test_devices_and_layouts_of_others():
    compiled = torch.compile(lambda x: x + 1, backend="mlirc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compiled(torch.empty(3, device="meta")).device.type == "meta"
        sparse = torch.compile(lambda x, y: torch.sparse.mm(x, y) + 1, backend="mlirc")
        x, y = torch.eye(4).to_sparse(), R(4, 3)
        torch.testing.assert_close(sparse(x, y), y + 1)
        z = R(5, dtype=torch.cfloat)
        negated = z.conj().imag
        assert negated.is_neg()
        torch.testing.assert_close(compiled(negated), negated + 1)
        torch.testing.assert_close(torch.compile(lambda x: x * 2, backend="mlirc")(z.conj()), z.conj() * 2)


def test_backward_graphs_as_a_whole():
    """Label smoothing with dynamic shapes saves a float that depends on sizes."""
    f = torch.compile(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), backend="mlirc", dynamic=True)
    x, t = R(7, 5, requires_grad=True), torch.randint(0, 5, (7,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f(x, t).backward()
    (expected,) = torch.autograd.grad(F.cross_entropy(x, t, label_smoothing=0.1), x)
    torch.testing.assert_close(x.grad, expected)


@pytest.fixture
def failing(monkeypatch):
    """Kernels whose text has a sine or a square root in it are refused."""
    real = mlirc.driver.compile_kernels

    def compile_kernels(kernels, target, options, *rest):
        errors = [
            CompileError("no sines today", kernel=k.name, reproducer="/nowhere", origins=k.origins)
            for k in kernels
            if "math.sin" in k.text or "math.sqrt" in k.text
        ]
        if errors:
            errors[0].others = errors[1:]
            raise errors[0]
        return real(kernels, target, options, *rest)

    monkeypatch.setattr(mlirc.driver, "compile_kernels", compile_kernels)


def two_bad_kernels(x, y):
    return torch.sin(x + 1).sum(0) * 2, y @ y.t(), torch.sqrt(y.abs()).mean(1)


def test_failing_kernels_go_to_aten(failing):
    texts = caught(two_bad_kernels, R(5, 6), R(7, 7), options=LENIENT)
    assert len(texts) == 2, texts
    assert all("kernel k0" in t and "no sines today" in t and "/nowhere" in t for t in texts)
    report = recorded()[-1]
    assert {"aten.sin.default", "aten.sqrt.default"} <= {a.op for a in report.aten}
    assert "aten.mm.default" not in {a.op for a in report.aten}
    assert all("no sines today" in a.reason for a in report.aten)
    assert counters["mlirc"]["graphs"] == 1


def test_strict_raises_for_a_failing_kernel(failing):
    with pytest.raises(Exception, match="no sines today"):
        torch.compile(two_bad_kernels, backend="mlirc", options={"strict": True})(R(5, 6), R(7, 7))


def test_a_kernel_that_the_vectorizer_rejects(monkeypatch):
    """The real way: a lowering builds something that the worker cannot vectorize."""
    from mlirc.dialects.mlir import arith, ir, math
    from mlirc.frontend import registry

    def bad(b, node, x):
        def body(v):
            inner = ir.Operation.create("math.sincos", results=[v.type, v.type], operands=[v])
            return arith.addf(inner.results[0], ir.Operation.create("llvm.intr.trap", results=[]) and math.sin(v))

        return b.pointwise(x.shape, [x], x.dtype, x.dtype, x.dtype, body)

    monkeypatch.setitem(registry.LOWERINGS, torch.ops.aten.sin.default, bad)
    texts = caught(lambda x: torch.sin(x) + 1, R(33), options=LENIENT)
    assert len(texts) == 1
    path = texts[0].split("reproducer: ")[1].split()[0]
    with open(path) as f:
        assert "math.sin" in f.read()
    assert left_to_aten() == ["aten.add.Tensor", "aten.sin.default"]
    with pytest.raises(Exception, match="kernel"):
        caught(lambda x: torch.sin(x) + 2, R(33), options={"strict": True})


def test_a_lowering_that_raises(monkeypatch):
    from mlirc.frontend import registry

    def bad(b, node, x):
        raise KeyError("oops")

    monkeypatch.setitem(registry.LOWERINGS, torch.ops.aten.sin.default, bad)
    texts = caught(lambda x: torch.sin(x) + 1, R(33), options=LENIENT)
    assert len(texts) == 1 and "oops" in texts[0] and "test_backend_fallback.py" in texts[0]
    assert left_to_aten() == ["aten.sin.default"]


def test_a_pass_that_raises(monkeypatch):
    import mlirc.passes.pipeline as pipeline

    def bad(graph):
        raise IndexError("oops")

    name = next(iter(pipeline.GRAPH_PASSES))
    monkeypatch.setitem(pipeline.GRAPH_PASSES, name, bad)
    texts = caught(lambda x: torch.sin(x) + 1, R(33), options=LENIENT)
    assert len(texts) == 1 and "as a whole" in texts[0] and "oops" in texts[0]
    with pytest.raises(Exception, match="oops"):
        caught(lambda x: torch.sin(x) + 2, R(33), options={"strict": True})


@pytest.mark.parametrize("what", ["slow", "killed"])
def test_workers_that_give_no_answer(what, tmp_path):
    """A pass of the user's own that never ends, or that ends the worker."""
    body = "while True: pass" if what == "slow" else "os.kill(os.getpid(), signal.SIGKILL)"
    file = tmp_path / "mine.py"
    file.write_text(
        "import mlirc, os, signal\n"
        "@mlirc.register_pass(after='vector')\n"
        "def stop(module):\n"
        "    if 'math.sin' in str(module):\n"
        f"        {body}\n"
    )
    options = {"strict": False, "passes": (str(file),), "worker_timeout": 6.0, "workers": 1, "cache": False}
    texts = caught(lambda x: torch.sin(x) + 1, R(33), options=options)
    assert len(texts) == 1 and ("time limit" if what == "slow" else "SIGKILL") in texts[0], texts
    assert left_to_aten() == ["aten.add.Tensor", "aten.sin.default"]


def test_ops_with_effects():
    """Checks of errors, in their order, as calls into ATen within a graph that is compiled."""

    def f(x):
        return torch.linalg.inv(x * 2) + 1, torch.linalg.cholesky(x @ x.mT + torch.eye(4)).mT * 3

    x = (torch.eye(4) * 3 + torch.rand(4, 4)).requires_grad_()
    compare(f, x, options={"strict": True})
    assert "aten.linalg_inv_ex.default" in left_to_aten() and "aten.mm.default" not in left_to_aten()
    y = torch.compile(f, backend="mlirc", options={"strict": True})(x)
    torch.testing.assert_close(torch.autograd.grad((y[0] + y[1]).sum(), x), torch.autograd.grad(sum(f(x)).sum(), x))
    for bad, what in ((torch.zeros(4, 4), "linalg.inv"), (torch.full((4, 4), float("nan")), "linalg")):
        with pytest.raises(torch.linalg.LinAlgError, match=what):
            torch.compile(f, backend="mlirc", options={"strict": True})(bad)


def test_an_op_whose_meta_function_is_wrong():
    """An error, where kernels would read what is not there."""

    @torch.library.custom_op("mlirc_test::short", mutates_args=())
    def short(x: torch.Tensor) -> torch.Tensor:
        return x[:3].clone()

    short.register_fake(torch.empty_like)
    compiled = torch.compile(lambda x: short(x) * 2, backend="mlirc")
    with pytest.raises(RuntimeError, match=r"mlirc_test.short.default returned a tensor of torch.float32 \[3\], where .* \[900\]"):
        compiled(R(900))


def test_results_that_nobody_reads():
    """They may be other than described: those of `_embedding_bag` in bf16 are."""

    @torch.library.custom_op("mlirc_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.new_empty(0)

    twice.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    compare(lambda x: twice(x)[0] + 1, R(900))
