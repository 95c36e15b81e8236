"""The command line: `mlirc dump` shows every stage, errors say what there is, the cache can be looked after."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from mlirc.cli import main
from mlirc.lowering.target import Target
from mlirc.passes.registry import graph_stages, kernel_stages
from mlirc.reproducer import write_reproducer

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        return F.gelu(y)


net = Net().eval()
wrapped = {"unused": net}


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 8, -1) @ v


def broken(x):
    y = x + 1
    print("side effect")
    return y * 2


def sorted_sum(x):
    return torch.sort(x, -1)[0].sum(-1)


class Twice(nn.Module):
    def forward(self, x):
        return x * 2


def nothing(x):
    return 3


example_inputs = torch.randn(1, 3, 12, 12)
"""
GELU_LINE = MODEL[: MODEL.index("        return F.gelu")].count("\n") + 1
QKV = ["--input", "2x24x16xf32"] * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "some_model.py"
    path.write_text(MODEL)
    return str(path)


def mlirc(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def shown(output: str) -> list[str]:
    """The titles of what a dump printed."""
    return re.findall(r"^(?:#|//|;) ---- (.*)$", output, re.M)


def test_version():
    assert re.fullmatch(r"mlirc, version \d+\.\d+\.\d+\n", mlirc("--version").output)


def test_cache_can_be_counted_and_cleared(cache_dir):
    x = torch.randn(8)
    torch.compile(lambda x: x * 2 + 1, backend="mlirc")(x)
    assert re.match(rf"1 entries \(kernels, and what tuning found\), \d+\.\d MiB of at most 1024 MiB in {cache_dir}", mlirc("cache", "--stats").output)
    assert mlirc("cache", "--clear").output == f"removed 1 entries from {cache_dir}\n"
    assert mlirc("cache").output.startswith("0 entries")
    assert mlirc("cache", "--dir", str(cache_dir / "other")).output.endswith("other\n")


def test_list_names_stages_and_kernels(model):
    output = mlirc("dump", f"{model}:net").output
    for stage in (*graph_stages(), *kernel_stages()):
        assert f"  {stage}\n" in output
    assert re.search(r"k\d\d_conv_gelu  1 call\n", output)
    assert "left to ATen" not in output
    assert mlirc("dump", f"{model}:net", "--list").output == output
    assert "left to ATen: aten.sort.default" in mlirc("dump", f"{model}:sorted_sum", "--input", "4x4xf32").output


@pytest.mark.parametrize(("name", "inputs", "anchor"), [("net", [], "conv_gelu"), ("attention", QKV, "matmul")])
def test_every_stage(model, tmp_path, name, inputs, anchor):
    folder = tmp_path / "out"
    output = mlirc("dump", f"{model}:{name}", "-o", folder, *inputs).output
    files = sorted(folder.rglob("*.*"))
    assert output == f"{len(files)} files in {folder}\n"
    graph = folder / "graph0_inference"
    text = {f.name[3:]: f.read_text() for f in graph.iterdir() if f.is_file()}
    assert "torch." in text["torch.py"] and "torch.ops.aten" in text["fx.py"]
    assert "linalg.generic" in text["linalg.mlir"] and "mlirc.group" in text["fusion.mlir"]
    assert re.search(rf"call @k\d\d_\w*{anchor}\w*\(", text["outline.mlir"])
    kernel = next(f for f in graph.iterdir() if f.is_dir() and anchor in f.name)
    text = {f.name[3:]: f.read_text() for f in kernel.iterdir()}
    assert "linalg.generic" in text["kernel.mlir"] and "mlirc.strategy" in text["strategy.mlir"]
    assert "vector<" in text["vector.mlir"] and "linalg" not in text["vector.mlir"]
    assert "math.erf" not in text.get("math.mlir", "") and "llvm.func" in text["convert-to-llvm.mlir"]
    assert f"define void @{kernel.name}(" in text["llvm.ll"] and f"{kernel.name}:" in text["asm.s"]
    # Numbers follow the order of the stages, and what changes nothing leaves a gap.
    stages = [*graph_stages(), *kernel_stages()]
    for file in files:
        number, _, stage = file.stem.partition("_")
        assert stages[int(number)] == stage
    for one in [f for f in graph.iterdir() if f.is_dir()] + [graph]:
        contents = [f.read_text() for f in sorted(one.iterdir()) if f.is_file()]
        assert all(a != b for a, b in zip(contents, contents[1:]))


@pytest.mark.parametrize("locations", [False, True])
def test_stages_are_those_that_are_listed_in_order(model, locations):
    flags = ["--locations"] if locations else []
    titles = shown(mlirc("dump", f"{model}:net", "--after", "all", *flags).output)
    stages = [t.split()[-1] for t in titles]
    count = len(graph_stages())
    assert stages[:count] == graph_stages()
    kernels = stages[count:]
    expected = kernel_stages(locations=locations)
    assert kernels == expected * (len(kernels) // len(expected))


def test_machine_code_is_for_the_target(model):
    for target, registers in (("sapphirerapids", "zmm"), ("x86-64-v3", "ymm")):
        for name, inputs in (("net", []), ("attention", QKV)):
            output = mlirc("dump", f"{model}:{name}", "--stage", "asm", "--target", target, *inputs).output
            assert f"%{registers}" in output
            assert ("%zmm" in output) == (registers == "zmm")


def test_one_kernel(model):
    listed = mlirc("dump", f"{model}:net").output
    name = re.search(r"k\d\d_conv_gelu", listed)[0]
    number = str(int(name[1:3]))
    outputs = [mlirc("dump", f"{model}:net", "--kernel", n, "--stage", "strategy").output for n in (name, name[1:3], number, name[:3])]
    assert len(set(outputs)) == 1
    assert shown(outputs[0]) == [f"graph0_inference {name} strategy"]
    stages = [t.split()[-1] for t in shown(mlirc("dump", f"{model}:net", "--kernel", name).output)]
    assert stages == kernel_stages()
    fewer = [t.split()[-1] for t in shown(mlirc("dump", f"{model}:net", "--kernel", name, "--changed-only").output)]
    assert fewer[0] == "kernel" and fewer[-1] == "asm" and set(fewer) < set(stages)


def test_after_means_every_run_of_a_pass(model):
    titles = shown(mlirc("dump", f"{model}:net", "--after", "canonicalize", "--after", "func.func(lower-vector-mask)", "--kernel", "0").output)
    assert [t.split()[-1] for t in titles] == ["canonicalize-2", "lower-vector-mask", "canonicalize-3"]


def test_source_lines_last_to_the_assembly(model):
    listed = mlirc("dump", f"{model}:net").output
    kernel = re.search(r"k\d\d_conv_gelu", listed)[0]
    args = ("dump", f"{model}:net", "--kernel", kernel, "--locations", "--stage")
    for stage in ("kernel", "vector", "split-tile-zeros"):
        assert f'"{model}":{GELU_LINE}' in mlirc(*args, stage).output
    llvm = mlirc(*args, "llvm").output
    path = Path(model)
    assert f'!DIFile(filename: "{path.name}", directory: "{path.parent}")' in llvm
    for line in (GELU_LINE - 1, GELU_LINE):
        numbers = re.findall(rf"^(!\d+) = !DILocation\(line: {line}, ", llvm, re.M)
        assert any(f"!dbg {n}\n" in llvm for n in numbers)
    assert re.search(r"@llvm\.fma\.v\d+f32\(.*!dbg", llvm)
    assert f".loc\t1 {GELU_LINE} " in mlirc(*args, "asm").output
    assert "loc(" not in mlirc("dump", f"{model}:net", "--kernel", kernel, "--stage", "kernel").output


def test_a_shared_kernel_has_the_lines_of_all_its_layers(tmp_path):
    path = tmp_path / "layers.py"
    path.write_text("def f(x):\n    x = (x @ x).relu()\n    x = (x @ x).relu()\n    return x\n")
    output = mlirc("dump", f"{path}:f", "--input", "16x16xf32", "--stage", "kernel", "--locations").output
    assert any(f'"{path}":2' in kernel and f'"{path}":3' in kernel for kernel in output.split("// ---- "))


def test_graphs_are_told_apart(model):
    args = ("dump", f"{model}:broken", "--input", "8xf32", "--stage", "fx")
    assert shown(mlirc(*args).output) == ["graph0_inference fx", "graph1_inference fx"]
    assert shown(mlirc(*args, "--graph", "1").output) == ["graph1_inference fx"]
    assert "there are: 0 (inference), 1 (inference)" in mlirc(*args, "--graph", "2", code=2).output
    titles = shown(mlirc("dump", f"{model}:net", "--train", "--stage", "torch", "--stage", "linalg").output)
    assert titles == ["graph0_forward torch", "graph0_forward linalg", "graph1_backward linalg"]


def test_dynamic_sizes(model):
    args = ("dump", f"{model}:attention", *QKV, "--stage", "linalg")
    assert "tensor<?x" in mlirc(*args, "--dynamic").output
    assert "tensor<?x" not in mlirc(*args).output


def test_module_class_and_dots(model):
    assert "aten.mul" in mlirc("dump", f"{model}:Twice", "--stage", "fx").output
    assert "aten.convolution" in mlirc("dump", f"{model}:net.conv", "--stage", "fx").output


@pytest.mark.parametrize("value", ["(torch.ones(3), 2)", "{'x': torch.ones(3), 'n': 2}", "lambda: (torch.ones(3), 2)"])
def test_kinds_of_example_inputs(tmp_path, value):
    path = tmp_path / "kinds.py"
    path.write_text(f"import torch\nexample_inputs = {value}\ndef f(x, n):\n    return x * n\n")
    assert "tensor<3xf32>" in mlirc("dump", f"{path}:f", "--stage", "linalg").output


@pytest.mark.parametrize("kind", ["2x3xf64", "f32", "4xbf16", "4xf16", "3xi64", "3xi32", "3xi8", "3xu8", "3xbool"])
def test_kinds_of_inputs(model, kind):
    from mlirc.frontend.user_model import DTYPES, make_input

    made = make_input(kind)
    assert made.dtype == DTYPES[kind.rpartition("x")[2]] and list(made.shape) == [int(n) for n in kind.split("x")[:-1]]
    assert "aten.mul" in mlirc("dump", f"{model}:Twice", "--input", kind, "--stage", "fx").output


def test_exported_program(tmp_path):
    path = tmp_path / "exported.pt2"
    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.ones(2, 4),))
    torch.export.save(program, str(path))
    assert "tensor<2x3xf32>" in mlirc("dump", str(path), "--stage", "linalg").output
    assert "tensor<5x3xf32>" not in mlirc("dump", str(path), "--stage", "linalg").output


