"""What it takes to run a kernel alone on random data, and the strategies to try: data only, for the process that measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...dialects.context import kernel_context
from ...dialects.mlir import ir
from ...dialects.own import load_for
from ...lowering.target import Target
from ...runtime.bench import Buffer, Operands
from .. import structure as st
from .candidates import Fields, candidates
from .contractions import ContractionStrategy, contraction

if TYPE_CHECKING:
    from ..vectorize.kernel import KernelFunction


@dataclass(frozen=True)
class Trial:
    operands: Operands
    candidates: tuple[Fields, ...]


DTYPES = ("f64", "f32", "bf16", "f16", "i64", "i32", "i16", "i8", "i1")


def worth_trying(text: str) -> bool:
    """Whether the kernel of this text has a product or a convolution in it, whose rows are not in groups that only data knows."""
    return st.RAGGED not in text and ('mlirc.kind = "contraction"' in text or 'mlirc.kind = "convolution"' in text)


def make_trial(text: str, target: Target) -> Trial | str:
    """For the text of a kernel; or why it cannot be measured."""
    from ..chained import is_chain
    from ..vectorize.kernel import KernelFunction

    with kernel_context(), ir.Location.unknown():
        load_for(text)
        module = ir.Module.parse(text)
        if is_chain(module):
            return "it is a chain of kernels"
        kernel = KernelFunction.of(module)
        if kernel.domain.kind not in ("contraction", "convolution"):
            return "it has no product"
        if kernel.names or any(not isinstance(size, int) for size in kernel.domain.sizes):
            return "its sizes are symbols"
        arguments = tuple(_buffer(kernel, v, kernel.strides.get(v)) for v in kernel.arguments)
        results = tuple(_buffer(kernel, v, strides) for v, strides in zip(kernel.stored, kernel.stored_strides))
        if None in (*arguments, *results):
            return "its memory is of an unusual kind"
        model = contraction(kernel, target)
        operands = Operands(arguments, results, _panel(kernel, model))  # type: ignore[arg-type]
        return Trial(operands, tuple(candidates(kernel, target, model)))


def _buffer(kernel: KernelFunction, v: ir.Value, strides: list[object] | None) -> Buffer | None:
    dtype = str(v.type.element_type if st.is_tensor(v) else v.type)
    dtype = dtype.replace("ui", "i").replace("si", "i")
    if dtype not in DTYPES:
        return None
    if strides is None:
        return Buffer(dtype, 0)
    last = 1
    for size, step in zip(kernel.shapes.of(v), strides):
        if not isinstance(size, int) or not isinstance(step, int) or size < 1 or step < 0:
            return None
        last += (size - 1) * step
    return Buffer(dtype, last)


def _panel(kernel: KernelFunction, model: ContractionStrategy) -> int | None:
    """The argument that all rows read, along the lanes if there is a choice."""
    read = {a.value: a.steps for a in kernel.accesses.items if a.op == kernel.domain.anchor and not a.store}
    shared = [v for v in kernel.arguments if v in read and not (model.row is not None and read[v].get(model.row))]
    return kernel.arguments.index(max(shared, key=lambda v: model.lane in read[v])) if shared else None
