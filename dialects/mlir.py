"""The MLIR Python bindings, imported here (and in `linalg`) and nowhere else, so that their package can change in one place.

They come inside the `torch-mlir` wheel and need no torch. Upstream passes are registered on import.
"""

from torch_mlir import ir, rewrite
from torch_mlir._mlir_libs import _mlir
from torch_mlir.dialects import (
    affine,
    arith,
    builtin,
    cf,
    ext,
    func,
    llvm,
    math,
    memref,
    scf,
    tensor,
    vector,
    x86,
)
from torch_mlir.dialects.llvm import translate_module_to_llvmir
from torch_mlir.passmanager import PassManager

from . import linalg

# Where the bindings look for the classes of a dialect when they first meet it: `linalg` and `mlirc` are ours.
_mlir.globals.dialect_search_modules = [__package__, *_mlir.globals.dialect_search_modules]

__all__ = [
    "PassManager",
    "affine",
    "arith",
    "builtin",
    "cf",
    "ext",
    "func",
    "ir",
    "linalg",
    "llvm",
    "math",
    "memref",
    "rewrite",
    "scf",
    "tensor",
    "translate_module_to_llvmir",
    "vector",
    "x86",
]
