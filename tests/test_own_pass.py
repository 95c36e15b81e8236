"""Passes and strategies from a user's file: where they slot in, that workers and the cache know them, how they fail."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import mlirc
from mlirc import CompileError
from mlirc.cli import main
from mlirc.passes import imports
from mlirc.passes.registry import graph_stages, kernel_stages, load, read_files

README = (Path(mlirc.__file__).parent / "README.md").read_text()
QKV = ["--input", "2x16x16xf32"] * 3


def dump(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["dump", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def passes(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my_pass.py"
    path.write_text("import dataclasses\nimport mlirc\nfrom mlirc.dialects.mlir import arith, ir\n" + text)
    return str(path)


def compiled(f, path: str):
    return torch.compile(f, backend="mlirc", options={"passes": [path], "strict": True})


@pytest.fixture
def example(tmp_path) -> tuple[str, str]:
    """The two files of the README: (model.py, my_pass.py)."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    files = []
    for name, mark in (("model.py", "def attention"), ("my_pass.py", "register_pass")):
        (tmp_path / name).write_text(next(b for b in blocks if mark in b))
        files.append(str(tmp_path / name))
    return files[0], files[1]


def test_the_readme_s_example_in_the_dump(example):
    model, own = example
    args = (f"{model}:attention", *QKV, "--passes", own)
    before = dump(*args, "--stage", "canonicalize")
    after = dump(*args, "--stage", "multiply-instead")
    assert "arith.divf" in before and "1.250000e-01" not in before
    assert before.count("arith.divf") == after.count("arith.divf") + 1 and "1.250000e-01" in after
    assert "multiply-instead" in dump(*args, "--list")
    assert "unroll=1" in dump(*args, "--stage", "strategy", "--kernel", softmax_kernel(args))


def softmax_kernel(args) -> str:
    return re.search(r"k\d\d_\w*softmax\w*", dump(*args))[0]


def test_the_readme_s_example_computes_the_same(example):
    _, own = example

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) / 8, -1) @ v

    q, k, v = torch.randn(3, 2, 16, 16).unbind()
    torch.testing.assert_close(compiled(attention, own)(q, k, v), attention(q, k, v))


def test_a_graph_pass_sees_the_whole_graph_once(tmp_path):
    log = tmp_path / "log"
    own = passes(
        tmp_path,
        f"""
@mlirc.register_pass(after="sink-reshapes")
def count(module):
    functions = [str(f.name.value) for f in module.body.operations]
    with open({str(log)!r}, "a") as f:
        print(functions, file=f)
""",
    )
    compiled(lambda x: torch.softmax(x, -1) + 1, own)(torch.randn(4, 8))
    assert log.read_text() == "['main']\n"


KERNEL_PASS = """
@mlirc.register_pass(after="{stage}")
def subtract(module):
    found = []
    def look(op):
        if op.name == "arith.addf":
            found.append(op)
        return ir.WalkResult.ADVANCE
    module.operation.walk(look)
    for op in found:
        with ir.InsertionPoint(op):
            op.results[0].replace_all_uses_with(arith.subf(*op.operands))
        op.erase()
"""


@pytest.mark.parametrize("stage", ["linalg", "fusion", "kernel", "vector", "math"])
def test_a_pass_changes_what_is_compiled(tmp_path, stage, cache_dir):
    x, y = torch.randn(20), torch.randn(20)

    def f(x, y):
        return x + y

    # First without: what the cache holds then is for other options.
    assert torch.equal(torch.compile(f, backend="mlirc")(x, y), x + y)
    torch._dynamo.reset()
    assert torch.equal(compiled(f, passes(tmp_path, KERNEL_PASS.format(stage=stage)))(x, y), x - y)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend="mlirc")(x, y), x + y)


def test_a_changed_file_is_a_cache_miss_and_the_same_one_a_hit(tmp_path, cache_dir):
    x, y = torch.randn(20), torch.randn(20)

    def f(x, y):
        return x + y

    def entries() -> int:
        return len(list(cache_dir.iterdir()))

    own = passes(tmp_path, KERNEL_PASS.format(stage="vector"))
    assert torch.equal(compiled(f, own)(x, y), x - y)
    assert entries() == 1
    torch._dynamo.reset()
    assert torch.equal(compiled(f, own)(x, y), x - y)
    assert entries() == 1
    torch._dynamo.reset()
    passes(tmp_path, KERNEL_PASS.format(stage="vector").replace("arith.subf", "arith.mulf"))
    assert torch.equal(compiled(f, own)(x, y), x * y)
    assert entries() == 2


def test_a_changed_module_that_a_file_imports_is_a_cache_miss(tmp_path, cache_dir, monkeypatch):
    x, y = torch.randn(20), torch.randn(20)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rewrites").mkdir()
    (tmp_path / "rewrites" / "__init__.py").write_text("from .choice import OP\n")
    own = passes(tmp_path, "import rewrites\n" + KERNEL_PASS.format(stage="vector").replace("arith.subf", "getattr(arith, rewrites.OP)"))
    for op, expected in (("subf", x - y), ("mulf", x * y), ("subf", x - y)):
        (tmp_path / "rewrites" / "choice.py").write_text(f"OP = {op!r}\n# {'' if op == 'subf' else 'of another size'}\n")
        torch._dynamo.reset()
        assert torch.equal(compiled(lambda x, y: x + y, own)(x, y), expected)
    assert len(list(cache_dir.iterdir())) == 2
    (file,) = read_files([own])
    assert [m.name for m in file.modules] == ["rewrites", "rewrites.choice"]


