"""Short ways to write graph functions as MLIR text, and to run passes on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlirc.dialects.mlir import PassManager, ir
from mlirc.driver import find_main
from mlirc.tests.lowering.test_to_llvm import filecheck


def element(kind: str) -> str:
    return kind[:-1].split("x")[-1]


def letters(rank: int) -> str:
    return "ijklmn"[:rank]


def rank(kind: str) -> int:
    return kind.count("x")


def generic(
    name: str,
    inputs: Sequence[tuple[str, str]],
    result: str,
    maps: Sequence[str] | None = None,
    body: str = "math.exp",
    iterators: str = "",
    loops: str = "",
    init: str = "",
    kind: str = "",
    attributes: str = "",
) -> str:
    """A linalg.generic `name` of (value, type) pairs.

    `maps` are the results of the indexing maps, such as "j, i" (default: identities), over `loops` (default: the letters of
    the result's rank). `body` is an op on the elements (the accumulator last, in reductions), or lines that end in %o.
    `iterators` has a letter a loop, p or r. `init`: a constant to fill the result with beforehand.
    """
    loops = loops or letters(rank(result))
    iterators = iterators or "p" * len(loops)
    maps = list(maps or [", ".join(letters(rank(k))) for _, k in (*inputs, ("", result))])
    types = [element(k) for _, k in inputs] + [element(result)]
    over = ", ".join(loops)
    spelled = ", ".join(f"affine_map<({over}) -> ({m})>" for m in maps)
    words = ", ".join('"parallel"' if c == "p" else '"reduction"' for c in iterators)
    arguments = ", ".join(f"%a{n}: {t}" for n, t in enumerate(types))
    if "\n" not in body and "%" not in body:
        used = range(len(inputs) + ("r" in iterators))
        body = f"%o = {body} {', '.join(f'%a{n}' for n in used)} : {types[-1]}"
    own = name[1:]
    lines = [f"%e{own} = tensor.empty() : {result}"]
    out = f"%e{own}"
    if init:
        lines += [f"%z{own} = arith.constant {init} : {types[-1]}"]
        lines += [f"%f{own} = linalg.fill ins(%z{own} : {types[-1]}) outs(%e{own} : {result}) -> {result}"]
        out = f"%f{own}"
    ins = f" ins({', '.join(v for v, _ in inputs)} : {', '.join(k for _, k in inputs)})" if inputs else ""
    extra = ", ".join(filter(None, [f'mlirc.kind = "{kind}"' if kind else "", attributes]))
    head = f"{name} = linalg.generic {{indexing_maps = [{spelled}], iterator_types = [{words}]}}{ins} outs({out} : {result})"
    head += f" attrs = {{{extra}}}" if extra else ""
    lines += [f"{head} {{", f"^bb0({arguments}):", body, f"linalg.yield %o : {types[-1]}", f"}} -> {result}"]
    return "\n".join(lines) + "\n"


def matmul(name: str, a: str, b: str, m: int, k: int, n: int) -> str:
    """%name[m, n] = %a[m, k] %b[k, n]."""
    body = "%product = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %product : f32"
    types = f"tensor<{m}x{k}xf32>", f"tensor<{k}x{n}xf32>", f"tensor<{m}x{n}xf32>"
    return generic(
        name, [(a, types[0]), (b, types[1])], types[2], ["i, k", "k, j", "i, j"], body, "ppr", "ijk", "0.0", "contraction"
    )


def function(arguments: Sequence[tuple[str, str]], body: str, results: Sequence[tuple[str, str]], attributes: dict[str, str] | None = None) -> str:
    """`@main`; `attributes` are those of arguments by name."""
    attributes = attributes or {}
    args = ", ".join(f"{n}: {t}" + (f" {{{attributes[n]}}}" if n in attributes else "") for n, t in arguments)
    kinds = ", ".join(t for _, t in results)
    values = ", ".join(n for n, _ in results)
    return f"func.func @main({args}) -> ({kinds}) {{\n{body}return {values} : {kinds}\n}}\n"


def with_weights(text: str, *arguments: int) -> str:
    """The function with these for weights, and no other argument."""
    numbers = f": {', '.join(map(str, arguments))}" if arguments else ""
    return text.replace(") {\n", f") attributes {{mlirc.weights = array<i64{numbers}>}} {{\n", 1)


def transformed(text: str, run: Callable[[ir.Operation], Any], clean: bool = False) -> str:
    """The text of the module after `run(main)`; verified, and canonicalised if asked for."""
    with ir.Context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(text)
        run(find_main(module))
        assert module.operation.verify()
        if clean:
            PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
        return str(module)


def check(text: str, run: Callable[[ir.Operation], Any], checks: str, clean: bool = False) -> None:
    filecheck(transformed(text, run, clean), checks)
