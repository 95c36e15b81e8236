"""ATen's random ops in terms of those of `philox`, each call with a seed of its own."""

from __future__ import annotations

import fractions
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm

from .philox import ops

aten = torch.ops.aten
_numbers = itertools.count()

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""Of overloads. NotImplemented leaves a call to ATen: one with a generator of the user's, or of another device."""


def _decomposes(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, generator: Any = None, **kwargs: Any) -> Any:
            device = kwargs.pop("device", None) or (args[0].device if isinstance(args[0], torch.Tensor) else "cpu")
            if generator is not None or torch.device(device).type != "cpu":
                return NotImplemented
            kwargs.pop("pin_memory", None)
            return NotImplemented if kwargs.pop("layout", None) not in (None, torch.strided) else f(*args, **kwargs)

        DECOMPOSITIONS.update(dict.fromkeys(targets, checked))
        return f

    return register


def _seed() -> torch.Tensor:
    # Equal calls would be one for whoever looks for common subexpressions.
    return ops.seed(next(_numbers))


def _float(dtype: torch.dtype | None) -> torch.dtype:
    return dtype or torch.get_default_dtype()


def _like(x: torch.Tensor, draw: Callable[[Sequence[Any]], torch.Tensor], memory_format: Any = None) -> torch.Tensor:
    """`draw(size)` in the memory order of x, or in that of the format."""
    if memory_format not in (None, torch.preserve_format):
        return draw(x.shape).contiguous(memory_format=memory_format)
    order, _ = compute_elementwise_output_logical_to_physical_perm(x)
    drawn = draw([x.shape[d] for d in order])
    return drawn if order == sorted(order) else drawn.permute([order.index(d) for d in range(x.dim())])