def test_which_modules_are_the_user_s(tmp_path, monkeypatch):
    """Also one in a folder whose name begins like that of the package; not what is installed inside of a package of theirs."""
    installed = tmp_path / "project" / "site-packages"
    ours = tmp_path / "mlirc"
    monkeypatch.setattr(imports, "_OTHERS", [*imports._OTHERS, installed, ours])
    for path in ("mlirc_rules/one.py", "mlirc/two.py", "project/__init__.py", "project/site-packages/three.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("")
    for folder in (tmp_path, ours, tmp_path / "mlirc_rules"):
        monkeypatch.syspath_prepend(folder)
    assert [m.name for m in imports.own_modules("import one, two, project, torch, re")] == ["one", "project"]


def test_modules_that_the_program_has_imported_stay(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "my_rules_kept.py").write_text("class Rule: pass\n")
    before = importlib.import_module("my_rules_kept")
    imports.serve(imports.own_modules("import my_rules_kept"))
    assert importlib.import_module("my_rules_kept") is before


def test_a_file_that_leaves_kernels_alone_shares_their_cache(tmp_path):
    own = passes(tmp_path, '@mlirc.register_pass(after="fusion")\ndef look(module):\n    pass\n')
    assert load(read_files([own])).kernel_files == ()
    own = passes(tmp_path, "@mlirc.register_strategy\ndef keep(kernel, target, default):\n    return default\n")
    assert load(read_files([own])).kernel_files == read_files([own])


def test_a_strategy_is_replaced(tmp_path):
    own = passes(
        tmp_path,
        """
@mlirc.register_strategy
def narrow(kernel, target, default):
    assert target.name == "sapphirerapids" and kernel.domain.kind == "loops"
    return dataclasses.replace(default, lanes=8)

@mlirc.register_strategy
def serial(kernel, target, default):
    return dataclasses.replace(default, grain=12345 if default.lanes == 8 else 0)
""",
    )
    path = tmp_path / "model.py"
    path.write_text("def f(x):\n    return x * 2 + 1\n")
    args = (f"{path}:f", "--input", "100xf32", "--target", "sapphirerapids", "--passes", own, "--kernel", "0")
    strategy = dump(*args, "--stage", "strategy")
    assert "lanes=8" in strategy and "grain=12345" in strategy
    assert "%zmm" not in dump(*args, "--stage", "asm")


def test_upstream_passes_can_be_used(tmp_path):
    own = passes(
        tmp_path,
        """
from mlirc.dialects.mlir import PassManager

@mlirc.register_pass(after="fusion", name="upstream.generalize")
def generalize(module):
    PassManager.parse("builtin.module(func.func(linalg-generalize-named-ops))").run(module.operation)
""",
    )
    path = tmp_path / "model.py"
    path.write_text("def f(x):\n    return x.t() + 1\n")
    output = dump(f"{path}:f", "--input", "3x4xf32", "--passes", own, "--stage", "upstream.generalize")
    assert "---- graph0_inference upstream.generalize" in output


FAILURES = {
    "graph": ('@mlirc.register_pass(after="pack")\ndef divide(module):\n    1 / 0\n', "ZeroDivisionError: division by zero", "divide", 6),
    "kernel": ('@mlirc.register_pass(after="vector")\ndef divide(module):\n    1 / 0\n', "ZeroDivisionError", "divide", 6),
    "strategy": ("@mlirc.register_strategy\ndef divide(kernel, target, default):\n    1 / 0\n", "ZeroDivisionError", "divide", 6),
    "none": ("@mlirc.register_strategy\ndef divide(kernel, target, default):\n    pass\n", "returned a NoneType, not a strategy", "divide", None),
    "invalid": (
        '@mlirc.register_pass(after="linalg")\ndef divide(module):\n    list(module.body.operations)[0].attributes["function_type"] = '
        "ir.TypeAttr.get(ir.FunctionType.get([], []))\n",
        "the pass has left invalid IR",
        "divide",
        None,
    ),
    "stage": (
        '@mlirc.register_pass(after="fusing")\ndef divide(module):\n    pass\n',
        "no stage 'fusing' to put a pass after; stages of a graph: linalg, canonicalize,.* stages of a kernel: kernel, vector, math",
        "load passes",
        4,
    ),
    "taken": ('@mlirc.register_pass(after="linalg")\ndef fusion(module):\n    pass\n', "there is a stage 'fusion' already", "load passes", None),
    "name": ('@mlirc.register_pass(after="linalg", name="a b")\ndef f(module):\n    pass\n', "'a b' is no name", "load passes", None),
    "syntax": ("def f(:\n", "SyntaxError", "load passes", 4),
    "import": ("import no_such_module\n", "ModuleNotFoundError", "load passes", 4),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_names_pass_file_and_line(tmp_path, kind):
    text, reason, name, line = FAILURES[kind]
    own = passes(tmp_path, text)
    with pytest.raises(Exception) as caught:
        compiled(lambda x: x + 1, own)(torch.ones(3))
    error = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(error, CompileError)
    assert re.search(reason, error.reason), error.reason
    assert error.stage == name
    assert error.source == own + (f":{line}" if line else "") or (line is None and error.source.startswith(own))


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("def f(x):\n    return x + 1\n")
    assert "cannot read a file of the option `passes`" in dump(f"{path}:f", "--input", "3xf32", "--passes", "none.py", code=1)


def test_a_file_below_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    own = passes(tmp_path, "")
    assert [f.path for f in read_files(["~/my_pass.py"])] == [own]


def test_registering_elsewhere_warns_and_does_nothing():
    before = [*graph_stages(), *kernel_stages()]
    with pytest.warns(UserWarning, match="outside of a file named by the option `passes`"):

        @mlirc.register_pass(after="linalg")
        def mine(module):
            pass

    assert [*graph_stages(), *kernel_stages()] == before
