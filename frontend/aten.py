"""Calls back into ATen: tensors made over the program's memory, the op called, its results handed back as addresses."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree

from ..dialects.sizes import parse
from ..passes.build_plan import HostCall
from ..runtime.guards import extent
from ..runtime.plan import Expr, Pointer
from ..runtime.program import Frame
from ..runtime.storage import Storage, movable
from .evaluate import evaluator
from .imported import AtenCall, Slot

Lent = list[tuple[Storage, Any]]
"""Storages over memory of a program's, and the objects that stand for that memory."""


def tensor_at(
    address: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, lent: Lent | None = None
) -> torch.Tensor:
    """A tensor over memory that somebody else owns, with an entry in `lent`, or else over a copy. Strides in elements."""
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(address)
    tensor = torch.frombuffer(memory, dtype=dtype, count=extent)
    if lent is not None and movable():
        lent.append((Storage(tensor), memory))
    elif lent is not None:
        tensor = tensor.clone()
    return tensor.as_strided(tuple(shape), tuple(strides))


_profilers = 0


@contextlib.contextmanager
def profiling() -> Iterator[None]:
    """Add up the seconds of each call back into ATen in `AtenCall.spent` meanwhile, in all threads."""
    global _profilers
    _profilers += 1
    try:
        yield
    finally:
        _profilers -= 1


def is_profiling() -> bool:
    """Whether somebody is in `profiling`."""
    return _profilers > 0


def host_step(call: AtenCall, planned: HostCall, symbols: Sequence[sympy.Symbol] = ()) -> Callable[[Frame], None]:
    """The function that the program calls in place of a native step. `symbols` are those of the plan's sizes, in order."""
    operands = [_Operand(o.pointer, o.shape, o.strides, spec.dtype) for o, spec in zip(planned.operands, call.operands)]
    leaves, tree = pytree.tree_flatten(call.arguments, is_leaf=lambda x: isinstance(x, Slot))
    positional, named = call.arguments
    flat = not named and not any(isinstance(x, (list, tuple, dict)) for x in positional)
    numbers = [x for x in leaves if isinstance(x, sympy.Basic)]
    needed = [(i, tuple(map(_localise, st))) for i, st in enumerate(call.strides) if st is not None]
    compute = evaluator(numbers, symbols) if numbers else None
    outputs: list[tuple[int, _Shape, torch.dtype] | None] = []
    places = iter(planned.results)
    for spec in call.results:
        slot = None if spec is None else next(places)
        outputs.append(None if spec is None or slot is None else (slot, _Shape(*(tuple(map(_localise, x)) for x in (spec.shape, spec.strides))), spec.dtype))
    target = call.target
    # Ops of others may keep what they are given (a log of activations); ATen's do not.
    foreign = getattr(target, "namespace", None) not in ("aten", "prims")

    def step(frame: Frame) -> None:
        if not _profilers:
            return run(frame)
        start = time.perf_counter()
        run(frame)
        call.spent.seconds += time.perf_counter() - start

    def run(frame: Frame) -> None:
        if not foreign:
            return make(frame, None)
        lent: Lent = []
        try:
            make(frame, lent)
        finally:
            for storage, memory in lent:
                if storage.alive():
                    storage.move(memory)

    def make(frame: Frame, lent: Lent | None) -> None:
        tensors = [o.tensor(frame, lent) for o in operands]
        for i, strides in needed:
            tensors[i] = laid_out(tensors[i], tuple(frame.size(s) for s in strides))
        left = iter(compute(frame.sizes)) if compute else iter(())
        values = [tensors[x.index] if isinstance(x, Slot) else next(left) if isinstance(x, sympy.Basic) else x for x in leaves]
        args, kwargs = (values, {}) if flat else pytree.tree_unflatten(values, tree)
        got = target(*args, **kwargs)
        results = [got] if call.single else got
        for result, place in zip(results, outputs):
            if place is None or result is None:  # read by nobody, or described by the graph and not made by the op
                continue
            slot, described, dtype = place
            shape, strides = described.of(frame)
            _check(call, result, shape, dtype)
            if _inside(result, tensors) or _is_lazy(result):
                result = torch.empty_strided(tuple(result.shape), strides, dtype=dtype, device="cpu").copy_(result)
            result = laid_out(result, strides)
            frame.give(slot, result.data_ptr(), extent(result), result)

    return step


class _Shape:
    """Sizes and strides, which a call knows."""

    def __init__(self, sizes: Sequence[Expr], strides: Sequence[Expr]) -> None:
        self.sizes, self.strides = tuple(sizes), tuple(strides)
        self.static = all(isinstance(n, int) for n in (*sizes, *strides))

    def of(self, frame: Frame) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Both in a call."""
        if self.static:
            return self.sizes, self.strides  # type: ignore[return-value]
        return tuple(map(frame.size, self.sizes)), tuple(map(frame.size, self.strides))


class _Operand:
    """What an op is called with. Where the memory of a call is that of the call before, so is the tensor: to make one takes 3 us.

    Calls, and threads, may share it: ATen's ops keep nothing that they are given, and what they return of it is copied (`_inside`). Between
    calls, nobody looks at its memory. Ops of others (`lent`) get one of their own each time.
    """

    def __init__(self, pointer: Pointer, sizes: Sequence[Expr], strides: Sequence[Expr], dtype: torch.dtype) -> None:
        self.pointer, self.shape, self.dtype = pointer, _Shape(sizes, strides), dtype
        self.last: tuple[object, torch.Tensor] | None = None

    def tensor(self, frame: Frame, lent: Lent | None) -> torch.Tensor:
        sizes, strides = self.shape.of(frame)
        # What has no elements may have no place in the program either.
        address = 0 if 0 in sizes else frame.address(self.pointer)
        if lent is not None:
            return tensor_at(address, sizes, strides, self.dtype, lent)
        last, what = self.last, (address, sizes, strides, torch.is_inference_mode_enabled())
        if last is None or last[0] != what:
            self.last = last = what, tensor_at(address, sizes, strides, self.dtype)
        return last[1]


def _lies_otherwise(result: torch.Tensor, strides: Sequence[int]) -> bool:
    return result.stride() != strides and any(n > 1 and a != b for n, a, b in zip(result.shape, result.stride(), strides))


def _is_lazy(result: torch.Tensor) -> bool:
    """Whether the memory does not hold the values: a conjugate or negative still to be made, zeros without memory."""
    return result.is_conj() or result.is_neg() or result._is_zerotensor()


def laid_out(t: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor, or a copy of it, with these strides; those that are 0 repeat one element."""
    if not _lies_otherwise(t, strides):
        return t
    once = t
    for d, s in enumerate(strides):
        once = once.narrow(d, 0, 1) if s == 0 and t.shape[d] > 1 else once
    return torch.empty_strided(tuple(once.shape), tuple(strides), dtype=t.dtype, device="cpu").copy_(once).expand(t.shape)


def _check(call: AtenCall, result: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Kernels read as much as the op's meta function has said that there is."""
    if result.shape != shape or result.dtype != dtype:
        described = f"its meta function describes {dtype} {list(shape)}"
        raise RuntimeError(f"{call.target} returned a tensor of {result.dtype} {list(result.shape)}, where {described}")


def _inside(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a result lies in the memory of an operand, which may be reused before the result is read."""
    start = result.untyped_storage().data_ptr()
    return any(start == t.untyped_storage().data_ptr() for t in tensors)


def _localise(x: Any) -> Any:
    """FX's symbols carry assumptions of their own; ours are equal by name."""
    return parse(str(x)) if isinstance(x, sympy.Expr) else x
