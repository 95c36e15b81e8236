"""Reviewed by hand: why some pairs differ from eager mode, and why ops that Inductor generates code for are left to ATen."""

from __future__ import annotations

import re

DIFFERS: dict[tuple[str, ...], str] = {}
"""(op, dtypes) or (op, dtypes, mode) -> explanation; dtypes are separated by spaces."""

_SORTS = "sorting is data-dependent control flow, which our kernels have none of; Inductor calls ATen on CPUs as well (it sorts on GPUs)"
_SPECIAL = (
    "a special function without a vector expansion yet; Inductor's loop calls ATen's own C++ function for each element, "
    "we call ATen for the tensor"
)

_RANDOM = "a distribution that no layer draws from; ATen's generator"
_GCD = "a loop whose length depends on data; Inductor calls ATen for gcd"

ATEN: dict[str, str] = {
    **dict.fromkeys(
        ("aten.sort.default", "aten.sort.stable", "aten.topk.default", "aten.kthvalue.default", "aten.median.default",
         "aten.median.dim", "aten.mode.default"),
        _SORTS,
    ),
    **{
        f"aten.{name}.default": _SPECIAL
        for name in (
            "digamma erfinv i0 igamma igammac lgamma polygamma special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 "
            "special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
            "special_chebyshev_polynomial_w special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e "
            "special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_modified_bessel_i0 "
            "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri "
            "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
            "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
            "special_spherical_bessel_j0 special_zeta"
        ).split()
    },
    "aten.adaptive_max_pool2d.default": "sizes known only at run time, whose windows have no fixed size; compiled for known ones",
    "aten.adaptive_max_pool3d.default": "sizes known only at run time, whose windows have no fixed size; compiled for known ones",
    "aten.bucketize.Tensor": "boundaries whose number is known only at run time; compiled for known ones",
    "aten.searchsorted.Tensor": "sequences whose length is known only at run time; compiled for known ones",
    "aten.cauchy.default": _RANDOM,
    "aten.geometric.default": _RANDOM,
    "aten.log_normal.default": _RANDOM,
    "aten.exponential.default": _RANDOM,
    "aten.gcd.default": _GCD,
    "aten.lcm.default": _GCD,
    "aten.nextafter.default": "arithmetic on the bits of floats, not built yet",
    "aten.frexp.Tensor": "arithmetic on the bits of floats, not built yet",
    "aten.fractional_max_pool2d.default": "windows at places that random samples choose; rare enough to leave",
    "aten.fractional_max_pool3d.default": "windows at places that random samples choose; rare enough to leave",
    "with_effects": "an op with effects, such as the check of a decomposition's errors, which are ATen's own",
}  # fmt: skip
"""ATen op that Inductor generates code for -> why we call ATen."""

CLASSES: dict[str, str] = {
    r"dtype torch\.complex": "complex numbers: Inductor calls ATen for most of these too",
    r"the input \w+ is of torch\.complex": "complex numbers: Inductor calls ATen for most of these too",
    r"is a lazy conjugate": "complex numbers: Inductor calls ATen for most of these too",
    r"returns a tensor of torch\.complex": "complex numbers: Inductor calls ATen for most of these too",
    r"random numbers of": "draws that only ATen has, which keep to its generator",
    r"boolean mask": "what goes where depends on how many places before are set; Inductor calls ATen here too",
}
"""Regular expression for our reason -> why that is one."""


def explanation(op: str, dtype: str, mode: str) -> str | None:
    """The explanation for a pair that differs."""
    for (name, dtypes, *modes), text in DIFFERS.items():
        if name == op and dtype in dtypes.split() and (not modes or mode in modes):
            return text
    return None


def accepted(op: str, reason: str) -> str | None:
    """Why it is right to leave `op` to ATen, when the compiler gives `reason`; None if nobody has said so."""
    if op in ATEN:
        return ATEN[op]
    return next((why for pattern, why in CLASSES.items() if re.search(pattern, reason)), None)
