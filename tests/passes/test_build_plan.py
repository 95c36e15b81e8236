"""The plan of the native program: steps, buffers and lifetimes."""

from __future__ import annotations

from mlirc.dialects.sizes import parse
from mlirc.passes.build_plan import PlannedGraph, build_plan
from mlirc.runtime.plan import Buffer, HostStep, KernelStep, Pointer
from mlirc.tests.passes.graph_text import function, transformed

T = "tensor<4x8xf32>"
KERNELS = f"func.func private @k0({T}) -> {T}\nfunc.func private @k1({T}, {T}) -> {T}\nfunc.func private @aten_0({T}) -> {T}\n"


def call(name: str, callee: str, arguments: str, kernel: int | None, count: int = 1, extra: str = "") -> str:
    attributes = [f"mlirc.kernel = {kernel} : i32"] if kernel is not None else []
    attributes += ['mlirc.sizes = [["4", "8"]]', *([extra] if extra else [])]
    return f"{name} = func.call @{callee}({arguments}) {{{', '.join(attributes)}}} : ({', '.join([T] * count)}) -> {T}\n"


def planned(body: str, result: str, n_outputs: int = 1, weights=(), arguments=None, attributes=None, symbols=()) -> PlannedGraph:
    out: list[PlannedGraph] = []
    text = KERNELS + function(arguments or [("%x", T), ("%y", T)], body, [(r.strip(), T) for r in result.split(",")], attributes)
    transformed(text, lambda main: out.append(build_plan(main, symbols, n_outputs, ["a", "b"], weights)))
    return out[0]


def at(kind: str, index: int, offset: int = 0) -> Pointer:
    return Pointer(Buffer(kind, index), offset)  # type: ignore[arg-type]


def test_intermediates_live_in_the_arena():
    body = call("%a", "k0", "%x", 0) + call("%b", "k0", "%a", 0) + call("%c", "k1", "%b, %y", 1, 2)
    plan = planned(body, "%c").plan
    assert plan.steps == [
        KernelStep("a", [at("input", 0), at("arena", 0)]),
        KernelStep("a", [at("arena", 0), at("arena", 1)]),
        KernelStep("b", [at("arena", 1), at("input", 1), at("output", 0)]),
    ]
    assert [(b.nbytes, b.first, b.last) for b in plan.arena] == [(128, 0, 1), (128, 1, 2)]
    assert (plan.n_inputs, plan.n_outputs) == (2, 1)


def test_calls_back_into_aten():
    body = call("%a", "k0", "%x", 0) + call("%b", "aten_0", "%a", None) + call("%c", "k1", "%b, %a", 1, 2)
    graph = planned(body, "%c")
    assert isinstance(graph.plan.steps[1], HostStep)
    (host,) = graph.hosts
    assert host.name == "aten_0" and host.results == [0]
    assert host.operands[0].pointer == at("arena", 0) and host.operands[0].strides == [8, 1]
    assert graph.plan.steps[2] == KernelStep("b", [at("host", 0), at("arena", 0), at("output", 0)])
    assert graph.plan.arena[0].last == 2


def test_views_are_offsets():
    body = call("%a", "k0", "%x", 0)
    body += f"%s = tensor.extract_slice %a[1, 2] [2, 4] [1, 1] : {T} to tensor<2x4xf32>\n"
    body += "%b = func.call @k2(%s) {mlirc.kernel = 1 : i32, mlirc.sizes = [[\"4\", \"8\"]]} : (tensor<2x4xf32>) -> tensor<4x8xf32>\n"
    text = "func.func private @k2(tensor<2x4xf32>) -> tensor<4x8xf32>\n" + KERNELS
    out = []
    transformed(text + function([("%x", T)], body, [("%b", T)]), lambda main: out.append(build_plan(main, (), 1, ["a", "b"])))
    assert out[0].plan.steps[1].args[0] == at("arena", 0, 40)


def test_writes_go_to_inputs():
    body = call("%a", "k0", "%x", 0) + call("%w", "k0", "%a", 0, extra="mlirc.write = 1 : i32")
    plan = planned(body, "%a, %w").plan
    assert plan.steps[1] == KernelStep("a", [at("output", 0), at("input", 1)])


def test_symbols():
    kind = "tensor<?x8xf32>"
    text = f"func.func private @k0({kind}, index) -> {kind}\n"
    body = f'%a = func.call @k0(%x, %s) {{mlirc.kernel = 0 : i32, mlirc.sizes = [["s0", "8"]]}} : ({kind}, index) -> {kind}\n'
    body += f'%b = func.call @k0(%a, %s) {{mlirc.kernel = 0 : i32, mlirc.sizes = [["s0", "8"]]}} : ({kind}, index) -> {kind}\n'
    attributes = {"%s": 'mlirc.symbol = "s0"', "%x": 'mlirc.sizes = ["s0", "8"]'}
    out = []
    transformed(
        text + function([("%s", "index"), ("%x", kind)], body, [("%b", kind)], attributes),
        lambda main: out.append(build_plan(main, ["s0"], 1, ["a"])),
    )
    plan = out[0].plan
    assert plan.symbols == ["s0"] and plan.arena[0].nbytes == parse("32*s0")
    assert plan.steps[0] == KernelStep("a", [at("input", 0), parse("s0"), at("arena", 0)])


def test_what_weights_alone_decide_is_a_plan_of_its_own():
    body = call("%p", "k0", "%y", 0) + call("%q", "k0", "%p", 0) + call("%c", "k1", "%x, %q", 1, 2)
    graph = planned(body, "%c", weights=[1])
    assert graph.weights is not None and len(graph.weights.steps) == 2
    assert len(graph.plan.steps) == 1 and graph.plan.steps[0].args[0] == at("input", 0)
    assert graph.plan.n_inputs > 2 and graph.weight_bytes[-1] == 128
    # Results that the caller gets are computed in every call.
    graph = planned(call("%p", "k0", "%y", 0), "%p", weights=[1])
    assert graph.weights is None and len(graph.plan.steps) == 1
