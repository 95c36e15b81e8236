"""Lowerings of ATen ops to linalg, one module per family. Importing this package registers them."""

from . import (  # noqa: F401
    activations,
    contractions,
    convolution,
    creation,
    indexing,
    left_to_aten,
    normalisation,
    padding,
    pointwise,
    pooling,
    random,
    rearranging,
    recurrent,
    reductions,
    resampling,
    scans,
    scatter,
    strided,
    views,
)
