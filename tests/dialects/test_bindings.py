"""Where MLIR's bindings look for the classes of a dialect."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from mlirc.dialects.mlir import ir
from mlirc.dialects.own import load

sought = []

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        sought.append(name)

sys.meta_path.insert(0, Finder)
with ir.Context(), ir.Location.unknown():
    load()
    module = ir.Module.parse('''func.func @f(%x: f32, %t: tensor<4xf32>) -> f32 {
      %a = "mlirc.silu"(%x) : (f32) -> f32
      %b = "mlirc.silu"(%a) : (f32) -> f32
      %c = linalg.fill ins(%b : f32) outs(%t : tensor<4xf32>) -> tensor<4xf32>
      return %b : f32
    }''')
    for _ in range(2):
        print([type(op).__name__ for op in module.body.operations[0].regions[0].blocks[0].operations])
        ir.Attribute.parse("#linalg.iterator_type<parallel>")
print(sorted(name for name in sought if name.endswith((".mlirc", ".linalg"))))
print(any("opdsl" in name for name in sys.modules))
"""


def test_our_dialect_is_found_once_and_linalg_without_its_language():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, again, sought, language = done.stdout.splitlines()
    assert first == again and "FillOp" in first
    assert "torch_mlir.dialects" not in sought and language == "False", done.stdout
