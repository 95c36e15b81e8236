"""Which results of a graph may lie in memory as they are made, and how they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..dialects.mlir import ir

LOOSE = "mlirc.loose"
"""Of the graph's function: the results whose dims may lie in any order. What is saved for a backward graph is nobody else's business."""

LYING = "mlirc.lying"
"""Of the graph's function: the strides of the loose results that are not row-major, by their numbers."""


def loose(function: ir.Operation) -> set[int]:
    """The results that `mlirc.loose` names."""
    return set(ir.DenseI64ArrayAttr(function.attributes[LOOSE])) if LOOSE in function.attributes else set()


def set_lying(function: ir.Operation, strides: Mapping[int, Sequence[int]]) -> None:
    """Say how results lie: the strides of their dims, in elements."""
    context = function.context
    function.attributes[LYING] = ir.DictAttr.get({str(i): ir.DenseI64ArrayAttr.get(list(s), context) for i, s in strides.items()}, context)


def lying(function: ir.Operation) -> dict[int, list[int]]:
    """What `set_lying` has said."""
    if LYING not in function.attributes:
        return {}
    return {int(a.name): list(ir.DenseI64ArrayAttr(a.attr)) for a in ir.DictAttr(function.attributes[LYING])}
