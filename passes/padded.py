"""Padding of what a product makes is where its results are stored: inside of a larger tensor, around which the value lies.

    %y = contraction ... : [1, 3136, 64]                          one kernel: element [0, 56 h + w, c] of %y is stored as
    %e = expand_shape %y : [1, 56, 56, 64]                        element [0, h + 1, w + 1, c] of %p, and what is around them
    %p = pad %e low[0, 1, 1, 0] high[0, 1, 1, 0]                  is filled beforehand (`vectorize.borders`)

For sizes that are known, a value that is a constant, and a last dim, along which vectors are stored, that is not split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dialects.mlir import ir
from . import structure as st


@dataclass(frozen=True)
class Padded:
    """A result that is stored inside of padding."""

    value: ir.Value
    """What is computed, which a product's loops walk over."""
    pad: ir.Operation
    groups: list[list[int]]
    """The dims of the padded tensor that each dim of the value is split in."""


def padded_results(ops: Sequence[ir.Operation], stored: Sequence[ir.Value]) -> dict[ir.Value, Padded]:
    """Those of the stored values of a group with a contraction or convolution that are padding around what is made in it."""
    inside = set(ops)
    if not any(st.kind(op) in ("contraction", "convolution") for op in ops):
        return {}
    return {v: found for v in stored if (found := _padded(v, inside)) is not None}


def without_padding(ops: Sequence[ir.Operation], stored: Sequence[ir.Value]) -> tuple[list[ir.Operation], list[ir.Value]]:
    """The group without these ops, and what it stores then, each value once."""
    found = padded_results(ops, stored)
    pads = {p.pad for p in found.values()}
    return [op for op in ops if op not in pads], list(dict.fromkeys(found[v].value if v in found else v for v in stored))


def _padded(value: ir.Value, inside: set[ir.Operation]) -> Padded | None:
    pad = st.owner(value)
    if pad is None or pad not in inside or pad.name != "tensor.pad" or any(st.operation(u.owner) in inside for u in value.uses):
        return None
    amounts = [n for side in st.pads(pad) for n in side]
    inner, outer = st.shape(pad.operands[0]), st.shape(value)
    around = st.padding(pad)
    constant = around is not None and (of := st.owner(around)) is not None and of.name == "arith.constant"
    if not constant or min(outer) < 1 or min(inner) < 1 or not all(isinstance(n, int) and n >= 0 for n in amounts) or not any(amounts):
        return None
    if str(value.type.element_type) == "i1":
        return None
    root, groups = pad.operands[0], [[d] for d in range(len(inner))]
    while (view := st.owner(root)) is not None and view in inside and view.name == "tensor.expand_shape":
        groups = [[d for part in group for d in groups[part]] for group in st.reassociation(view)]
        root = view.operands[0]
    maker = st.owner(root)
    if maker is None or maker not in inside or st.kind(maker) not in ("contraction", "convolution", "elementwise"):
        return None
    # Vectors along the last dim, of columns or of rows, would run over the ends of what that is split in.
    last = next((group for group, n in zip(reversed(groups), reversed(st.shape(root))) if n != 1), [])
    return Padded(root, pad, groups) if sum(inner[d] != 1 for d in last) < 2 else None
