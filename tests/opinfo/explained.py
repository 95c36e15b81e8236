"""Reviewed by hand: why some pairs differ from eager mode, and why ops that Inductor generates code for are left to ATen."""

from __future__ import annotations

DIFFERS: dict[tuple[str, ...], str] = {}
"""(op, dtypes) or (op, dtypes, mode) -> explanation; dtypes are separated by spaces."""

ATEN: dict[str, str] = {}
"""ATen op that Inductor generates code for -> why we call ATen."""


def explanation(op: str, dtype: str, mode: str) -> str | None:
    """The explanation for a pair that differs."""
    for (name, dtypes, *modes), text in DIFFERS.items():
        if name == op and dtype in dtypes.split() and (not modes or mode in modes):
            return text
    return None
