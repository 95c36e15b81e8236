"""Calls that ATen refuses, though torch describes their results: numbers that do not fit, dtypes without a kernel.

ATen itself is asked, with tensors of a few elements: what it says does not depend on sizes for the ops in question. What it
refuses stays a call of the op that the user called, which raises eager mode's own error.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .registry import Unsupported

aten = torch.ops.aten

_OF_ZEROS = (
    "binary_cross_entropy embedding gather index index_add index_copy index_fill index_put index_reduce index_select nll_loss2d_forward "
    "nll_loss_forward put scatter scatter_add scatter_reduce searchsorted take"
)
"""Asked about with zeros, which are places that are there, and probabilities. The others are asked about with a large number."""
_OTHERS = (
    "__and__ __lshift__ __or__ __rshift__ _log_softmax _softmax addmm addmv addr baddbmm bmm "
    "bucketize cumprod cumsum dot elu_backward fill fix floor_divide glu hardsigmoid_backward hardswish hardswish_backward "
    "hardtanh_backward huber_loss leaky_relu_backward log_sigmoid_forward masked_fill mm mse_loss mv rsub "
    "smooth_l1_loss soft_margin_loss tril triu true_divide where"
)
_NAMED = {getattr(aten, name) for name in (_OF_ZEROS + " " + _OTHERS).split()}
_ASKED_WITH_ZEROS = {getattr(aten, name) for name in _OF_ZEROS.split()}
_FILLS = {aten.full: 1, aten.full_like: 1, aten.new_full: 2, aten.constant_pad_nd: 2, aten.scalar_tensor: 0}
"""Ops that write a number into new tensors -> which argument it is."""


def asked(op: Any) -> bool:
    """Whether ATen is asked about calls of this op: where a few elements tell what many would."""
    if not isinstance(op, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    packet = op.overloadpacket
    return torch.Tag.pointwise in op.tags or torch.Tag.reduction in op.tags or packet in _NAMED or packet in _FILLS


def check(node: torch.fx.Node) -> None:
    """Raises Unsupported for a call that ATen refuses. Not for the parts of an op that was taken apart: they were not called."""
    # By name: metadata is copied, and the ops in it too.
    if str(node.meta.get("original_aten")) != str(node.target) or not asked(node.target):
        return
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    refused = refusal(node.target, args, kwargs, node.meta.get("val"))
    if refused is not None:
        raise Unsupported(f"an error: {refused}")


def unless_refused(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves calls whole which ATen refuses."""
    if not asked(op):
        return decomposition

    @functools.wraps(decomposition)
    def whole(*args: Any, **kwargs: Any) -> Any:
        if refusal(op, args, kwargs) is not None:
            return NotImplemented
        return decomposition(*args, **kwargs)

    return whole


def refusal(op: Any, args: Any, kwargs: Any, result: Any = None) -> str | None:
    """What ATen says against a call with such arguments (fake tensors, numbers), if anything. `result` is that of a fill."""
    if op.overloadpacket in _FILLS:
        if not isinstance(result, torch.Tensor):
            return None
        place = _FILLS[op.overloadpacket]
        value = args[place] if len(args) > place else kwargs.get("value", kwargs.get("fill_value", 0))
        op, args, kwargs = aten.fill.Scalar, (result, value), {}
    number = 0 if op.overloadpacket in _ASKED_WITH_ZEROS else 100
    most = 1 if op.overloadpacket is aten.put else 2  # its operands have as many elements, in any shapes
    leaves, tree = pytree.tree_flatten((args, kwargs))
    small = tuple([_small(x, number, most) for x in leaves])
    settings = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    # A graph has few different calls. Numbers that are equal may be of several types.
    return _answer(op, small, tree, (settings, *map(type, small)))


@functools.lru_cache(maxsize=4096)
def _answer(op: Any, leaves: tuple[Any, ...], tree: pytree.TreeSpec, key: object) -> str | None:
    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, kwargs = pytree.tree_unflatten([x.make() if isinstance(x, _Filled) else x for x in leaves], tree)
        try:
            op(*args, **kwargs)
        except Exception as e:
            return f"{type(e).__name__}: {e}".splitlines()[0]
    return None


@dataclass(frozen=True)
class _Filled:
    """A tensor of one number."""

    sizes: tuple[int, ...]
    number: int
    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        return torch.full(self.sizes, self.number, dtype=self.dtype, device="cpu")


def _small(x: Any, number: int, most: int) -> Any:
    """Of a tensor: at most so many elements a dim. Of a number that is known at run time only: that of the traced call."""
    if isinstance(x, torch.Tensor):
        return _Filled(tuple([min(n, most) if isinstance(n, int) else most for n in x.shape]), number, x.dtype)
    if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return x.node.hint if x.node.has_hint() else x.node.pytype(1)
    return x