def test_export(model, tmp_path):
    out = tmp_path / "net.a"
    text = mlirc("export", f"{model}:Net", "-o", out, "--dynamic").output
    assert f"{out}: " in text and f"{tmp_path / 'net.h'}: how to call it" in text
    assert "x  float  [1, 3, sizes[0], sizes[1]]" in (tmp_path / "net.h").read_text()
    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.ones(2, 4),))
    torch.export.save(program, str(tmp_path / "saved.pt2"))
    mlirc("export", tmp_path / "saved.pt2", "-o", tmp_path / "saved.a", "--target", "x86-64-v3")
    assert "int saved_run(" in (tmp_path / "saved.h").read_text()
    assert "x86-64-v3" in (tmp_path / "saved.h").read_text()
    mlirc("export", f"{model}:attention", *QKV, "-o", tmp_path / "attention.a")


def test_export_of_what_cannot_be(model, tmp_path):
    out = str(tmp_path / "net.a")
    text = mlirc("export", f"{model}:sorted_sum", "-o", out, code=1).output
    assert "run in ATen" in text and "aten.sort" in text
    assert "neither a static library" in mlirc("export", f"{model}:Net", "-o", tmp_path / "net.dll", code=2).output
    assert "unknown target" in mlirc("export", f"{model}:Net", "-o", out, "--target", "pentium", code=2).output
    assert "has no 'nett'" in mlirc("export", f"{model}:nett", "-o", out, code=2).output
    assert "No such file or directory" in mlirc("export", f"{model}:Net", "-o", tmp_path / "none" / "net.a", code=1).output
    assert "missing a required argument" in mlirc("export", f"{model}:attention", "-o", out, code=1).output
    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.ones(2, 4),))
    torch.export.save(program, str(tmp_path / "saved.pt2"))
    assert "leave out" in mlirc("export", tmp_path / "saved.pt2", "-o", out, "--dynamic", code=2).output


