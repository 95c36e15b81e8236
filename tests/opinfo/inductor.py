"""What Inductor does with PyTorch's OpInfos on CPUs, as its own test says (test/inductor/test_torchinductor_opinfo.py).

Only facts are taken over: which pairs it expects to fail or skips, its tolerances, and which ops it tries with all samples.
Keys are full names (`op.variant`); dtypes are written as in `cases.DTYPES`.
"""

from __future__ import annotations

import functools

_ALL = "bool f16 f32 f64 i32 i64"

FAILS = {
    "_softmax_backward_data": "f16",
    "_upsample_bilinear2d_aa": "f32 f64",
    "cholesky": "f32 f64",
    "complex": "f16",
    "histc": "f16",
    "linalg.ldl_factor": "f32 f64",
    "multinomial": "f16 f32 f64",
    "nn.functional.avg_pool1d": "i64",
    "nn.functional.avg_pool2d": "i64",
    "nn.functional.avg_pool3d": "i64",
    "nn.functional.cosine_embedding_loss": "bool",
    "nn.functional.local_response_norm": "i64",
    "nonzero_static": _ALL,
    "normal": "f16 f32 f64",
    "normal.in_place": "f16 f32 f64",
    "normal.number_mean": "f16 f32 f64",
    "index_reduce.mean": "f16",
    "index_reduce.prod": "f16",
    "resize_": _ALL,
    "resize_as_": _ALL,
    "sparse.mm.reduce": "f16 f32 f64",
    "sparse.sampled_addmm": "f32 f64",
    "to_sparse": "f32 f64",
    "view_as_complex": "f16",
}
"""Pairs that Inductor's test expects to fail on CPU, or skips as flaky."""

TESTED = frozenset("f16 f32 f64 i32 i64 bool".split())
"""Dtypes that Inductor's test runs on CPU (u8 only for interpolation)."""

_TESTED_U8 = frozenset(
    ("nn.functional.interpolate.bilinear", "nn.functional.interpolate.bicubic", "nn.functional.upsample_bilinear",
     "nn.functional.upsample_nearest")
)  # fmt: skip

ALL_SAMPLES = frozenset(
    "arange diagonal diagonal_copy diagonal_scatter softmax.with_dtype index_add index_copy scatter_reduce.sum select_scatter "
    "squeeze unfold unsqueeze sum amax amin all T H isinf isposinf isneginf nan_to_num mT mH rsub triu".split()
)

UNDEFINED = frozenset("empty empty_permuted empty_like new_empty empty_strided new_empty_strided".split())
"""Ops whose values are undefined: shape and dtype are compared."""

_POLYGAMMA = (1e-4, 1e-3)
TOLERANCES = {
    ("nn.functional.multilabel_soft_margin_loss", "f16"): (2e-3, 3e-4),
    ("nn.functional.triplet_margin_with_distance_loss", "f16"): (3e-3, 3e-4),
    ("softmax", "f16"): (2e-2, 1e-4),
    **{(f"polygamma.polygamma_n_{n}", "f32"): _POLYGAMMA for n in range(5)},
    ("special.polygamma.special_polygamma_n_0", "f32"): _POLYGAMMA,
    ("_unsafe_masked_index_put_accumulate", "f16"): (1e-2, 1e-4),
    ("nn.functional.interpolate.bilinear", "u8"): (0.0, 1.0),
    ("nn.functional.upsample_bilinear", "u8"): (0.0, 1.0),
    ("nn.functional.interpolate.bicubic", "u8"): (0.0, 1.0),
    ("nn.functional.interpolate.bicubic", "f32"): (0.0, 5e-3),
}
"""(op, dtype) -> (rtol, atol) where they are not `tolerance`'s."""

_BY_DTYPE = {"f16": (1e-3, 1e-5), "bf16": (1.6e-2, 1e-5), "f32": (1.3e-5, 1.5e-5), "f64": (1e-7, 1e-7)}


def tolerance(op: str, dtype: str) -> tuple[float, float] | None:
    """(rtol, atol) for floating-point results of that op; None where assert_close's own are right."""
    return TOLERANCES.get((op, dtype), _BY_DTYPE.get(dtype))


def supported(op: str, dtype: str) -> bool:
    """Whether Inductor's own test runs this pair on CPU and expects it to pass."""
    tested = dtype in TESTED or (dtype == "u8" and op in _TESTED_U8)
    return tested and dtype not in FAILS.get(op, "").split()


@functools.cache
def generated() -> frozenset[str]:
    """Names (`aten.sort.stable`) of the overloads that Inductor generates code for, or takes apart, read from its tables."""
    from torch._inductor import lowering
    from torch._inductor.decomposition import select_decomp_table

    ours = (set(lowering.lowerings) | set(select_decomp_table())) - set(lowering.fallbacks)
    return frozenset(str(op) for op in ours)
