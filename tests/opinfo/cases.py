"""The cases: PyTorch's OpInfos and ModuleInfos, their dtypes, and the samples of each that are tried."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

from .inductor import ALL_SAMPLES

DTYPES = {
    "f32": torch.float32,
    "i64": torch.int64,
    "bool": torch.bool,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i32": torch.int32,
    "f16": torch.float16,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
}
MODES = ("forward", "gradient", "dynamic")
DYNAMIC_DTYPES = ("f32", "i64", "bool", "bf16")
"""Sizes do not depend on dtypes: dynamic shapes are tried with these."""
SAMPLES = 2
MODULE_DTYPES = ("f32", "f64")


@dataclass(frozen=True)
class Pair:
    """An op or module (`name` starts with `module:`) with a dtype."""

    name: str
    dtype: str


@dataclass
class Sample:
    """One call: `make()` gives the function to call and the tensors that it owns (parameters, buffers)."""

    index: int
    make: Callable[[], tuple[Callable[..., Any], list[torch.Tensor]]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiable_part: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"sample {self.index}: {describe((self.args, self.kwargs))}"


@functools.cache
def ops() -> dict[str, Any]:
    """Full name (`div.floor_rounding`) -> OpInfo."""
    # The wrapper seeds the generator inside of the function, which no compiler can trace.
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    out: dict[str, Any] = {}
    for op in common_methods_invocations.op_db:
        out.setdefault(f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name, op)
    return out


@functools.cache
def modules() -> dict[str, Any]:
    """`module:nn.Linear` -> ModuleInfo."""
    from torch.testing._internal.common_modules import module_db

    out: dict[str, Any] = {}
    for info in module_db:
        if not info.is_lazy:
            out.setdefault(f"module:{info.name}", info)
    return out


def pairs() -> list[Pair]:
    """All pairs: dtype by dtype in the order of DTYPES, modules at the end."""
    out = [Pair(name, d) for d, dtype in DTYPES.items() for name, op in ops().items() if dtype in op.supported_dtypes("cpu")]
    return out + [
        Pair(name, d) for d in MODULE_DTYPES for name, info in modules().items() if DTYPES[d] in info.supported_dtypes("cpu")
    ]


def has_mode(pair: Pair, mode: str) -> bool:
    """Whether there is anything to run: gradients need autograd for that dtype."""
    dtype = DTYPES[pair.dtype]
    if mode == "dynamic":
        return pair.dtype in DYNAMIC_DTYPES and not pair.name.startswith("module:")
    if pair.name.startswith("module:"):
        return True
    op = ops()[pair.name]
    return mode != "gradient" or (op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))


def samples(pair: Pair, requires_grad: bool) -> list[Sample]:
    """The samples to try: the first with elements, and one more from somewhere in the list (the same in every run)."""
    seed = zlib.crc32(f"{pair.name} {pair.dtype}".encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    make = _module_samples if pair.name.startswith("module:") else _op_samples
    found = make(pair, requires_grad)
    if pair.name in ALL_SAMPLES:
        return found
    first = next((s for s in found if _has_elements(s)), None)
    chosen = [] if first is None else [first]
    rest = [s for s in found if s is not first]
    chosen += [rest[(seed + 7919 * i) % len(rest)] for i in range(SAMPLES - len(chosen)) if rest]
    return chosen


def describe(tree: Any) -> str:
    """A short text: tensors by dtype, sizes and (unless row-major) strides."""

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.layout != torch.strided:
            return _Text(f"{x.layout}{list(x.shape)}")
        strides = "" if x.is_contiguous() else f" strides {list(x.stride())}"
        return _Text(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{strides}")

    args, kwargs = pytree.tree_map(one, tree)
    return ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])


class _Text(str):
    def __repr__(self) -> str:
        return str(self)


def _has_elements(s: Sample) -> bool:
    tensors = [x for x in pytree.tree_leaves((s.args, s.kwargs)) if isinstance(x, torch.Tensor)]
    return all(x.numel() for x in tensors)


def _op_samples(pair: Pair, requires_grad: bool) -> list[Sample]:
    op = ops()[pair.name]
    function = op.get_op()

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    found: Sequence[Any] = list(op.sample_inputs("cpu", DTYPES[pair.dtype], requires_grad=requires_grad))
    return [
        Sample(i, lambda: (call, []), (s.input, *s.args), dict(s.kwargs), s.output_process_fn_grad) for i, s in enumerate(found)
    ]


def _module_samples(pair: Pair, requires_grad: bool) -> list[Sample]:
    info = modules()[pair.name]
    out = []
    for training in (True, False) if info.train_and_eval_differ else (True,):
        for s in info.module_inputs_func(
            info, device="cpu", dtype=DTYPES[pair.dtype], requires_grad=requires_grad, training=training
        ):
            if s.forward_input is not None:
                out.append(_module_sample(info, s, pair, requires_grad, training, len(out)))
    return out


def _module_sample(info: Any, s: Any, pair: Pair, requires_grad: bool, training: bool, index: int) -> Sample:
    def make() -> tuple[Callable[..., Any], list[torch.Tensor]]:
        torch.manual_seed(index)
        module = info.module_cls(*s.constructor_input.args, **s.constructor_input.kwargs)
        module = module.to(DTYPES[pair.dtype]).train(training)
        module.requires_grad_(requires_grad)
        return module, [*module.parameters(), *module.buffers()]

    return Sample(index, make, tuple(s.forward_input.args), dict(s.forward_input.kwargs), lambda out: out)
