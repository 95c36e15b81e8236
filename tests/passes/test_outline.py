"""Groups become kernels of their own; identical ones are one."""

from __future__ import annotations

from mlirc.passes.fuse import fuse
from mlirc.passes.layouts import Layouts
from mlirc.passes.materialize import materialize
from mlirc.passes.outline import outline
from mlirc.tests.lowering.test_to_llvm import filecheck
from mlirc.tests.passes.graph_text import function, generic, matmul, transformed

T, ROW = "tensor<4x8xf32>", "tensor<4xf32>"


def outlined(text: str, writes=()):
    """(the module afterwards, the kernels)."""
    kernels = []

    def run(main):
        materialize(main, writes)
        fuse(main, Layouts(main).shapes)
        kernels.extend(outline(main, writes))

    return transformed(text, run), kernels


def located(body: str, *names: str) -> str:
    """The generics of `body` get the locations of these FX nodes, in order."""
    left = list(names)
    lines = [line + f' loc("{left.pop(0)}")' if line.startswith("} ->") and left else line for line in body.splitlines()]
    return "\n".join(lines) + "\n"


def test_calls_and_names():
    body = matmul("%m", "%x", "%w", 4, 8, 8) + generic("%g", [("%m", T)], T)
    text, kernels = outlined(function([("%x", T), ("%w", "tensor<8x8xf32>")], located(body, "tanh_3", "exp_7"), [("%g", T)]))
    filecheck(text, "CHECK: %[[R:.*]] = call @k00_tanh_exp(%arg0, %arg1) {mlirc.kernel = 0 : i32, mlirc.sizes = {{.*}}}\nCHECK-NOT: linalg.generic\nCHECK: return %[[R]]")
    (kernel,) = kernels
    assert kernel.name == "k00_tanh_exp" and kernel.origins == ["tanh_3", "exp_7"]
    filecheck(
        kernel.text,
        """
        CHECK: func.func @kernel(%[[X:.*]]: tensor<4x8xf32>, %[[W:.*]]: tensor<8x8xf32>) -> tensor<4x8xf32>
        CHECK-SAME: mlirc.result_strides = {{\\[\\["8", "1"\\]\\]}}
        CHECK-NOT: mlirc.group
        CHECK: linalg.generic
        CHECK-SAME: mlirc.kind = "contraction"
        CHECK: math.exp
        CHECK: return
        """,
    )
    assert "loc(" not in kernel.text and 'loc("tanh_3")' in kernel.located


def test_identical_layers_share_a_kernel():
    body = ""
    value = "%x"
    names: list[str] = []
    for n in range(4):
        body += matmul(f"%m{n}", value, f"%w{n}", 4, 8, 8) + generic(f"%g{n}", [(f"%m{n}", T)], T)
        value = f"%g{n}"
        names += [f"sin_{n}", f"exp_{n}"]
    arguments = [("%x", T), *((f"%w{n}", "tensor<8x8xf32>") for n in range(4))]
    text, kernels = outlined(function(arguments, located(body, *names), [(value, T)]))
    assert len(kernels) == 1 and text.count("call @k00_sin_exp(") == 4
    assert kernels[0].origins == names
    assert 'loc("sin_0")' in kernels[0].located and 'loc("sin_3")' in kernels[0].located


def test_a_product_says_what_it_returns_if_that_is_large():
    """What another kernel reads is no such thing, nor what is small or no product."""
    wide, narrow = "tensor<1024x512xf32>", "tensor<1024x8xf32>"
    body = matmul("%m", "%x", "%w", 1024, 512, 512) + matmul("%n", "%m", "%w", 1024, 512, 512)
    body += matmul("%y", "%n", "%v", 1024, 512, 8) + generic("%p", [("%x", wide)], wide)
    arguments = [("%x", wide), ("%w", "tensor<512x512xf32>"), ("%v", "tensor<512x8xf32>")]
    _, read = outlined(function(arguments, body, [("%y", narrow), ("%p", wide)]))
    assert not any("mlirc.returned" in k.text for k in read)
    shown = "%s = tensor.expand_shape %n [[0], [1, 2]] output_shape [1024, 2, 256] : tensor<1024x512xf32> into tensor<1024x2x256xf32>\n"
    body = matmul("%m", "%x", "%w", 1024, 512, 512) + matmul("%n", "%m", "%w", 1024, 512, 512) + shown
    _, returned = outlined(function(arguments, body, [("%s", "tensor<1024x2x256xf32>")]))
    assert ["mlirc.returned = array<i64: 0>" in k.text for k in returned] == [False, True]


