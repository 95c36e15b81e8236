"""The compiler's exception type, and that of its debug mode."""

from __future__ import annotations

from collections.abc import Iterable


class CompileError(RuntimeError):
    """Something could not be compiled.

    `reason` says what; the optional parts say where: the FX node, the user's source line, the pass, the kernel, and the
    path of a reproducer on disk. `origins` are the names of the FX nodes that it comes from, `others` what went wrong
    besides in the same graph.
    """

    def __init__(
        self,
        reason: str,
        *,
        node: str | None = None,
        source: str | None = None,
        stage: str | None = None,
        kernel: str | None = None,
        reproducer: str | None = None,
        origins: Iterable[str] = (),
    ) -> None:
        self.reason = reason
        self.node = node
        self.source = source
        self.stage = stage
        self.kernel = kernel
        self.reproducer = reproducer
        self.origins = tuple(origins)
        self.others: list[CompileError] = []
        places = [("node", node), ("source", source), ("pass", stage), ("kernel", kernel), ("reproducer", reproducer)]
        super().__init__("\n".join([reason, *(f"  {name}: {value}" for name, value in places if value)]))


class OptionError(CompileError, ValueError):
    """An option of the user's that cannot be: never answered by running things through ATen."""


class GuardPageError(RuntimeError):
    """With the option `guard_pages`: a kernel has accessed memory outside of its buffers. The message names both."""
