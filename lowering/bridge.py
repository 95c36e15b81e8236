"""LLVM 24 text, as MLIR prints it, to LLVM 22 text, as llvmlite parses it.

Two things differ. Float constants have new spellings: LLVM 24 prints `f0x3F800000`, `+inf`, `-qnan`, `+snan(0x1)`, and
decimals that are only near the value (`float 8.890000e+01`), all of which LLVM 22 rejects; here every one becomes the hex
form that LLVM 22 has for its type. And some attributes are new: those that only help an optimiser are dropped.

Nothing is guessed: what is not known raises CompileError with the line.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

from ..errors import CompileError


@dataclass(frozen=True)
class _Format:
    """A binary floating point format and LLVM 22's prefix for its bits."""

    bits: int
    mantissa: int
    prefix: str

    @property
    def exponent_max(self) -> int:
        """The exponent field of infinities and NaNs."""
        return (1 << (self.bits - 1 - self.mantissa)) - 1


_FORMATS = {
    "half": _Format(16, 10, "0xH"),
    "bfloat": _Format(16, 7, "0xR"),
    "float": _Format(32, 23, "0x"),
    "double": _Format(64, 52, "0x"),
}

# A float constant of LLVM 24 (LLVM always prints a blank before it), and the parts of a line that say what it means: text
# that cannot hold one, and types. Names such as `%float` and `@bfloat.1` are neither.
_LITERAL = re.compile(r"(?<= )(?:[+-]?\d+\.\d*(?:[eE][+-]?\d+)?|[+-]?f0x[0-9A-Fa-f]+|[+-](?:inf|q?s?nan)\b(?:\(0x[0-9A-Fa-f]+\))?)")
_TOKEN = re.compile(
    rf"(?P<literal>{_LITERAL.pattern})"
    r"|(?P<type>(?<![\w.$%@-])(?:half|bfloat|float|double|x86_fp80|fp128|ppc_fp128)\b)"
    r"|(?P<text>\"[^\"]*\"|;.*)"
)
# Promises to optimisers that LLVM 22 has no word for; code is right without them.
_DROPPED = (" nocreateundeforpoison",)


def to_llvm22(text: str) -> str:
    """Translate a module printed by LLVM 24 so that LLVM 22 parses it to the same module.

    Raises CompileError, quoting the line, for a float constant without a type in front of it, of a type that kernels do not
    use, or in a spelling that is not known.
    """
    pieces: list[str] = []
    done = 0
    for match in _LITERAL.finditer(text):
        if match.start() < done:
            continue
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        end = len(text) if end < 0 else end
        pieces += [text[done:start], _translate_line(text[start:end])]
        done = end
    pieces.append(text[done:])
    translated = "".join(pieces)
    for attribute in _DROPPED:
        translated = translated.replace(attribute, "")
    return translated


def _translate_line(line: str) -> str:
    # A constant has the type that was named last before it: `fadd float %a, 1.0`, `phi float [ 1.0, %a ], [ 2.0, %b ]`.
    kind: str | None = None

    def replace(match: re.Match[str]) -> str:
        nonlocal kind
        text = match[0]
        if match.lastgroup == "type":
            kind = text
        if match.lastgroup != "literal":
            return text
        if kind not in _FORMATS:
            raise CompileError(f"the LLVM text bridge does not know what type {text} has in: {line.strip()}", stage="bridge")
        try:
            return _spell(text, kind)
        except ValueError as error:
            raise CompileError(f"the LLVM text bridge cannot translate {text}: {error}, in: {line.strip()}", stage="bridge") from None

    return _TOKEN.sub(replace, line)


@functools.lru_cache(maxsize=4096)
def _spell(literal: str, kind: str) -> str:
    """LLVM 22's spelling, as bits, of a constant in LLVM 24's."""
    form = _FORMATS[kind]
    bits = _bits(literal, form)
    if kind == "float":  # written as the double of the same value
        return f"0x{_widen(bits):016X}"
    return f"{form.prefix}{bits:0{form.bits // 4}X}"


def _bits(literal: str, form: _Format) -> int:
    if literal.startswith("f0x"):
        if len(literal) - 3 != form.bits // 4:
            raise ValueError(f"it does not have {form.bits} bits")
        return int(literal[3:], 16)
    sign = literal.startswith("-") << (form.bits - 1)
    word, _, payload = literal.lstrip("+-").rstrip(")").partition("(")
    infinity = form.exponent_max << form.mantissa
    quiet = 1 << (form.mantissa - 1)
    number = int(payload, 16) if payload else 0
    if number >= quiet:
        raise ValueError("its payload is too wide")
    if word == "inf":
        return sign | infinity
    if word == "qnan":
        return sign | infinity | quiet
    if word == "nan" and payload:
        return sign | infinity | quiet | number
    if word == "snan" and number:
        return sign | infinity | number
    if not word[0].isdigit():
        raise ValueError("this spelling is not known")
    return sign | _round(Fraction(word), form)


def _round(value: Fraction, form: _Format) -> int:
    """The bits of a value that is not negative, rounded once, to nearest even, as LLVM does."""
    if value == 0:
        return 0
    bias = form.exponent_max >> 1
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    # `scaled` counts units of the last place; a carry out of the mantissa flows into the exponent field as it should.
    unit = max(exponent, 1 - bias) - form.mantissa
    scaled = round(value / Fraction(2) ** unit)
    bits = scaled + ((unit + form.mantissa + bias - 1) << form.mantissa)
    if bits >= form.exponent_max << form.mantissa:
        raise ValueError("it is too large")
    return bits


def _widen(bits: int) -> int:
    """The bits of the double with the value of a float; NaNs keep payload and quietness."""
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return sign << 63 | 0x7FF << 52 | mantissa << 29
    if exponent == 0:
        if mantissa == 0:
            return sign << 63
        shift = 24 - mantissa.bit_length()  # normalise the denormal
        mantissa = mantissa << shift & 0x7FFFFF
        exponent = 1 - shift
    return sign << 63 | (exponent - 127 + 1023) << 52 | mantissa << 29