def test_a_reproducer_names_the_command_that_reads_it(model, tmp_path, monkeypatch):
    (tmp_path / "a folder").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a folder"))
    own = tmp_path / "a folder" / "my passes.py"
    own.write_text("")
    text = mlirc("dump", f"{model}:attention", *QKV, "--kernel", "0", "--stage", "kernel").output
    path = write_reproducer("k00_something", text, Target.parse("x86-64-v3"), [str(own)])
    command = shlex.split(Path(path).read_text().splitlines()[0].removeprefix("// mlirc "))
    assert command[:2] == ["dump", path] and command[-2:] == ["--passes", str(own)]
    stages = [t.split()[-1] for t in shown(mlirc(*command).output)]
    assert stages == kernel_stages()
    assert "%ymm" in mlirc(*command, "--stage", "asm").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{model}:net", "--stage", "linalgg"], "no stage 'linalgg'; there are: torch, fx, linalg, "),
        (["{model}:net", "--after", "ccse"], "no pass 'ccse'; there are: torch, "),
        (["{model}:net", "--kernel", "k99"], "no kernel 'k99'; there are: k00_"),
        (["{model}:net", "--kernel", "0", "--stage", "linalg"], "no stage 'linalg'; there are: kernel, "),
        (["{model}:net", "--target", "pentium"], "unknown target 'pentium'; valid targets: host, "),
        (["{model}:net", "--mode", "fast"], "unknown mode 'fast'; valid modes: default"),
        (["{model}:net", "--option", "fast=1"], "unknown option fast; valid options: "),
        (["{model}:net", "--option", "fast"], "--option wants NAME=VALUE"),
        (["{model}:net", "--input", "1x2"], "'1x2' is not a shape and a dtype"),
        (["{model}:nett"], "has no 'nett'; it has: Net, net, attention"),
        (["{model}"], "it has: Net, net, attention"),
        (["{model}:example_inputs"], "it has: Net, net, attention"),
        (["nowhere.py:net"], "there is no file nowhere.py"),
        (["nowhere.mlir"], "there is no file nowhere.mlir"),
        (["{model}.txt"], "neither FILE.py:NAME"),
    ],
)
def test_what_is_not_there_is_said(model, args, message):
    assert message in mlirc("dump", *[a.format(model=model) for a in args], code=2).output


