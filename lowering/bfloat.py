"""bf16 values as 16-bit integers, in LLVM IR text.

Kernels load, move and store bf16, and compute in f32 with conversions that are integer arithmetic already. LLVM, however,
takes a bf16 value for a number: on CPUs without AVX512_BF16 it splits shuffles, selects and masked accesses of bf16 vectors
into scalars and calls `__truncsfbf2` on each; with AVX512_BF16 it carries a bf16 loop variable as f32 and rounds it back with
`vcvtneps2bf16`, which flushes denormals. So the type goes: what is a move of bits becomes a move of integers.

Only the CPU's own bf16 instructions (`llvm.x86.*`) keep the type, between bitcasts.
"""

from __future__ import annotations

import re

from ..errors import CompileError

_MOVES = set(
    "define declare @ load store phi select shufflevector insertelement extractelement insertvalue extractvalue bitcast"
    " getelementptr alloca ret freeze call".split()
)
_OPCODE = re.compile(r"(?:define|declare|@)|\s+(?:%[\w.]+ = )?(?:tail |notail |musttail )?(\w+)")
_INTRINSIC = re.compile(r"@llvm\.[\w.]+")
_GENERIC = re.compile(r"@llvm\.(?:masked|vector\.(?:insert|extract|interleave\d|deinterleave\d|reverse|splice))\.")
_CONSTANT = re.compile(r"\b0xR([0-9A-F]{4})\b")
_OPERAND = re.compile(r"<(\d+) x bfloat> (%[\w.]+)")
_RESULT = re.compile(r"(?:tail )?call <(\d+) x bfloat>")


def bfloat_as_bits(text: str) -> str:
    """Replace `bfloat` by `i16` in a module in LLVM 22's syntax; a module without `bfloat` comes back as it is.

    Raises CompileError, quoting the line, for an instruction that would compute with bf16.
    """
    if "bfloat" not in text:
        return text
    lines: list[str] = []
    declared: set[str] = set()
    for line in text.split("\n"):
        if "bfloat" in line:
            line = _translate_line(line)
        if line.startswith("declare"):
            # The bf16 and the i16 version of an intrinsic are one now.
            name = line[line.index("@") : line.index("(", line.index("@"))]
            if name in declared:
                continue
            declared.add(name)
        lines.append(line)
    return "\n".join(lines)


def _translate_line(line: str) -> str:
    intrinsic = _INTRINSIC.search(line)
    if intrinsic and intrinsic[0].startswith("@llvm.x86."):
        return line if line.startswith("declare") else _cast_around(line.strip())
    opcode = _OPCODE.match(line)
    if not opcode or (opcode[1] or "@") not in _MOVES or intrinsic and not _GENERIC.match(intrinsic[0]):
        raise CompileError(f"LLVM must not compute with bf16, widen it to f32: {line.strip()}", stage="bfloat")
    if intrinsic:
        line = _INTRINSIC.sub(lambda name: name[0].replace("bf16", "i16"), line)
    return _CONSTANT.sub(lambda bits: str(int(bits[1], 16)), line).replace("bfloat", "i16")


def _cast_around(line: str) -> str:
    """`%3 = call <8 x float> @llvm.x86...(<16 x bfloat> %2)` -> the call between bitcasts from and to `<16 x i16>`."""
    name, _, call = line.partition(" = ")
    # Values that are numbers must count up without gaps, so the new ones get names.
    unique = f"%bf16.{name.removeprefix('%')}"
    before: list[str] = []

    def cast(operand: re.Match[str]) -> str:
        lanes, value = operand.groups()
        before.append(f"  {unique}.{len(before)} = bitcast <{lanes} x i16> {value} to <{lanes} x bfloat>")
        return f"<{lanes} x bfloat> {unique}.{len(before) - 1}"

    call = _OPERAND.sub(cast, call)
    result = _RESULT.match(call)
    if not result:
        return "\n".join([*before, f"  {name} = {call}"])
    lanes = result[1]
    return "\n".join([*before, f"  {unique} = {call}", f"  {name} = bitcast <{lanes} x bfloat> {unique} to <{lanes} x i16>"])