def test_other_strides_are_other_kernels():
    body = generic("%a", [("%x", T)], T) + generic("%b", [("%y", T)], T)
    arguments = [("%x", T), ("%y", T)]
    assert len(outlined(function(arguments, body, [("%a", T), ("%b", T)]))[1]) == 1
    strides = {"%y": 'mlirc.strides = ["100", "1"]'}
    kernels = outlined(function(arguments, body, [("%a", T), ("%b", T)], strides))[1]
    assert len(kernels) == 2 and 'mlirc.strides = ["100", "1"]' in kernels[1].text


def test_sizes_are_arguments():
    kind = "tensor<?x8xf32>"
    body = generic("%a", [("%x", kind)], kind).replace("tensor.empty()", "tensor.empty(%s)")
    attributes = {"%s": 'mlirc.symbol = "s0"', "%x": 'mlirc.sizes = ["s0", "8"]'}
    text, (kernel,) = outlined(function([("%s", "index"), ("%x", kind)], body, [("%a", kind)], attributes))
    filecheck(text, "CHECK: call @k00{{.*}}(%arg1, %arg0)")
    filecheck(kernel.text, 'CHECK: @kernel(%{{.*}}: tensor<?x8xf32> {mlirc.sizes = ["n0", "8"]}, %{{.*}}: index {mlirc.name = "n0"})')


def test_computed_sizes_of_a_concatenation():
    kind = "tensor<?x8xf32>"
    body = f'%c = tensor.concat dim(0) %x, %x {{mlirc.sizes = ["2*s0", "8"]}} : ({kind}, {kind}) -> {kind}\n'
    attributes = {"%s": 'mlirc.symbol = "s0"', "%x": 'mlirc.sizes = ["s0", "8"]'}
    text, (kernel,) = outlined(function([("%s", "index"), ("%x", kind)], body, [("%c", kind)], attributes))
    filecheck(text, "CHECK: %[[TWO:.*]] = arith.muli\nCHECK: call @k00{{.*}}(%arg1, %arg0, %[[TWO]])")
    filecheck(kernel.text, 'CHECK: tensor.concat {{.*}} {mlirc.sizes = ["n1", "8"]}')


def test_writes_come_last_and_say_where():
    body = generic("%a", [("%x", T)], T) + generic("%b", [("%x", T)], T, body="math.sin")
    text, kernels = outlined(function([("%x", T)], body, [("%b", T), ("%a", T)]), [0])
    calls = [line for line in text.splitlines() if "call @" in line]
    assert len(calls) > 2 and ["mlirc.write = 0" in c for c in calls] == [False] * (len(calls) - 1) + [True]
    strides = {"%x": 'mlirc.strides = ["1", "4"]'}
    _, kernels = outlined(function([("%x", T)], body, [("%b", T), ("%a", T)], strides), [0])
    assert any('mlirc.result_strides = [["1", "4"]]' in k.text for k in kernels)


def test_several_results():
    body = generic("%s", [("%x", T)], ROW, ["i, j", "i"], "arith.addf", "pr", "ij", "0.0")
    body += generic("%a", [("%x", T), ("%s", ROW)], T, ["i, j", "i", "i, j"], "arith.divf")
    text, (kernel,) = outlined(function([("%x", T)], body, [("%a", T), ("%s", ROW)]))
    filecheck(text, "CHECK: %[[R:.*]]:2 = call @k00\nCHECK: return %[[R]]#1, %[[R]]#0")
    assert "-> (tensor<4xf32>, tensor<4x8xf32>)" in kernel.text
