"""The package as a whole: light imports, the list of subpackages, the entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import mlirc

ROOT = Path(mlirc.__file__).parent


def run(code: str, **kwargs) -> str:
    """The output of `code` in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120, **kwargs).stdout


# What a compile worker imports, besides the package itself.
TORCH_FREE = ["driver", "options", "errors", "log", "passes", "lowering", "dialects", "dialects.mlir", "runtime.plan", "runtime.cache", "runtime.pool"]


@pytest.mark.parametrize("module", ["", *TORCH_FREE])
def test_importing_needs_no_torch(module):
    name = "mlirc" + ("." + module if module else "")
    path = ROOT.joinpath(*module.split("."))
    if module and not path.with_suffix(".py").exists() and not path.is_dir():
        pytest.skip(f"{name} does not exist yet")
    # A module that is absent from sys.modules was not imported, by whatever way.
    code = f"import sys, importlib; importlib.import_module({name!r}); print('torch' in sys.modules)"
    assert run(code, cwd="/").strip() == "False"


def test_a_kernel_of_known_sizes_needs_no_sympy():
    """Which takes a third of the start of a compile worker."""
    code = """import sys
from mlirc.driver import compile_kernel
from mlirc.lowering.target import Target
text = '''#map = affine_map<(d0, d1) -> (d0, d1)>
func.func @kernel(%x: tensor<8x64xf32>) -> tensor<8x64xf32> attributes {mlirc.result_strides = [["64", "1"]]} {
  %e = tensor.empty() : tensor<8x64xf32>
  %r = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
    ins(%x : tensor<8x64xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<8x64xf32>
  return %r : tensor<8x64xf32>
}'''
assert compile_kernel(text, Target.parse("x86-64-v3"), "k")
print(sorted({"sympy", "torch"} & {*sys.modules}))"""
    assert run(code, cwd="/").strip() == "[]"


def test_public_names_are_listed_and_lazy():
    out = run("import mlirc, sys; print(sorted(set(mlirc.__all__) - set(dir(mlirc)))); mlirc.Options; print('torch' in sys.modules)")
    assert out.split() == ["[]", "False"]


def test_unknown_public_name():
    with pytest.raises(AttributeError, match="no_such_thing"):
        getattr(mlirc, "no_such_thing")  # noqa: B009


def test_every_package_folder_is_packaged():
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {f"mlirc.{init.parent.name}" for init in ROOT.glob("[a-z]*/__init__.py") if init.parent.name not in ("build", "dist", "tests")}
    assert set(setuptools["packages"]) == {"mlirc", *folders}
    # What is nested deeper comes by a pattern.
    nested = {f"mlirc.{init.relative_to(ROOT).parts[0]}" for init in ROOT.glob("[a-z]*/*/__init__.py")} & folders
    assert nested <= set(setuptools["package-data"])


def test_entry_points():
    backend = {e.name: e.value for e in metadata.entry_points(group="torch_dynamo_backends")}
    scripts = {e.name: e.value for e in metadata.entry_points(group="console_scripts")}
    assert backend["mlirc"] == "mlirc.frontend.entry:mlirc"
    assert scripts["mlirc"] == "mlirc.cli:main"


def test_backend_is_listed_without_importing_mlirc():
    code = "import torch, sys; print('mlirc' in torch._dynamo.list_backends(), 'mlirc' in sys.modules)"
    assert run(code, cwd="/").split() == ["True", "False"]