def _uniform(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """In [0, 1), like x; f64 for f64, else f32, in which the distributions are computed."""
    dtype = dtype or (torch.float64 if x.dtype == torch.float64 else torch.float32)
    return _like(x, lambda size: ops.rand(_seed(), size, dtype))


def _fits(low: Any, high: Any, dtype: torch.dtype) -> bool:
    """Whether a type has all integers from `low` to below `high`, as far as these are known: eager mode complains otherwise."""
    if dtype == torch.bool:
        least, most = 0, 1
    elif dtype.is_complex:
        return False
    else:
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        least, most = int(info.min), int(info.max)
    return all(not isinstance(n, int) or least <= n <= most for n in (low, high - 1))


def _integers(low: Any, high: Any, size: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """From `low` to below `high`, also once they are rounded to the type: large ones have narrower bounds then, as in ATen."""
    if dtype.is_floating_point and isinstance(low, int) and isinstance(high, int):
        digits = 1 - math.frexp(torch.finfo(dtype).eps)[1] + 1
        step = lambda n: 1 << max(abs(n).bit_length() - digits, 0)  # noqa: E731
        if _rounded(high - 1, digits) >= high:
            high = _rounded(high - 1, digits) - step(high - 1)
        if _rounded(low + 1, digits) < low:
            low = _rounded(low + 1, digits) + step(low + 1)
    return ops.randint(_seed(), low, high, size, dtype)


def _rounded(n: int, digits: int) -> int:
    """To so many binary digits, to even in the middle."""
    unit = 1 << max(abs(n).bit_length() - digits, 0)
    return round(fractions.Fraction(n, unit)) * unit


def _gaussian(x: torch.Tensor) -> torch.Tensor:
    return _like(x, lambda size: ops.randn(_seed(), size, torch.float64 if x.dtype == torch.float64 else torch.float32))


@_decomposes(aten.rand.default)
def rand(size: Any, *, dtype: Any = None) -> torch.Tensor:
    return ops.rand(_seed(), size, _float(dtype))


@_decomposes(aten.randn.default)
def randn(size: Any, *, dtype: Any = None) -> Any:
    return NotImplemented if _float(dtype).is_complex else ops.randn(_seed(), size, _float(dtype))


@_decomposes(aten.rand_like.default)
def rand_like(x: torch.Tensor, *, dtype: Any = None, memory_format: Any = None) -> torch.Tensor:
    return _like(x, lambda size: ops.rand(_seed(), size, dtype or x.dtype), memory_format)


@_decomposes(aten.randn_like.default)
def randn_like(x: torch.Tensor, *, dtype: Any = None, memory_format: Any = None) -> Any:
    dtype = dtype or x.dtype
    return NotImplemented if dtype.is_complex else _like(x, lambda size: ops.randn(_seed(), size, dtype), memory_format)


@_decomposes(aten.randint.default)
def randint(high: Any, size: Any, *, dtype: Any = None) -> torch.Tensor:
    return randint_low(0, high, size, dtype=dtype)


@_decomposes(aten.randint.low)
def randint_low(low: Any, high: Any, size: Any, *, dtype: Any = None) -> Any:
    dtype = dtype or torch.int64
    return _integers(low, high, size, dtype) if _fits(low, high, dtype) else NotImplemented


@_decomposes(aten.randint_like.default)
def randint_like(x: torch.Tensor, high: Any, *, dtype: Any = None, memory_format: Any = None) -> torch.Tensor:
    return randint_like_low(x, 0, high, dtype=dtype, memory_format=memory_format)


@_decomposes(aten.randint_like.low_dtype)
def randint_like_low(x: torch.Tensor, low: Any, high: Any, *, dtype: Any = None, memory_format: Any = None) -> Any:
    dtype = dtype or x.dtype
    return _like(x, lambda size: _integers(low, high, size, dtype), memory_format) if _fits(low, high, dtype) else NotImplemented


@_decomposes(aten.random.to)
def random_to(x: torch.Tensor, high: Any) -> torch.Tensor:
    return _like(x, lambda size: _integers(0, high, size, x.dtype))


@_decomposes(getattr(aten.random, "from"))
def random_from(x: torch.Tensor, low: Any, high: Any) -> Any:
    return NotImplemented if high is None else _like(x, lambda size: _integers(low, high, size, x.dtype))


@_decomposes(aten.bernoulli.default)
def bernoulli(probabilities: torch.Tensor) -> Any:
    if not probabilities.is_floating_point():
        return NotImplemented
    # Row-major, whatever the layout of the probabilities.
    return (_uniform(probabilities) < ops.probability(probabilities)).to(probabilities.dtype, memory_format=torch.contiguous_format)


@_decomposes(aten.bernoulli.p)
def bernoulli_p(x: torch.Tensor, p: float = 0.5) -> Any:
    if not 0 <= p <= 1:
        return NotImplemented
    # A new tensor is row-major, whatever the layout of x. `x.bernoulli_()` is the same op once a graph is functional.
    calls = torch.fx.traceback.get_current_meta().get("source_fn_stack")
    if calls and calls[-1][1] in (torch.bernoulli, torch.Tensor.bernoulli, "bernoulli"):
        return ops.bernoulli(_seed(), p, x.shape).to(x.dtype)
    return _like(x, lambda size: ops.bernoulli(_seed(), p, size)).to(x.dtype)


@_decomposes(aten.bernoulli.Tensor)
def bernoulli_tensor(x: torch.Tensor, p: torch.Tensor) -> Any:
    if not p.is_floating_point():
        return NotImplemented
    return (_uniform(x, p.dtype if p.dtype == torch.float64 else torch.float32) < ops.probability(p)).to(x.dtype)


@_decomposes(aten.native_dropout.default)
def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    if not 0 <= p <= 1:
        return NotImplemented
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = _like(x, lambda size: ops.bernoulli(_seed(), 1 - p, size))
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


@_decomposes(aten.uniform.default)
def uniform(x: torch.Tensor, low: float = 0.0, high: float = 1.0) -> Any:
    if low > high:
        return NotImplemented
    drawn = (_uniform(x) * (high - low) + low).to(x.dtype)  # which may round to the end that is left out
    return drawn if low == high else drawn.clamp(max=_below(high, low, x.dtype))


def _below(high: float, low: float, dtype: torch.dtype) -> float:
    """The largest number of a type that is less than `high` is in that type; `low` if none is between them."""
    info = torch.finfo(dtype)
    fraction, exponent = math.frexp(high)
    step = math.ldexp(info.eps, exponent - (2 if fraction == 0.5 else 1)) if high else 0.0
    step = max(step, info.smallest_normal * info.eps)
    return max(step * (round(high / step) - 1), low)


@_decomposes(aten.normal_functional.default)
def normal_functional(x: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    return (_gaussian(x) * std + mean).to(x.dtype)


@_decomposes(aten.normal.float_float)
def normal(mean: float, std: float, size: Any, *, dtype: Any = None) -> Any:
    dtype = _float(dtype)
    return NotImplemented if dtype.is_complex else ops.randn(_seed(), size, dtype) * std + mean


@_decomposes(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def normal_tensors(mean: Any, std: Any = 1.0) -> Any:
    tensors = [t for t in (mean, std) if isinstance(t, torch.Tensor)]
    dtype = tensors[0].dtype
    if any(not t.dtype.is_floating_point for t in tensors):
        return NotImplemented
    size = torch.broadcast_shapes(*(t.shape for t in tensors))
    return (ops.randn(_seed(), size, dtype) * std + mean).to(dtype)


@_decomposes(aten.log_normal.default)
def log_normal(x: torch.Tensor, mean: float = 1.0, std: float = 2.0) -> torch.Tensor:
    return torch.exp(_gaussian(x) * std + mean).to(x.dtype)


@_decomposes(aten.exponential.default)
def exponential(x: torch.Tensor, rate: float = 1.0) -> torch.Tensor:
    """Never zero: Gumbel noise takes the logarithm of it."""
    u = _uniform(x)
    return (torch.log1p(-u.clamp(min=2.0**-25)) * (-1 / rate)).to(x.dtype)


@_decomposes(aten.cauchy.default)
def cauchy(x: torch.Tensor, median: float = 0.0, sigma: float = 1.0) -> torch.Tensor:
    return (torch.tan((_uniform(x) - 0.5) * math.pi) * sigma + median).to(x.dtype)


@_decomposes(aten.geometric.default)
def geometric(x: torch.Tensor, p: float) -> torch.Tensor:
    if p == 1:
        return torch.ones_like(x)
    return (torch.floor(torch.log1p(-_uniform(x)) / math.log1p(-p)) + 1).to(x.dtype)


@_decomposes(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise(
    x: torch.Tensor, noise: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    if not training:
        return torch.where(x <= 0, x * ((lower + upper) / 2), x), noise
    slope = torch.where(x <= 0, uniform(x, lower, upper), 1.0)
    return x * slope, slope


def keep_seeds(joint: torch.fx.GraphModule) -> None:
    """Seeds are saved for backward, not drawn anew, where activation checkpointing computes the numbers again."""
    for n in joint.graph.nodes:
        if n.target is ops.seed.default:
            n.meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
