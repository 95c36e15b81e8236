"""Passes and strategies of the user's own: Python files named by the option `passes`.

    # my_pass.py
    @mlirc.register_pass(after="sink-reshapes")
    def count(module):                       # an ir.Module, to look at or to rewrite in place
        ...

    @mlirc.register_strategy
    def wider(kernel, target, default):      # returns the strategy to use instead of `default`
        return dataclasses.replace(default, unroll=2)

Kernels are compiled in worker processes, and cached: a job carries the contents of the files along, and the key of a
kernel has their hash in it, and that of the user's modules that they import.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import os
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..dialects.mlir import ir
from ..errors import CompileError
from .imports import OwnModule, own_modules, serve

if TYPE_CHECKING:
    from ..lowering.target import Target
    from .strategy import Strategy
    from .vectorize import KernelFunction

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class UserFile:
    """A file of the user's, as it was when the compilation began."""

    path: str
    source: str
    modules: tuple[OwnModule, ...] = ()
    """What it imports of the user's."""


@dataclass(frozen=True)
class UserPass:
    """`run(module)` is called after the stage `after` of each graph, or of each kernel."""

    name: str
    after: str
    run: Callable[[ir.Module], object]
    path: str


@dataclass
class UserCode:
    """What a set of files registers, in order."""

    files: tuple[UserFile, ...] = ()
    passes: list[UserPass] = field(default_factory=list)
    strategies: list[tuple[Callable[..., Any], str]] = field(default_factory=list)

    @property
    def kernel_files(self) -> tuple[UserFile, ...]:
        """The files, if kernels depend on them."""
        from .pipeline import KERNEL_STAGES

        return self.files if self.strategies or any(p.after in KERNEL_STAGES for p in self.passes) else ()

    def run_after(self, stage: str, module: ir.Module, see: Callable[[str, object], None]) -> bool:
        """Run the passes that follow a stage, and show what each has made of the module; whether there were any.

        Raises CompileError, naming pass and file, if one raises or leaves invalid IR.
        """
        found = [p for p in self.passes if p.after == stage]
        for p in found:
            try:
                p.run(module)
            except Exception as e:
                raise _failed(e, p.name, p.path) from e
            try:
                module.operation.verify()
            except ir.MLIRError as e:
                raise CompileError(f"the pass has left invalid IR: {e}", source=p.path, stage=p.name) from None
            see(p.name, module)
        return bool(found)

    def strategy(self, kernel: KernelFunction, target: Target, chosen: Strategy) -> Strategy:
        """The strategy after all files have had their say. Raises CompileError, naming function and file."""
        from .strategy import Strategy

        for function, path in self.strategies:
            name = function.__name__
            try:
                replaced = function(kernel, target, chosen)
            except Exception as e:
                raise _failed(e, name, path) from e
            if not isinstance(replaced, Strategy):
                kind = type(replaced).__name__
                raise CompileError(f"the function returned a {kind}, not a strategy (return the default to keep it)", source=path, stage=name)
            new = {f.name for f in fields(replaced) if f.name != "why" and getattr(replaced, f.name) != getattr(chosen, f.name, None)}
            chosen = replace(replaced, why={**replaced.why, **dict.fromkeys(new, f"{name} of {path}")})
        return chosen


NOTHING = UserCode()

_loading: contextvars.ContextVar[UserCode | None] = contextvars.ContextVar("mlirc user code", default=None)


def register_pass(*, after: str, name: str | None = None) -> Callable[[F], F]:
    """Decorate a function of one `ir.Module` that runs after a stage of the compiler.

    `after` is a graph stage (the function sees the whole graph, `@main`) or one of `kernel`, `vector` and `math` (it
    sees one kernel, in a worker process). `name` is the function's, with dashes, unless it is given; dumps know the pass
    by it. The function changes the module in place; the context is current, locations are unknown unless it sets them.

    Raises ValueError for an unknown stage, listing the valid ones, and for a name that is taken.
    """
    from .pipeline import GRAPH_PASSES, KERNEL_STAGES

    if after not in GRAPH_PASSES and after not in KERNEL_STAGES:
        raise ValueError(
            f"mlirc: no stage {after!r} to put a pass after; "
            f"stages of a graph: {', '.join(GRAPH_PASSES)}; stages of a kernel: {', '.join(KERNEL_STAGES)}"
        )

    def register(function: F) -> F:
        code = _current(function)
        if code is not None:
            own = name or function.__name__.replace("_", "-")
            if not re.fullmatch(r"[\w.-]+", own):
                raise ValueError(f"mlirc: {own!r} is no name for a pass; letters, digits, '.', '-' and '_' are")
            if own in (*graph_stages(code), *kernel_stages(code, locations=True)):
                raise ValueError(f"mlirc: there is a stage {own!r} already; give the pass another name=")
            code.passes.append(UserPass(own, after, function, function.__code__.co_filename))
        return function

    return register


