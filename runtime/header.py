"""The C header of an exported model."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import sympy

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
    lines += _tensors(interface.inputs, symbols) or ["     none"]
    lines += ["   outputs[]", *(_tensors(interface.outputs, symbols) or ["     none"])]
    if interface.sizes:
        lines.append("   sizes[]")
        lines += [f"     {i}  {_described(s, interface)}: {_range(s.least, s.most)}" for i, s in enumerate(interface.sizes)]
        lines += [f"     such that {_relation(c, symbols)}" for c in interface.conditions if _fails(c, interface)]
    lines += [
        "",
        "   Tensors are row-major without gaps unless strides (in elements) are given. Outputs must not overlap inputs or one another.",
        f"   {name}_run returns 0, or a status for {name}_error. It may be called by several threads at once, each with a workspace of its",
        f"   own: {name}_workspace(sizes) bytes; with NULL it allocates them for the call. It computes in threads where the program is linked",
        "   with OpenMP (-fopenmp): OMP_NUM_THREADS and omp_set_num_threads say in how many. */",
    ]
    statuses = "\n".join(f"   {status:3d}  {text}" for status, text in sorted(error_texts().items()))
    return f"""{chr(10).join(lines)}
#ifndef {upper}_H
#define {upper}_H

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

#ifdef __cplusplus
}}
#endif

#endif
"""


def _tensors(tensors: Sequence[TensorArgument], symbols: dict[str, str]) -> list[str]:
    width = max((len(t.name) for t in tensors), default=0)
    return [f"     {i}  {t.name:<{width}}  {_tensor(t, symbols)}" for i, t in enumerate(tensors)]


def _tensor(t: TensorArgument, symbols: dict[str, str]) -> str:
    text = f"{_C_TYPES.get(t.dtype, t.dtype)}  [{', '.join(_text(n, symbols) for n in t.shape)}]"
    if not row_major(t.shape, t.strides):
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


def _text(expr: Expr, symbols: dict[str, str]) -> str:
    text = str(expr)
    for symbol in sorted(symbols, key=len, reverse=True):
        text = text.replace(symbol, symbols[symbol])
    return text


def _described(size: Size, interface: Interface) -> str:
    """Where a caller finds it."""
    if size.name:
        return size.name
    dims = [f"dim {d} of {t.name}" for t in interface.inputs for d, n in enumerate(t.shape) if str(n) == size.symbol]
    return dims[0] if dims else f"what {symbol_in(size, interface)} contains"


def symbol_in(size: Size, interface: Interface) -> str:
    """A dim whose size is computed from this one."""
    dims = [f"dim {d} of {t.name}" for t in interface.inputs for d, n in enumerate(t.shape) if size.symbol in {s.name for s in sympy.sympify(n).free_symbols}]
    return dims[0] if dims else "a size"


def _fails(condition: sympy.Basic, interface: Interface) -> bool:
    """Whether a condition fails for some of the smallest sizes: what never does so follows from the ranges, as a rule, and is no news."""
    symbols = sorted(condition.free_symbols, key=str)
    least = {s.symbol: s.least for s in interface.sizes}
    if any(s.name not in least for s in symbols):
        return False
    return any(condition.xreplace({s: sympy.Integer(least[s.name] + n * (i + 1)) for i, s in enumerate(symbols)}) == sympy.false for n in range(32))


def _relation(condition: sympy.Basic, symbols: dict[str, str]) -> str:
    if isinstance(condition, sympy.core.relational.Relational):
        return f"{_text(condition.lhs, symbols)} {condition.rel_op} {_text(condition.rhs, symbols)}"
    return _text(condition, symbols)


def _range(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else f"{least} to {most}" if most != least else str(least)