def test_no_inputs_and_no_graph(model, tmp_path):
    path = tmp_path / "bare.py"
    path.write_text("def f(x):\n    return x\n")
    assert "no inputs: give --input" in mlirc("dump", f"{path}:f", code=2).output
    assert "there is no graph" in mlirc("dump", f"{model}:nothing", code=1).output


def test_a_folder_that_cannot_be_made(model, tmp_path):
    (tmp_path / "file").write_text("")
    output = mlirc("dump", f"{model}:attention", *QKV, "--stage", "linalg", "-o", tmp_path / "file" / "out", code=1).output
    assert re.fullmatch(r"Error: /.*/file.*: Not a directory\n", output), output


def test_a_kernel_that_does_not_compile(tmp_path):
    path = tmp_path / "bad.mlir"
    path.write_text("func.func @kernel(")
    assert "not the text of a kernel" in mlirc("dump", path, code=1).output
    for text in ("module {}", "func.func @f() { return }", "func.func @f() { return }\nfunc.func @g() { return }"):
        path.write_text(text)
        assert "not a kernel: that is a module of one function" in mlirc("dump", path, code=1).output
    path.write_bytes(b"\xff\xfe\x00")
    assert "not the text of a kernel" in mlirc("dump", path, code=1).output
    assert "to be looked at with `dump`" in mlirc("explain", path, code=2).output


def test_numbers_that_are_none(model):
    assert "no kernel '²'" in mlirc("dump", f"{model}:attention", *QKV, "--kernel", "²", code=2).output
    output = mlirc("dump", f"{model}:attention", "--input", "99999999999999999999xf32", code=1).output
    assert "Overflow" in output and "frame" not in output, output


def test_what_a_lowering_refuses_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "fft.py"
    path.write_text("import torch\ndef f(x):\n    return torch.sort(x)[0]\n")
    output = mlirc("dump", f"{path}:f", "--input", "8xf32", "--option", "fallback=false", "--stage", "asm", code=1).output
    assert "would be left to ATen" in output and f"{path}:3" in output and "Traceback" not in output


def test_errors_of_the_user_s_file_name_its_line(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("import torch\n\nraise KeyError('gone')\n")
    assert f"Error: {path}:3: KeyError: 'gone'" in mlirc("dump", f"{path}:f", code=1).output
    path.write_text("import torch\nexample_inputs = torch.ones(3)\n\n\ndef f(x):\n    return x @ torch.ones(4)\n")
    for command in ("dump", "explain"):
        output = mlirc(command, f"{path}:f", code=1).output
        assert "size" in output and f"{path}" in output


def test_explain(model):
    output = mlirc("explain", f"{model}:sorted_sum", "--input", "4x4xf32").output
    assert "aten.sort.default" in output and "Compile time:" in output


def test_in_a_process_of_its_own(model):
    command = [sys.executable, "-m", "mlirc.cli", "dump", f"{model}:attention", *QKV, "--stage", "asm", "--target", "sapphirerapids"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "%zmm" in done.stdout
    done = subprocess.run([*command[:3], "cache", "--help"], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0 and "--clear" in done.stdout
