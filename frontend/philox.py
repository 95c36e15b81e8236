"""Random numbers as pure functions of a seed and a position: the ops `mlirc::seed`, `rand`, `randn`, `randint`, `bernoulli`, and `probability`,
which checks one.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a key of 64 bits
and a counter of 128 into four words of 32 bits. The key is the op's seed, the counter the position of the element in
row-major order, so that neither threads nor vectors nor recomputation change a number. Seeds come from torch's default
generator: `torch.manual_seed`, `torch.get_rng_state` and `torch.random.fork_rng` hold for them.

Here is what the ops mean, as arithmetic on int64 tensors; `ops.random` generates the same as code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ..runtime.abi import NO_PROBABILITY, status_error

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
"""What is added to the key after each round."""
ROUNDS = 10
DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Bits of a uniform number, as in ATen: each value is exact and below 1. f64 has 53."""

_WORD = 0xFFFFFFFF

_library = torch.library.Library("mlirc", "DEF")
_SEEDED = (torch.Tag.nondeterministic_seeded,)
_library.define("seed(int number) -> Tensor", tags=_SEEDED)
_library.define("rand(Tensor seed, SymInt[] size, ScalarType dtype) -> Tensor")
_library.define("randn(Tensor seed, SymInt[] size, ScalarType dtype) -> Tensor")
_library.define("randint(Tensor seed, SymInt low, SymInt high, SymInt[] size, ScalarType dtype) -> Tensor")
_library.define("bernoulli(Tensor seed, float p, SymInt[] size) -> Tensor")
_library.define("probability(Tensor p) -> Tensor")

ops = torch.ops.mlirc


def draw_seeds(count: int) -> torch.Tensor:
    """`count` seeds from torch's default generator, int64."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), dtype=torch.int64, device="cpu")


def words(seed: torch.Tensor, size: Sequence[int]) -> list[torch.Tensor]:
    """The four words at each position of `size`, each an int64 tensor with values below 2**32."""
    at = torch.arange(math.prod(size), dtype=torch.int64, device="cpu").reshape(tuple(size))
    c = [at & _WORD, at >> 32, torch.zeros_like(at), torch.zeros_like(at)]
    key = [seed & _WORD, (seed >> 32) & _WORD]
    for _ in range(ROUNDS):
        a, b = c[0] * MULTIPLIERS[0], c[2] * MULTIPLIERS[1]  # int64 wraps: its bits are those of the unsigned product
        c = [((b >> 32) & _WORD) ^ c[1] ^ key[0], b & _WORD, ((a >> 32) & _WORD) ^ c[3] ^ key[1], a & _WORD]
        key = [(k + w) & _WORD for k, w in zip(key, WEYL)]
    return c


def _rand(seed: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Uniform in [0, 1)."""
    w = words(seed, size)
    if dtype == torch.float64:
        return ((w[0] << 21) | (w[1] >> 11)).double() * 2.0**-53
    digits = DIGITS[dtype]
    return ((w[0] >> (32 - digits)).float() * 2.0**-digits).to(dtype)


def _randn(seed: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Box and Muller (1958): the cosine of a uniform angle at the radius of a normal pair; two-byte floats in f32."""
    w = words(seed, size)
    if dtype == torch.float64:
        radius = ((w[0] << 21) | (w[1] >> 11)).double() * 2.0**-53 + 2.0**-54
        angle = ((w[2] << 21) | (w[3] >> 11)).double() * 2.0**-53
    else:
        radius = w[0].float() * 2.0**-32 + 2.0**-33  # in (0, 1]
        angle = (w[1] >> 8).float() * 2.0**-24
    return (torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * math.pi * angle)).to(dtype)


def _randint(seed: torch.Tensor, low: int, high: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Uniform in low ... high - 1: the high word of word * range (Lemire 2019, without rejection) up to 2**32 values, beyond
    that 64 bits modulo the range."""
    w, span = words(seed, size), high - low
    if span <= 2**32:
        offset = (w[0] * span >> 32) & _WORD
    else:
        unsigned = ((w[0] << 32) | w[1]).numpy().view(np.uint64) % np.uint64(span)
        offset = torch.from_numpy(unsigned.view(np.int64))
    return (low + offset).to(dtype)


def threshold(p: float) -> int:
    """The words below it are the successes of probability p: 0 ... 2**32."""
    return min(max(round(p * 2**32), 0), 2**32)


def _bernoulli(seed: torch.Tensor, p: float, size: Sequence[int]) -> torch.Tensor:
    return words(seed, size)[0] < threshold(p)


def _probability(p: torch.Tensor) -> torch.Tensor:
    """Numbers in [0, 1] as they are; RuntimeError for others."""
    if not ((p >= 0) & (p <= 1)).all():
        raise status_error(NO_PROBABILITY)
    return p.clone()


_library.impl("seed", lambda number: draw_seeds(1)[0], "CompositeExplicitAutograd")
for _name, _function in {"rand": _rand, "randn": _randn, "randint": _randint, "bernoulli": _bernoulli, "probability": _probability}.items():
    _library.impl(_name, _function, "CPU")

torch.library.register_fake("mlirc::seed", lambda number: torch.empty((), dtype=torch.int64), lib=_library)
for _name in ("rand", "randn"):
    torch.library.register_fake(f"mlirc::{_name}", lambda seed, size, dtype: seed.new_empty(size, dtype=dtype), lib=_library)
torch.library.register_fake(
    "mlirc::randint", lambda seed, low, high, size, dtype: seed.new_empty(size, dtype=dtype), lib=_library
)
torch.library.register_fake("mlirc::bernoulli", lambda seed, p, size: seed.new_empty(size, dtype=torch.bool), lib=_library)
torch.library.register_fake("mlirc::probability", torch.empty_like, lib=_library)
