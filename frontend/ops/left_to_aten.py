"""Ops that have no lowering on purpose, with the reason that the user reads."""

from __future__ import annotations

from typing import Any

import torch

from ..random import DECOMPOSITIONS
from ..registry import Unsupported, lowers
from ..subgraphs import CONTROL_FLOW, WRITERS

aten = torch.ops.aten

_SORTS = "sorting: what is compared with what depends on data"
_SCANS = "running extrema and logarithms of sums"

_LOOPS = "a loop whose length depends on data"
_SERIES = "a special function whose loops run to lengths that depend on data"
_LAPACK = "linear algebra that LAPACK does"
_COUNTS = "the size of the result depends on data"

_NAMED = {
    _LOOPS: "gcd lcm",
    _SERIES: (
        "igamma igammac special_zeta special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l "
        "special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
        "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w"
    ),
    _LAPACK: (
        "linalg_inv_ex linalg_cholesky_ex linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_qr linalg_solve_triangular "
        "linalg_ldl_factor_ex linalg_ldl_solve linalg_eig linalg_householder_product linalg_matrix_exp _linalg_svd _linalg_eigh "
        "_linalg_det _linalg_slogdet _linalg_solve_ex cholesky cholesky_inverse cholesky_solve geqrf ormqr triangular_solve lu_unpack"
    ),
    _COUNTS: "bincount _unique2 unique_consecutive unique_dim_consecutive",
}
"""reason -> ops"""

REASONS: dict[Any, str] = {
    # The token that orders such ops passes through the calls.
    torch.ops.higher_order.with_effects: "an op with effects, such as the check of a decomposition's errors",
    **dict.fromkeys(CONTROL_FLOW, "what runs is decided at run time; the graphs that it calls are compiled"),
    **dict.fromkeys(WRITERS, "an op of others that writes to its arguments"),
    aten.randperm: "a permutation: ATen swaps elements one after the other",
    aten.multinomial: "each draw searches running sums of probabilities, or depends on the draws before",
    **{getattr(aten, name): reason for reason, names in _NAMED.items() for name in names.split()},
    aten.special_airy_ai: "a special function that no layer or distribution is made of",
    aten.masked_scatter: "what goes where depends on how many places before are masked",
    **dict.fromkeys((aten.sort, aten.topk, aten.argsort, aten.kthvalue, aten.median, aten.mode, aten.unique_dim, aten.nanmedian), _SORTS),
    **dict.fromkeys((aten.logcumsumexp, aten.cummax, aten.cummin), _SCANS),
}  # fmt: skip


RANDOM = tuple({op.overloadpacket for op in DECOMPOSITIONS} | {aten.rand, aten.randn, aten.randint, aten.normal, aten.random})


@lowers(*RANDOM)
def left_random(b: Any, node: Any, *_: Any, **kwargs: Any) -> Any:
    if kwargs.get("generator") is not None:
        raise Unsupported("random numbers of a generator that the call names")
    if node.target in DECOMPOSITIONS:
        raise Unsupported('random numbers come from ATen with the option rng="aten"')
    raise Unsupported("random numbers of a dtype, or over a range, that only ATen has")


def _register(target: Any, reason: str) -> None:
    @lowers(target)
    def left(*_: Any, **__: Any) -> Any:
        raise Unsupported(reason)


for _target, _reason in REASONS.items():
    _register(_target, _reason)