def register_strategy(function: F) -> F:
    """Decorate `function(kernel, target, default) -> strategy`, which may replace what `select_strategy` has chosen.

    `kernel` is a `KernelFunction`, `default` a `LoopStrategy` or `ContractionStrategy`. It runs in worker processes.
    """
    code = _current(function)
    if code is not None:
        code.strategies.append((function, function.__code__.co_filename))
    return function


def _current(function: Callable[..., Any]) -> UserCode | None:
    code = _loading.get()
    if code is None:
        warnings.warn(
            f"mlirc: {function.__name__} is registered outside of a file named by the option `passes`, which has no effect",
            UserWarning,
            stacklevel=3,
        )
    return code


def graph_stages(code: UserCode = NOTHING) -> list[str]:
    """Names of what a dump shows of a whole graph, passes of the user's own included, in order."""
    from .pipeline import GRAPH_PASSES

    return ["torch", "fx", *_with_passes(GRAPH_PASSES, code)]


def kernel_stages(code: UserCode = NOTHING, locations: bool = False) -> list[str]:
    """Names of what a dump shows of one kernel. With `locations`, steps that only then are there are included."""
    from ..lowering.to_llvm import LOCATION_STEPS, STEPS

    names = kernel_names()
    last = [*STEPS, *(LOCATION_STEPS if locations else ()), "llvm", "asm"]
    return [names.of(stage) for stage in (*_with_passes(("kernel", "strategy", "vector", "math"), code), *last)]


def kernel_names() -> Names:
    """For what an observer of one kernel is told."""
    from .pipeline import GRAPH_PASSES

    return Names(("torch", "fx", *GRAPH_PASSES))


def _with_passes(stages: Iterable[str], code: UserCode) -> list[str]:
    return [name for stage in stages for name in (stage, *(p.name for p in code.passes if p.after == stage))]


class Names:
    """Short, distinct names for the passes of one kernel, in the order in which they run.

    `func.func(lower-vector-mask{...})` -> `lower-vector-mask`; the second `cse` -> `cse-2`.
    """

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self.seen = dict.fromkeys(taken, 1)

    def of(self, stage: str) -> str:
        short = stage.removeprefix("func.func(").partition("{")[0].rstrip(")")
        self.seen[short] = count = self.seen.get(short, 0) + 1
        return short if count == 1 else f"{short}-{count}"


def read_files(paths: Sequence[str]) -> tuple[UserFile, ...]:
    """Raises CompileError for a file that cannot be read."""
    out = []
    for path in map(os.path.expanduser, paths):
        try:
            with open(path, encoding="utf-8") as file:
                source = file.read()
            out.append(UserFile(path, source, own_modules(source)))
        except (OSError, UnicodeDecodeError) as e:
            raise CompileError(f"cannot read a file of the option `passes`: {e}", source=path) from None
    return tuple(out)


def files_key(files: Sequence[UserFile]) -> str:
    """What the kernel cache has to know of the files that kernels depend on: empty if there are none."""
    return hashlib.sha256(repr([(f.source, [(m.name, m.source) for m in f.modules]) for f in files]).encode()).hexdigest() if files else ""


@functools.lru_cache(maxsize=64)
def load(files: tuple[UserFile, ...]) -> UserCode:
    """Execute the files once per process and contents. Raises CompileError, naming file and line, if that fails."""
    code = UserCode(files)
    token = _loading.set(code)
    try:
        serve([m for file in files for m in file.modules])
        for file in files:
            module = types.ModuleType(f"mlirc_user_{hashlib.sha256(file.source.encode()).hexdigest()[:12]}")
            module.__file__ = file.path
            # dataclasses and pickle look modules up by name.
            sys.modules[module.__name__] = module
            try:
                exec(compile(file.source, file.path, "exec"), module.__dict__)  # noqa: S102
            except SyntaxError as e:
                raise CompileError(f"SyntaxError: {e.msg}", source=f"{file.path}:{e.lineno}", stage="load passes") from None
            except Exception as e:
                raise _failed(e, "load passes", file.path) from e
    finally:
        _loading.reset(token)
    return code


def line_in(log: str, files: Sequence[UserFile]) -> str | None:
    """`file:line` of the innermost frame of one of the files in what Python writes when a process dies of a signal."""
    for path, line in re.findall(r'File "([^"]+)", line (\d+)', log):
        if any(path == f.path for f in files):
            return f"{path}:{line}"
    return None


def _failed(error: Exception, name: str, path: str) -> CompileError:
    """With the line of the user's file in which it happened."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    source = f"{path}:{lines[-1]}" if lines else path
    reason = error.reason if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
    return CompileError(reason, source=source, stage=name)
