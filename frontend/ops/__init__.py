"""Lowerings of ATen ops to linalg, one module per family. Importing this package registers them."""

from . import activations, contractions, convolution, creation, normalisation, padding, pointwise, reductions, views  # noqa: F401
