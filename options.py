"""The compiler's options: one frozen dataclass, filled from `torch.compile(options=...)`, the command line or MLIRC_OPTIONS."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Every option with its default. All of them are part of the cache key."""

    mode: str = "default"
    """A named set of options, see `MODES`; explicit options win over it."""
    target: str = "host"
    """CPU to compile for: `host`, or a name that `Target.parse` knows (`x86-64-v3`, `sapphirerapids`, ...)."""
    strict: bool = False
    """Raise where a kernel fails to compile, instead of running that part through ATen with a warning."""
    fallback: bool = True
    """Allow calls back into ATen for ops that cannot be lowered; without it they are errors."""
    workers: int = 0
    """Compile worker processes; 0 means one per core, at most 16."""
    worker_timeout: float = 120.0
    """Seconds that a worker may take for one kernel, or for the passes of one graph if some are your own; 0 means no limit."""
    worker_memory_mb: int = 4096
    """Address space in MiB that a worker may use on top of what it needs to start; 0 means no limit."""
    rng: str = "native"
    """Who makes random numbers: `native` kernels (Philox), or `aten`, whose numbers are those of eager mode."""
    rounding: str = "stored"
    """Which 16-bit floats are rounded: those that are `stored`, and not what stays inside of a kernel, or the results of all `ops`, as
    in eager mode."""
    prepack: bool = True
    """In inference, compute what depends on weights alone (packing, folded batch norm) once and keep it; compilations of one model
    for several sizes share it."""
    tune: bool = False
    """Measure candidate strategies of kernels with products on this machine; the winners are kept in the kernel cache."""
    pin: tuple[str, ...] = ()
    """Strategies that the user chooses: `KERNEL: field=value, ...`, where KERNEL is a name or a pattern (see README)."""
    cache: bool = True
    """Keep compiled kernels on disk."""
    cache_dir: str = ""
    """Where; empty means the platform's cache folder."""
    cache_size_mb: int = 1024
    """The disk cache is trimmed to this size, oldest use first."""
    perf: bool = False
    """Write /tmp/perf-PID.map so that `perf` names the kernels."""
    guard_pages: str = "off"
    """`end`, `start` or `both`: puts every buffer between guard pages, exact at that side, and raises GuardPageError, naming
    kernel and buffer, for an access outside; `both` runs each graph twice. For debugging: every call copies its inputs."""
    passes: tuple[str, ...] = ()
    """Python files with passes or strategies of your own, loaded before compiling (see README)."""

    def __post_init__(self) -> None:
        if self.rng not in ("native", "aten"):
            raise ValueError(f"mlirc: unknown rng {self.rng!r}; valid: native, aten")
        if self.rounding not in ("stored", "ops"):
            raise ValueError(f"mlirc: unknown rounding {self.rounding!r}; valid: stored, ops")
        if self.mode not in MODES:
            raise ValueError(f"mlirc: unknown mode {self.mode!r}; valid modes: {', '.join(MODES)}")
        if self.guard_pages not in GUARD_PAGES:
            raise ValueError(f"mlirc: option guard_pages wants one of {', '.join(GUARD_PAGES)}, got {self.guard_pages!r}")
        if not 0 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"mlirc: option workers wants a number from 0 to {MAX_WORKERS}, got {self.workers}")
        for name in ("worker_timeout", "worker_memory_mb", "cache_size_mb"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"mlirc: option {name} wants a number that is not negative, got {getattr(self, name)}")
        for text in self.pin:
            if not isinstance(text, str):
                raise ValueError(f"mlirc: option pin wants texts, got {text!r}")
        for name, text in [("cache_dir", self.cache_dir), *(("passes", path) for path in self.passes)]:
            if not isinstance(text, str) or "\0" in text:
                raise ValueError(f"mlirc: option {name} wants paths, got {text!r}")

    @classmethod
    def make(cls, options: dict[str, object] | None = None, mode: str | None = None) -> "Options":
        """Merge the mode's set, MLIRC_OPTIONS and `options`, in rising precedence.

        Raises ValueError for an unknown name, listing the valid ones, and for a value of the wrong type.
        """
        if not isinstance(options or {}, Mapping):
            raise ValueError(f"mlirc: options want a dict, got {options!r}")
        given = dict(options or {})
        environment = _parse(os.environ.get("MLIRC_OPTIONS", ""))
        chosen = str(given.get("mode") or mode or environment.get("mode") or "default")
        if chosen not in MODES:
            raise ValueError(f"mlirc: unknown mode {chosen!r}; valid modes: {', '.join(MODES)}")
        merged: dict[str, object] = {**MODES[chosen], **environment, **given, "mode": chosen}
        fields = {f.name: f for f in dataclasses.fields(cls)}
        unknown = sorted(map(str, set(merged) - set(fields)))
        if unknown:
            raise ValueError(f"mlirc: unknown option {', '.join(unknown)}; valid options: {', '.join(sorted(fields))}")
        return cls(**{name: _convert(name, value, fields[name].default) for name, value in merged.items()})

    def key(self) -> str:
        """A stable text of all options that change the machine code."""
        return hashlib.sha256(repr(sorted(dataclasses.asdict(self).items())).encode()).hexdigest()


GUARD_PAGES = {"off": (), "end": ("end",), "start": ("start",), "both": ("start", "end")}
"""Values of the option `guard_pages`, with the placements in which a graph runs."""

PATHS = ("cache_dir", "passes")
"""Options that are paths."""

SEPARATORS = {"pin": ";"}
"""Between several values of an option in text, where it is not a colon."""

MAX_WORKERS = 256

MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}
"""Those of `torch.compile` for Inductor; what has to do with GPUs says nothing here."""


def _parse(text: str) -> dict[str, object]:
    """`a=1,b=x` -> {"a": "1", "b": "x"}."""
    out: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, eq, value = part.partition("=")
        if not eq:
            raise ValueError(f"mlirc: MLIRC_OPTIONS wants name=value pairs, got {part!r}")
        out[name.strip()] = value.strip()
    return out


def _as_text(value: object) -> object:
    """Path objects, also those in a list, as strings."""
    if isinstance(value, (list, tuple)):
        return [_as_text(v) for v in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _convert(name: str, value: object, default: object) -> object:
    if name in PATHS:
        # In a list of its own a path is not taken for text, which is split at colons.
        value = _as_text([value] if isinstance(value, os.PathLike) and isinstance(default, tuple) else value)
    if isinstance(value, str) and not isinstance(default, str):
        if isinstance(default, bool):
            words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
            if value.lower() not in words:
                raise ValueError(f"mlirc: option {name} wants true or false, got {value!r}")
            return words[value.lower()]
        if isinstance(default, tuple):
            return tuple(filter(None, (part.strip() for part in value.split(SEPARATORS.get(name, ":")))))
        try:
            return type(default)(value)
        except ValueError:
            raise ValueError(f"mlirc: option {name} wants a {type(default).__name__}, got {value!r}") from None
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"mlirc: option {name} wants a {type(default).__name__}, got {value!r}")
    return value
