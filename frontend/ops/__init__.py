"""Lowerings of ATen ops to linalg, one module per family. Importing this package registers them."""

from . import contractions, pointwise, reductions, views  # noqa: F401
