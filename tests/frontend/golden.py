"""`check_import`: what a function is imported to, by FileCheck."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts
from torch._dynamo.backends.common import aot_autograd

from mlirc.dialects.mlir import ir
from mlirc.frontend.decompositions import decompositions
from mlirc.frontend.importer import import_graph


def imported(f: Callable[..., Any], args: Sequence[Any], dynamic: bool = False) -> list[str]:
    """The modules that the graphs of `f` become, before any pass."""
    modules: list[str] = []

    def capture(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with ir.Context():
            module = import_graph(gm).module
            module.operation.verify()
            modules.append(str(module))
        from functorch.compile import make_boxed_func

        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=capture, bw_compiler=capture, decompositions=decompositions())
    torch.compile(f, backend=backend, dynamic=dynamic)(*args)
    return modules


def check_import(f: Callable[..., Any], args: Sequence[Any], checks: str, dynamic: bool = False) -> None:
    """Match the first module of `f` with FileCheck directives."""
    (text, *_) = imported(f, args, dynamic)
    options = Options(match_filename="checks")
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    assert Matcher(options, FInput("import", text), parser).run() == 0, text
