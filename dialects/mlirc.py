"""The dialect `mlirc` (see `own`) under the name by which MLIR's bindings look for its classes: without it they search all paths anew for
every op of the dialect that somebody looks at."""

from . import own

__all__ = ["own"]
