"""How far a result may be off: eager mode run again with rounding errors of its own making, and in fp64.

The first is Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic", 1997): each operation that rounds has its result, or its operands where it accumulates, moved by up to one
unit of its precision. Where results then scatter, cancel or fall on the other side of a threshold, nobody knows better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

HALVES = (torch.float32, torch.bfloat16, torch.float16)

# They choose or move values, none is rounded.
EXACT = frozenset(
    """abs neg clone relu relu_ maximum minimum amax amin max min where cat stack index gather index_select scatter floor ceil round trunc
    sign sgn constant_pad_nd flip roll clamp clamp_min clamp_max hardtanh threshold masked_fill masked_fill_ embedding repeat sort topk
    max_pool2d_with_indices max_pool2d_with_indices_backward copy_ fill_ zero_ index_put slice_scatter select_scatter
    diagonal_scatter as_strided_scatter slice_backward select_backward threshold_backward hardtanh_backward aminmax
    full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full new_empty new_empty_strided empty empty_like
    empty_strided scalar_tensor arange fmax fmin nan_to_num tril triu copysign reflection_pad1d reflection_pad2d replication_pad1d
    replication_pad2d cummax cummin logcumsumexp_ unfold_copy isin nonzero bitwise_not logical_not""".split()
)
# Their sums go in any order, or with products that are not rounded: an error of the terms, not only of the result.
ACCUMULATING = frozenset(
    """sum nansum mean var var_mean std std_mean mm bmm addmm baddbmm mv dot convolution convolution_backward cumsum cumprod prod logsumexp norm
    linalg_vector_norm native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward _native_batch_norm_legit cudnn_batch_norm _softmax _log_softmax
    _softmax_backward_data _log_softmax_backward_data avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward index_add scatter_add
    upsample_bilinear2d upsample_linear1d upsample_trilinear3d logcumsumexp renorm cross_entropy nll_loss_forward nll_loss2d_forward mse_loss binary_cross_entropy
    binary_cross_entropy_with_logits smooth_l1_loss huber_loss soft_margin_loss multi_margin_loss multilabel_margin_loss_forward _fused_rms_norm
    rms_norm addmv addr _addmm_activation embedding_dense_backward sub add div addcmul addcdiv lerp logaddexp
    logaddexp2 digamma lgamma polygamma _scaled_dot_product_flash_attention_for_cpu
    mkldnn_rnn_layer _scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable scaled_dot_product_attention""".split()
)

# What they add up may overflow in one order and not in another.
SUMS = frozenset("sum nansum mean mm bmm addmm baddbmm mv dot addmv convolution cumsum".split())
LARGE = 1e15
"""Whose square overflows f32 in a sum of a few."""

# 1 + erf(x) is off by a rounding of 1: the result by one of the operand. So are derivatives near where they are zero.
CANCELLING = frozenset(("gelu", "gelu_backward", "silu_backward", "mish_backward"))
# The logarithm of a sum of one and what is smaller, and what a recurrence subtracts from: off by a rounding of one.
OFF_BY_ONE = frozenset(("_log_softmax", "logsumexp", "digamma"))
# ATen's own relative error in f64, for which there is nothing better: of arguments below zero.
ROUGH = {"polygamma": 1e-10}
# Which are infinite at negative whole numbers, where eager mode has what rounding leaves of zero to divide by.
TRIGAMMA = "polygamma"
# Of a query or a key that is not finite it makes zeros here and there, where the three parts make NaN.
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
RUNNING = ("running_mean", "running_var")
# They raise where noise moves a probability out of its range.
DRAWING = frozenset(("bernoulli", "bernoulli_", "binomial"))
# Which of the two zeros they return depends on the order; divided by it, on the sign of an infinity.
EXTREMA = frozenset("maximum minimum amax amin max min fmax fmin aminmax relu relu_ clamp clamp_ clamp_min clamp_max".split())


class Noise(TorchDispatchMode):
    """Moves floating-point results by up to one unit of the precision that they are computed in."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        # What cancels may cancel exactly, in some of the runs: through several sums nothing would be left of the rest.
        self.cancelling = seed % 2 == 1
        # Where noise is much larger than the errors, a result seldom equals what it is compared with.
        self.little = seed % 4 >= 2

    def moved(self, x: Any, kind: torch.dtype | None = None, roundings: float = 1.0) -> Any:
        """`x` with noise, if it is a floating-point tensor (of the type `kind`)."""
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or kind not in (None, x.dtype):
            return x
        x = x.detach()
        r = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        step = x.double() * r * (roundings * torch.finfo(x.dtype).eps)
        still = torch.where(x.isnan(), torch.copysign(x.double(), r), x.double())  # nobody knows the sign of NaN
        return torch.where(x.isfinite(), x.double() + step, still).to(x.dtype)

    def sign(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros of either sign, of the shape and type of `x`."""
        return (torch.rand(x.shape, generator=self.generator) - 0.5).sign().to(x.dtype) * 0.0

    def overflow(self, x: torch.Tensor) -> torch.Tensor:
        """What becomes of a sum with partial sums too large for the type: an infinity, or the difference of two."""
        kinds = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=x.dtype)  # or finite, as in eager mode
        return kinds[torch.randint(0, 3, x.shape, generator=self.generator)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        args = pytree.tree_map(_with_memory, args)
        name = func.overloadpacket.__name__
        schema = func._schema
        pole = (args[1] < 0) & (args[1] == args[1].floor()) if name == TRIGAMMA and args[0] == 1 else None
        large = func(*pytree.tree_map(_magnitude, args), **kwargs) if name in SUMS and _largest(args) > LARGE and _finite(args) else None
        if name.rstrip("_") in ACCUMULATING:
            # The schema of native_batch_norm does not tell that it writes to them.
            written = [p.name in RUNNING or p.alias_info is not None and p.alias_info.is_write for p in schema.arguments]
            kind = _finest(args)
            args = tuple(a if w else pytree.tree_map(lambda x: self.moved(x, kind), a) for a, w in zip(args, written))
        if name in DRAWING:
            args = (*args[:-1], args[-1].clamp(0, 1)) if isinstance(args[-1], torch.Tensor) else args
        kept = [(a, a.clone()) for a, p in zip(args, schema.arguments) if p.name in RUNNING and isinstance(a, torch.Tensor)]
        out = func(*args, **kwargs)
        for statistic, before in kept:  # a part of it is kept: what cancels is off by a rounding of that
            statistic.add_(self.moved(before) - before)
        if name in EXTREMA:
            for o in pytree.tree_leaves(out):
                if o.is_floating_point() and _distinct(o):
                    o.copy_(torch.where(o == 0, self.sign(o), o))
        if name in EXACT:
            return out
        if schema.is_mutable:
            for a, p in zip(args, schema.arguments):
                if isinstance(a, torch.Tensor) and p.alias_info is not None and p.alias_info.is_write and _distinct(a):
                    a.copy_(self.moved(a))
        elif not any(r.alias_info is not None for r in schema.returns):
            out = pytree.tree_map(_with_memory, out)
            for o in pytree.tree_leaves(out):
                if isinstance(o, torch.Tensor) and o.is_floating_point() and _distinct(o):
                    # Sums of n terms are off by the square root of it; in f64 there is nothing more exact to go by.
                    n = _terms(args) if o.dtype == torch.float64 and name.rstrip("_") in ACCUMULATING and not self.little else 1
                    o.copy_(self.moved(o, roundings=max(1.0, n**0.5 / 4)))
                    if name in CANCELLING:
                        o.add_(self.moved(args[0]) - args[0])
                    if name == FLASH and o.shape == args[0].shape:
                        finite = args[1].isfinite().flatten(1).all(1)[:, None, None, None]
                        o.copy_(torch.where(args[0].isfinite().all(-1, keepdim=True) & finite, o, torch.nan))
                    if large is not None and large.shape == o.shape:
                        o.copy_(torch.where(large.isfinite(), o, self.overflow(o)))
                    if name.rstrip("_") in ACCUMULATING and self.cancelling:
                        coin = torch.rand(o.shape, generator=self.generator) < 0.5
                        o.copy_(torch.where(coin & (o.abs() < 16 * torch.finfo(o.dtype).eps * _largest(args)), 0, o))
                    if name in ROUGH:
                        o.mul_(1 + ROUGH[name] * torch.rand(o.shape, generator=self.generator, dtype=torch.float64).to(o.dtype))
                    if pole is not None:
                        o.masked_fill_(pole & (torch.rand(o.shape, generator=self.generator) < 0.5), torch.inf)
                    if name in OFF_BY_ONE:
                        one = torch.ones_like(o)
                        o.add_(self.moved(one) - one)
        return out


def _with_memory(x: Any) -> Any:
    """Gradients that are zero have none in autograd; under a mode, ATen crashes where it multiplies them by a number."""
    return torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) and x._is_zerotensor() else x


def _largest(args: Any) -> float:
    """The largest finite number among floating-point operands, at least one."""
    tensors = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()]
    return max([1.0, *(x.double().abs().nan_to_num(0.0, 0.0, 0.0).max().item() for x in tensors)])


def _finite(args: Any) -> bool:
    """Whether all floating-point operands are finite."""
    return all(x.isfinite().all() for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor) and x.is_floating_point())


def _magnitude(x: Any) -> Any:
    return x.abs() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _terms(args: Any) -> int:
    """Elements of the largest operand."""
    return max([1, *(x.numel() for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor))])


def _finest(args: Any) -> torch.dtype | None:
    """The floating-point type that an op computes in; operands of a coarser one are exact in it."""
    kinds = [x.dtype for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    return min(kinds, key=lambda t: torch.finfo(t).eps) if kinds else None


def _distinct(x: torch.Tensor) -> bool:
    """No two elements share memory, as far as one can see from the strides."""
    return all(s != 0 or n <= 1 for s, n in zip(x.stride(), x.shape))


class Double(TorchDispatchMode):
    """Every floating-point type that the program asks for is f64, also where it asks for none."""

    def __enter__(self) -> Double:
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self.default)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        args = pytree.tree_map(_double, pytree.tree_map(_with_memory, args))
        kwargs = {k: _double(v) for k, v in kwargs.items()}
        return func(*args, **kwargs)


def _double(x: Any) -> Any:
    return torch.float64 if x in HALVES and isinstance(x, torch.dtype) else x


def near(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Elementwise: equal up to a few roundings of `dtype`; NaN is near NaN."""
    a, b = a.double(), b.double()
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    bound = 16 * eps * torch.maximum(a.abs(), b.abs()).nan_to_num(0.0, 0.0, 0.0) + eps * 1e-3
    return (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= bound)


def excused(
    eager: list[torch.Tensor],
    got: list[torch.Tensor],
    exact: list[torch.Tensor] | None,
    again: Callable[[int], list[torch.Tensor]],
    runs: int,
) -> list[torch.Tensor]:
    """For each tensor, which elements of `got` are as good as eager's: near it, near f64, or within the scatter.

    `again(seed)` is eager mode with noise; `exact` the run in f64, if there is one.
    """
    good = [near(e, g, e.dtype) for e, g in zip(eager, got)]
    if exact is not None:
        for i, (e, g, r) in enumerate(zip(eager, got, exact)):
            if r.shape == g.shape:
                good[i] |= near(g, r.to(g.dtype) if g.is_floating_point() else r, g.dtype)
                if g.is_floating_point():
                    good[i] |= (g.double() - r).abs() <= 4 * (e.double() - r).abs()
                    # What overflows on the way in this type is infinite or NaN, as the order of the sums has it.
                    good[i] |= ~e.isfinite() & ~g.isfinite() & r.isfinite()
    spread = [torch.zeros(e.shape, dtype=torch.float64) for e in eager]
    for seed in range(runs):
        if all(x.all() for x in good):
            break
        for i, (e, g, n) in enumerate(zip(eager, got, again(seed))):
            if n.shape != e.shape:
                continue
            if not e.is_floating_point():
                good[i] |= n != e
                continue
            e, g, n = e.double(), g.double(), n.double()
            spread[i] = torch.maximum(spread[i], (n - e).abs().nan_to_num(0.0, 0.0, 0.0))
            good[i] |= (g - e).abs() <= 16 * spread[i]
            # At a pole, where eager mode is as much off as its result is large.
            good[i] |= g.isinf() & (spread[i] >= e.abs() / 2) & (e.abs() > 1e6)
            # On the edge of overflow, or of a domain; an infinity of the other sign.
            good[i] |= (n.isfinite() != e.isfinite()) | (n.isnan() != e.isnan()) | (n.isinf() & (n == g))
    return good
