"""The C header of an exported model."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import sympy
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from .artefact import Interface, Size, TensorArgument, error_texts
from .plan import Expr

_C_TYPES = {
    "float64": "double",
    "float32": "float",
    "bfloat16": "uint16_t (the bits of a bfloat16)",
    "float16": "uint16_t (the bits of a half)",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "uint8_t, 0 or 1",
}


def header_text(interface: Interface, made_for: str) -> str:
    """The text of NAME.h; `made_for` says which CPU the code is for."""
    name = interface.name
    upper = name.upper()
    symbols = {s.symbol: f"sizes[{i}]" for i, s in enumerate(interface.sizes)}
    title = textwrap.fill(f"/* {name}: a PyTorch model that mlirc has compiled for {made_for}.", 100, subsequent_indent="   ")
    lines = [title, "", "   inputs[]"]
    lines += _tensors(interface.inputs, symbols, strides=True) or ["     none"]
    lines += ["   outputs[]", *(_tensors(interface.outputs, symbols) or ["     none"])]
    if interface.sizes:
        lines.append("   sizes[]")
        lines += [f"     {i}  {_described(s, interface)}: {_range(s.least, s.most)}" for i, s in enumerate(interface.sizes)]
        lines += [f"     such that {_text(c, symbols)}" for c in _telling(interface)]
    lines += [
        "",
        "   Tensors are row-major without gaps unless strides (in elements) are given. What is written to must not overlap anything else.",
        f"   {name}_run returns 0, or a status for {name}_error. It may be called by several threads at once, each with a workspace of its",
        f"   own: {name}_workspace(sizes) bytes; with NULL it allocates them for the call. It computes in threads where the program is linked",
        "   with OpenMP and this header is compiled for it (both by -fopenmp): OMP_NUM_THREADS and omp_set_num_threads say in how many. */",
    ]
    lines = [line.rstrip() for line in lines]
    statuses = "\n".join(f"   {status:3d}  {text}" for status, text in sorted(error_texts().items()))
    return f"""{chr(10).join(lines)}
#ifndef MLIRC_{name}_H
#define MLIRC_{name}_H

#include <stddef.h>
#include <stdint.h>

#define {upper}_INPUTS {len(interface.inputs)}
#define {upper}_OUTPUTS {len(interface.outputs)}
#define {upper}_SIZES {len(interface.sizes)}

#ifdef __cplusplus
extern "C" {{
#endif

int {name}_run(const void *const *inputs, void *const *outputs, const int64_t *sizes, void *workspace);
size_t {name}_workspace(const int64_t *sizes);
size_t {name}_output_bytes(int output, const int64_t *sizes);

/* The text of a status:
{statuses} */
const char *{name}_error(int status);

#ifdef _OPENMP
/* Has the linker take OpenMP's library, which the model's own code refers to only weakly. */
int omp_get_max_threads(void);
int omp_in_parallel(void);
void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned);
__attribute__((used)) static void *const {name}_openmp[] = {{(void *)omp_get_max_threads, (void *)omp_in_parallel, (void *)GOMP_parallel}};
#endif

#ifdef __cplusplus
}}
#endif

#endif
"""


def _tensors(tensors: Sequence[TensorArgument], symbols: dict[str, str], strides: bool = False) -> list[str]:
    width = max((len(t.name) for t in tensors), default=0)
    return [f"     {i}  {t.name:<{width}}  {_tensor(t, symbols, strides)}" for i, t in enumerate(tensors)]


def _tensor(t: TensorArgument, symbols: dict[str, str], strides: bool) -> str:
    text = f"{_C_TYPES.get(t.dtype, t.dtype)}  [{', '.join(_text(n, symbols) for n in t.shape)}]"
    if strides and not row_major(t.shape, t.strides):
        text += f", strides [{', '.join(_text(n, symbols) for n in t.strides)}]"
    return text + (", is written to" if t.written else "")


def row_major(shape: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether elements lie one after another, last dim fastest."""
    expected: Expr = 1
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n == 1:
            continue
        if stride != expected:
            return False
        expected = expected * n
    return True


class _C(StrPrinter):
    """Sizes as C has them: `/` and `%` of numbers that are not negative."""

    printmethod = "_c_size"  # torch's functions bring a text of their own for Python

    def _print_FloorDiv(self, e: sympy.Expr, operator: str = "/") -> str:
        a, b = e.args
        return f"{self.parenthesize(a, PRECEDENCE['Mul'])} {operator} {self.parenthesize(b, PRECEDENCE['Mul'], strict=True)}"

    def _print_Mod(self, e: sympy.Expr) -> str:
        return self._print_FloorDiv(e, "%")

    _print_CleanDiv = _print_FloorDiv
    _print_PythonMod = _print_Mod

    def _print_Relational(self, e: sympy.Basic) -> str:
        return f"{self._print(e.lhs)} {e.rel_op} {self._print(e.rhs)}"


def _text(expr: Expr | sympy.Basic, symbols: dict[str, str]) -> str:
    expr = sympy.sympify(expr)
    return _C().doprint(expr.xreplace({s: sympy.Symbol(symbols[s.name]) for s in expr.free_symbols if s.name in symbols}))


def _described(size: Size, interface: Interface) -> str:
    """Where a caller finds it."""
    if size.name:
        return size.name
    dims = [(n, f"dim {d} of {t.name}") for t in interface.inputs for d, n in enumerate(t.shape) if size.symbol in _names(n)]
    alone = [name for n, name in dims if str(n) == size.symbol]
    return alone[0] if alone else f"what {dims[0][1]} is computed from" if dims else "a size"


def _names(expr: Expr) -> set[str]:
    return {s.name for s in sympy.sympify(expr).free_symbols}


def _telling(interface: Interface) -> list[sympy.Basic]:
    """The conditions of which some sizes within the ranges, small ones, keep all before them and not this one: the others are no news."""
    least = {s.symbol: 0 if s.least is None else s.least for s in interface.sizes}
    told: list[sympy.Basic] = []
    for condition in interface.conditions:
        symbols = sorted(condition.free_symbols | {s for c in told for s in c.free_symbols}, key=str)
        calls = [{s: sympy.Integer(least.get(s.name, 0) + n * (i + 1)) for i, s in enumerate(symbols)} for n in range(16)]
        calls += [{s: sympy.Integer(least.get(s.name, 0) + n // (i + 1)) for i, s in enumerate(symbols)} for n in range(16)]
        if any(not _holds(condition, call) and all(_holds(c, call) for c in told) for call in calls):
            told.append(condition)
    return told


def _holds(condition: sympy.Basic, call: dict[sympy.Basic, sympy.Basic]) -> bool:
    try:
        return condition.xreplace(call) == sympy.true
    except ZeroDivisionError:
        return False


def _range(least: int | None, most: int | None) -> str:
    match least, most:
        case None, None:
            return "any"
        case None, _:
            return f"at most {most}"
        case _, None:
            return f"at least {least}"
    return f"{least} to {most}" if most != least else str(least)
