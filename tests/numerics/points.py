"""Where functions are measured: every number of a short format, and a spread over the long ones."""

from __future__ import annotations

import functools

import numpy as np
import torch

from .formats import F64, Format

SPECIAL = (0.0, 1.0, 0.5, 2.0, 3.0, np.inf, np.nan)

# Where functions, or the usual ways to compute them, change: 2/3 (logarithms), multiples of ln 2 / 2 (exponentials), thresholds
# of softplus and of saturation, overflow and underflow of exp, exp2, sinh, expm1, gelu in each format.
BORDERS = (
    0.25, 0.3, 0.3465735902799726, 0.4142135623730951, 0.66677, 0.6931471805599453, 0.7071067811865476, 1.0397207708399179,
    1.4142135623730951, 2.414213562373095, 3.9192059, 3.95, 5.5, 5.6, 5.9, 6.0, 8.3, 8.317766, 9.010913, 9.1, 10.0, 10.05, 11.09,
    13.0, 14.2, 16.0, 16.635532, 17.32868, 18.0, 18.714973, 19.06154, 20.0, 24.0, 26.6, 27.2, 36.04365, 37.4, 38.0, 38.6,
    44.3614, 87.33654, 88.37626, 88.72283, 89.41598, 103.278929, 103.97208, 104.0, 126.0, 127.0, 128.0, 149.0, 150.0, 708.3964,
    709.782712893384, 710.4758600739439, 745.1332191019411, 745.2, 1022.0, 1024.0, 1074.0, 1075.0,
)  # fmt: skip


def every(form: Format) -> torch.Tensor:
    """All 65,536 numbers of a format of two bytes."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(form.dtype)


def _tensor(form: Format, values: np.ndarray) -> torch.Tensor:
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.asarray(values, np.float64)).to(form.dtype)


def _neighbours(form: Format, centres: torch.Tensor, reach: int) -> torch.Tensor:
    """Numbers of f32 or f64 with the `reach` next ones on both sides."""
    integers = torch.int64 if form is F64 else torch.int32
    bits = centres.view(integers)
    return (bits[:, None] + torch.arange(-reach, reach + 1, dtype=integers)).flatten().view(form.dtype)


@functools.lru_cache(maxsize=4)
def spread(form: Format, count: int) -> torch.Tensor:
    """About `count` numbers of f32 or f64, all of them in both signs: special ones and their neighbours, the same count with
    each exponent (subnormals too), multiples of pi/2, and more where functions do something."""
    rng = np.random.default_rng(0)
    exponents = 2 * -form.lowest_exponent + 2
    each = count // 4 // exponents
    integers = np.int64 if form is F64 else np.int32
    mantissas = rng.integers(0, 2**form.mantissa, (exponents, each), dtype=integers)
    mantissas[0] >>= rng.integers(0, form.mantissa, each, dtype=integers)  # subnormals of all sizes
    bits = (np.arange(exponents, dtype=integers) << form.mantissa)[:, None] + mantissas
    powers = _tensor(form, np.ldexp(1.0, np.arange(form.lowest_exponent - form.mantissa + 1, -form.lowest_exponent + 1)))
    largest, smallest = torch.finfo(form.dtype).max, torch.finfo(form.dtype).smallest_normal
    reach = 2 if form is F64 else 64
    parts = [
        _tensor(form, np.array(SPECIAL)),
        torch.tensor([largest, smallest], dtype=form.dtype),
        _tensor(form, np.arange(1, 200) * 2.0 ** (form.lowest_exponent - form.mantissa)),
        _neighbours(form, powers, 1),
        _neighbours(form, _tensor(form, np.array(BORDERS)), reach),
        torch.from_numpy(bits.ravel()).view(form.dtype),
        _tensor(form, np.arange(1, count // 32) * (np.pi / 2)),
        _tensor(form, np.linspace(0, 10, count // 12)),
        _tensor(form, rng.uniform(0, 1.01, count // 24)),
        _tensor(form, rng.uniform(0, 110 if form is not F64 else 760, count // 24)),
    ]
    half = torch.cat(parts)
    return torch.cat([half, -half])


@functools.lru_cache(maxsize=4)
def pairs(form: Format, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """About `count` pairs: all of special numbers and of small ones with their halves, random bits, near and far numbers."""
    rng = np.random.default_rng(1)
    info = torch.finfo(form.dtype)
    tiny = 2.0 ** (form.lowest_exponent - form.mantissa)
    few = [*SPECIAL, tiny, 3 * tiny, info.smallest_normal, info.max, 1 + info.eps, 1 - info.eps / 2, 1.5, 2.5, 7, 10, 100, 127.5, 1e4, 0.1, 1e-3]
    few += [2.0**form.mantissa, 2.0 ** (form.mantissa + 1) - 1, 2.0 ** (form.mantissa + 2), 2.0**form.mantissa - 0.5, info.max / 2]
    table = _tensor(form, np.array([*few, *(-v for v in few)]))
    a, b = (t.flatten() for t in torch.meshgrid(table, table, indexing="ij"))
    bits = {8: np.int64, 4: np.int32, 2: np.int16}[form.dtype.itemsize]
    limits = np.iinfo(bits)
    n = count // 4
    raw = torch.from_numpy(rng.integers(limits.min, limits.max, (2, n), dtype=bits, endpoint=True)).view(form.dtype)
    left = [a, raw[0], *(_tensor(form, v) for v in (np.exp(rng.normal(0, 3, n)), rng.normal(0, 5, n), rng.normal(0, 100, n)))]
    right = [b, raw[1], *(_tensor(form, v) for v in (rng.normal(0, 15, n), rng.integers(-40, 40, n), rng.normal(0, 1, n)))]
    return torch.cat(left), torch.cat(right)


def kept(count: int, step: int) -> torch.Tensor:
    """Which of `count` points a quick run takes: every `step`-th, and all of the special ones at the start of each half."""
    keep = torch.zeros(count, dtype=torch.bool)
    keep[::step] = True
    for start in (0, count // 2):
        keep[start : start + 2000] = True
    return keep
