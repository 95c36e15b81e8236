"""Reviewed by hand: why some pairs differ from eager mode, and why ops that Inductor generates code for are left to ATen."""

from __future__ import annotations

import re

_POLES = (
    "negative integers are poles of the trigamma function: eager divides by sin(pi x)^2, which rounding keeps from being zero "
    "(values from 1e13 in f32, from 1e31 in f64); ours is the limit, inf"
)

DIFFERS: dict[tuple[str, ...], str] = {
    **{(f"polygamma.polygamma_n_{n}", "i16 i8", "forward"): _POLES for n in range(5)},
    ("addcdiv", "f16"): "Dynamo takes addcdiv with a factor apart into a division, a product and a sum, each of which rounds to f16",
    ("module:nn.MultiLabelMarginLoss", "f32"): "torch describes the loss of one sample without a batch as having one dim, ATen's has none",
    ("max_pool2d_with_indices_backward", "f32 bf16", "dynamic"): "Dynamo cannot pass sizes known only at run time to this op",
    ("cov", "f32 bf16", "dynamic"): "torch cannot trace cov with weights when sizes are known only at run time",
    ("special.polygamma.special_polygamma_n_0", "i16 i8", "forward"): _POLES,
    ("nn.functional.batch_norm", "bf16", "gradient"): "the mean and deviation that are saved for the backward pass are bf16, and "
    "ours round to other neighbours than eager's; against fp64, our error is 0.018 at most, 0.0040 rms, as Inductor's, eager's is "
    "0.014 and 0.0043",
    ("nn.functional.instance_norm", "bf16", "gradient"): "the mean and deviation that are saved for the backward pass are bf16, and "
    "ours round to other neighbours than eager's; against fp64, our error is 0.012 at most, 0.0034 rms, eager's is 0.012 and 0.0035",
    ("special.i0e", "bf16 f16", "gradient"): "i1e(x) - sgn(x) i0e(x) cancels, and autograd's formula takes i0e(x) from the forward pass, "
    "rounded to two bytes; against fp64, our error is 0.0012 in bf16 and 0.0001 in f16 at most, eager's is 0.0012 and 0.0002",
    ("digamma", "f32", "gradient"): "eager's trigamma divides by sin(pi x)^2 in f32, which loses digits near its poles; against fp64, our "
    "error is 0.00003 at most, eager's is 0.0043",
    ("asin", "f16", "gradient"): "ATen's rsqrt rounds twice, after the root and after the division, in elements that do not fill a "
    "vector (the last 16 of 400), and once in the others, as ours does",
    ("fmod", "f16", "gradient"): "sums of products that eager rounds to f16; against fp64, our error is 0.054 at most, eager's is 0.37",
    ("nn.functional.linear_cross_entropy", "bf16", "gradient"): "logits are rounded to bf16 before their exponentials are taken, and ours "
    "to other neighbours than eager's; against fp64, over a hundred random inputs, our error is 0.0405 rms, eager's is 0.0409",
    ("ldexp", "f16", "gradient"): "eager rounds more often to f16; against fp64, our error in the element that differs is 0.000004, "
    "eager's is 0.000011",
    ("special.xlog1py", "bf16 f16", "gradient"): "ATen's xlog1py rounds the logarithm to two bytes before it multiplies, ours rounds "
    "the product only, and sums of them cancel; against fp64, our error is 0.0014 rms in f16 and 0.011 in bf16, eager's is 0.0022 and "
    "0.016",
}
"""(op, dtypes) or (op, dtypes, mode) -> explanation; dtypes are separated by spaces. Some are about torch.compile itself."""

_SORTS = "sorting is data-dependent control flow, which our kernels have none of; Inductor calls ATen on CPUs as well (it sorts on GPUs)"
_SPECIAL = (
    "a special function whose loops run to lengths that depend on data; Inductor's loop calls ATen's own C++ function for each "
    "element, we call ATen for the tensor"
)

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
            "igamma igammac polygamma special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
            "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h "
            "special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p "
            "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
            "special_shifted_chebyshev_polynomial_w special_zeta"
        ).split()
    },
    "aten.special_airy_ai.default": "a special function that no layer or distribution is made of",
    "aten.adaptive_max_pool2d.default": "sizes known only at run time, whose windows have no fixed size; compiled for known ones",
    "aten.adaptive_max_pool3d.default": "sizes known only at run time, whose windows have no fixed size; compiled for known ones",
    "aten.gcd.default": _GCD,
    "aten.lcm.default": _GCD,
    "aten.fractional_max_pool2d.default": "two-byte floats, in whose precision ATen places the windows; compiled for f32 and f64",
    "aten.fractional_max_pool3d.default": "two-byte floats, in whose precision ATen places the windows; compiled for f32 and f64",
    "with_effects": "an op with effects, such as the check of a decomposition's errors, which are ATen's own",
}  # fmt: skip
"""ATen op that Inductor generates code for -> why we call ATen."""

CLASSES: dict[str, str] = {
    r"dtype torch\.complex": "complex numbers: Inductor calls ATen for most of these too",
    r"the input \w+ is of torch\.complex": "complex numbers: Inductor calls ATen for most of these too",
    r"is a lazy conjugate": "complex numbers: Inductor calls ATen for most of these too",
    r"returns a tensor of torch\.complex": "complex numbers: Inductor calls ATen for most of these too",
    r"random numbers of": "draws that only ATen has, which keep to its generator",
    r"known only at run time": "kernels need this number or size now: compiled for those that are known",
    r"transposed convolution with both stride and dilation": "rare; Inductor calls ATen for convolutions",
    r"of memory outside of its operand": "a view reaches elements of the storage that its operand does not cover: only ATen has them",
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
