"""Other choices than those of the analytic model: measured on this machine, or pinned by the user.

    pin = "*_linear_gelu: rows=8, columns=3"        ContractionStrategy(rows=14, columns=2, ...)
                                            ->        ContractionStrategy(rows=8, columns=3, ...)
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...dialects import builders
from ...errors import OptionError
from .. import structure as st
from . import tiles
from .ahead import follows_rows, windows_of
from .common import LINE, PACKED_COLUMNS, known, lanes, product
from .contractions import ContractionStrategy
from .fetching import MOST_DISTANCE, MOST_STREAMS, distance, level, may_fetch, streams
from .heights import short_tiles
from .loops import LoopStrategy
from .rows import most_joined, rows_together
from .steps import MOST_STEPS, adds_integers, most_apart, steps_together
from .traffic import copies, copy_pitch, panel_step
from .walk import walk
from .widths import UNPACKED_COLUMNS, sum_registers

if TYPE_CHECKING:
    from ...lowering.target import Target
    from ..vectorize.kernel import KernelFunction
    from . import Strategy

Value = int | bool | None

CONTRACTION_FIELDS = ("rows", "columns", "row_tiles", "lines", "depth", "kept", "group", "chunk", "near", "lanes_first", "groups_first", "looped_epilogue", "turned", "unroll", "dot_pairs", "fetch_ahead", "fetch_level", "fetch_distance", "streams", "steps", "rows_copied", "rows_once", "overlapped", "reads_ahead", "rows_ahead", "results_ahead", "grain")
LOOP_FIELDS = ("lanes", "unroll", "joined", "in_turns", "stores_together", "grain")
SEGMENTS_FIELDS = ("lanes", "unroll", "ahead", "blocks_outside", "grain")
_FLAGS = ("lanes_first", "groups_first", "looped_epilogue", "turned", "dot_pairs", "fetch_ahead", "rows_copied", "rows_once", "overlapped", "reads_ahead", "results_ahead", "in_turns", "stores_together", "blocks_outside")
_OR_NONE = ("lines", "depth", "kept", "chunk", "near", "rows_ahead")
_STACK = 1024 << 10
"""Bytes of sums between blocks of the reduction: they are on the stack of a thread."""


@dataclass(frozen=True)
class Adjustment:
    """Fields of a strategy with other values than the model's; the reason is for people."""

    fields: tuple[tuple[str, Value], ...] = ()
    reason: str = ""
    pinned: bool = False
    """By the user, so that what is impossible is an error; what was measured is then left out."""
    exact: bool = False
    """By the kernel's whole name, and not by a pattern, which may fit kernels of other kinds too: those have fewer fields."""

    def key(self) -> str:
        """What the kernel cache has to know: empty for the model's own choice."""
        return ", ".join(f"{name}={value}" for name, value in self.fields)


MODEL = Adjustment()
"""The analytic model's own choice."""


@dataclass(frozen=True)
class Pin:
    """`PATTERN: field=value, ...`, for kernels whose names fit."""

    pattern: str
    fields: tuple[tuple[str, Value], ...]


def parse_pins(texts: Sequence[str]) -> tuple[Pin, ...]:
    """The option `pin`. Raises OptionError for what is none, or a field that no strategy has, listing the valid ones."""
    return tuple(_parse(text) for text in texts)


def pinned(name: str, pins: Sequence[Pin]) -> Adjustment:
    """What is pinned for a kernel: later pins win over earlier ones."""
    found = [p for p in pins if fnmatch.fnmatchcase(name, p.pattern)]
    if not found:
        return MODEL
    fields: dict[str, Value] = {}
    for p in found:
        fields.update(p.fields)
    reason = f"pinned by {', '.join(repr(p.pattern) for p in found)}"
    return Adjustment(tuple(fields.items()), reason, pinned=True, exact=any(p.pattern == name for p in found))


def adjusted(kernel: KernelFunction, target: Target, strategy: Strategy, adjustment: Adjustment) -> Strategy:
    """The strategy with the adjustment's fields, and with those that follow from them.

    Raises OptionError where a pinned value is impossible for this kernel, with those that are possible.
    """
    if not adjustment.fields:
        return replace(strategy, why={**strategy.why, "": adjustment.reason}) if adjustment.reason else strategy
    fields = dict(adjustment.fields)
    if adjustment.pinned and not adjustment.exact:
        fields = {name: value for name, value in fields.items() if name in _fields_of(strategy)}
    new = _replaced(strategy, fields, kernel, target)
    problem = new if isinstance(new, str) else impossible(kernel, target, strategy, new)
    if problem and adjustment.pinned:
        raise OptionError(f"option pin: {problem}")
    if isinstance(new, str) or problem:
        return strategy
    return replace(new, why={**strategy.why, **dict.fromkeys(fields, adjustment.reason)})


def _fields_of(strategy: Strategy) -> tuple[str, ...]:
    if isinstance(strategy, ContractionStrategy):
        return CONTRACTION_FIELDS
    return SEGMENTS_FIELDS if strategy.kind == "segments" else LOOP_FIELDS


def _replaced(strategy: Strategy, fields: Mapping[str, Value], kernel: KernelFunction, target: Target) -> Strategy | str:
    """The strategy with these fields; or what is wrong with them."""
    known_fields = _fields_of(strategy)
    for name, value in fields.items():
        if name not in known_fields:
            return f"the strategy of a kernel of kind {strategy.kind} has no field {name!r}; valid fields: {', '.join(known_fields)}"
        if name in _FLAGS and not isinstance(value, bool):
            return f"{name} wants true or false, got {_spell(value)}"
        if name not in _FLAGS and (isinstance(value, bool) or (value is None and name not in _OR_NONE) or value == 0 and name != "lines"):
            return f"{name} wants a positive number{' or none' if name in _OR_NONE else ''}, got {_spell(value)}"
    if isinstance(strategy, LoopStrategy):
        return _follow(replace(strategy, **fields), fields, kernel, target)  # type: ignore[arg-type]
    new = replace(strategy, **fields)  # type: ignore[arg-type]
    if new.lines is None:
        new = replace(new, pitch=0)
    area, before = new.rows * new.columns, strategy.rows * strategy.columns
    grain = max(1, strategy.grain * before // area) if "grain" not in fields else new.grain
    if (new.depth is not None or new.lanes_first) and "near" not in fields:
        new = replace(new, near=None)
    if new.depth is None and not new.tiles and "rows_copied" not in fields:
        new = replace(new, rows_copied=False)
    if (new.depth is not None or new.turned) and "kept" not in fields:
        new = replace(new, kept=None)
    if strategy.chunk is not None:
        new = _with_chunk(new, fields)
    if (new.depth is None and strategy.depth is not None or new.tiles and new.chunk is None) and "group" not in fields:
        new = replace(new, group=1)
    if "steps" not in fields and not _without_steps(new):
        new = replace(new, steps=steps_together(new.fetch_ahead, area, target.vector_registers, adds_integers(kernel))[0])
    new = replace(new, apart=most_apart(new.steps, target.vector_registers))
    in_vectors = new.fetch_ahead and not new.tiles
    if "fetch_level" not in fields and new.fetch_ahead != strategy.fetch_ahead:
        new = replace(new, fetch_level=level(target, _size(kernel, new))[0] if in_vectors else 2)
    if "fetch_distance" not in fields:
        new = replace(new, fetch_distance=distance(target, new.fetch_level) if in_vectors else 0)
    if not in_vectors or "fetch_level" in fields:
        new = replace(new, few_rows=0, few_distance=0)
    if "streams" not in fields:
        new = replace(new, streams=_streams(kernel, target, new))
    if "results_ahead" not in fields:
        new = replace(new, results_ahead=new.results_ahead and _looks_ahead(new))
    if "rows_ahead" not in fields:
        new = replace(new, rows_ahead=new.rows_ahead if _fetches_rows(kernel, new) else None)
    if "reads_ahead" not in fields:
        new = replace(new, reads_ahead=new.reads_ahead and _looks_ahead(new))
    if "overlapped" not in fields:
        new = replace(new, overlapped=new.overlapped and new.rows == 32 and not new.turned)
    return replace(new, short_rows=short_tiles(new.rows, new.columns), grain=grain)


def _follow(s: LoopStrategy, fields: Mapping[str, Value], kernel: KernelFunction, target: Target) -> LoopStrategy:
    """What goes with other lanes, or other rows side by side, than the model's."""
    joined = s.joined if "joined" in fields else min(s.joined, most_joined(kernel, s.lanes))
    if "joined" in fields or joined != s.joined:
        rows = joined if joined > 1 else rows_together(walk(kernel, target), target)
        s = replace(s, joined=joined, rows=rows, combined=-(-rows // 2))
    return s if "stores_together" in fields else replace(s, stores_together=s.stores_together and s.joined == 1)


def _without_steps(s: ContractionStrategy) -> bool:
    return s.tiles or s.dot is not None


def _streams(kernel: KernelFunction, target: Target, s: ContractionStrategy) -> int:
    if not s.fetch_ahead:
        return 1
    return tiles.streams(_fetched_lines(s)) if s.tiles else streams(target, _size(kernel, s), s.rows)[0]


def _size(kernel: KernelFunction, s: ContractionStrategy) -> object:
    """The number of rows: an int or a symbol."""
    return 1 if s.row is None else kernel.domain.sizes[s.row]


def _most_streams(kernel: KernelFunction, s: ContractionStrategy) -> tuple[int, str]:
    """In which a product may fetch, and of what."""
    size = _size(kernel, s)
    if not s.fetch_ahead:
        return 1, "nothing is fetched so"
    if s.tiles:
        return _fetched_lines(s), "lines of a step"
    alone = size <= s.rows if isinstance(size, int) else s.few_rows > 0
    return (MOST_STREAMS, "parts of the next panel") if alone else (1, "of a single register tile alone")


def _fetched_lines(s: ContractionStrategy) -> int:
    return tiles.fetched_lines(s.columns * s.lanes, s.row_tiles)


def _with_chunk(s: ContractionStrategy, fields: Mapping[str, Value]) -> ContractionStrategy:
    """The chunk that goes with other fields than those that it was chosen for, unless it is one of them."""
    if "chunk" not in fields:
        possible = s.rows == 32 and s.rows_copied and not s.turned and s.depth is not None
        s = replace(s, chunk=max(s.chunk // s.depth, 1) * s.depth if possible else None)  # type: ignore[operator]
    if s.chunk is None and "rows_copied" not in fields:
        s = replace(s, rows_copied=False)  # all of the reduction would be too much
    return s


def impossible(kernel: KernelFunction, target: Target, model: Strategy, s: Strategy) -> str:
    """Why a kernel cannot have a strategy, with the values that it can have; empty if it can. `model` is the analytic choice."""
    if isinstance(s, LoopStrategy):
        return _impossible_loops(kernel, target, model, s)  # type: ignore[arg-type]
    assert isinstance(model, ContractionStrategy)
    ranges = _ranges(kernel, target, model, s)
    for name, (low, high, why) in ranges.items():
        value = getattr(s, name)
        if not low <= value <= high:
            valid = "none" if high == 0 else str(low) if low == high else f"{low} to {high}"
            return f"{name}={value} is impossible for this kernel; valid: {valid} ({why})"
    if s.tiles and 16 < s.rows < 32:
        return f"rows={s.rows} is impossible for this kernel; valid: 16, or 32 (tile registers have 16 rows)"
    if s.depth is not None and (problem := _impossible_depth(kernel, model, s)):
        return f"depth={s.depth} is impossible for this kernel: {problem}"
    if s.kept is not None and (problem := _impossible_kept(kernel, s)):
        return f"kept={s.kept} is impossible for this kernel; valid: {problem}"
    if s.looped_epilogue and (s.dot is not None or s.tiles and not s.turned):
        return "looped_epilogue=true is impossible for this kernel; valid: false (its sums are in memory already)"
    if s.lines not in (None, model.lines):
        valid = "none" if model.lines is None else f"{model.lines} or none"
        return f"lines={s.lines} is impossible for this kernel; valid: {valid} (the class of the lines of an image, on AMX)"
    if s.rows_once and not s.tiles:
        return "rows_once=true is impossible for this kernel; valid: false (only products on tiles do so)"
    if s.fetch_ahead and not (s.tiles or _may_fetch(kernel, target, model)):
        return "fetch_ahead=true is impossible for this kernel; valid: false (only products on tiles do so, and others with many packed panels)"
    if s.overlapped and (problem := _apart(kernel, s)):
        return f"overlapped=true is impossible for this kernel; valid: false ({problem})"
    if s.rows_ahead is not None and not (s.rows_ahead <= 2 and _fetches_rows(kernel, s)):
        valid = "1, 2 or none (levels of caches)" if _fetches_rows(kernel, s) else "none (it wants sums in vector registers, and rows that are read from end to end, or windows whose places have 32 bytes of channels side by side)"
        return f"rows_ahead={s.rows_ahead} is impossible for this kernel; valid: {valid}"
    for name in ("reads_ahead", "results_ahead"):
        if getattr(s, name) and (not _looks_ahead(s) or len(kernel.domain.siblings) > 1):
            return (
                f"{name}=true is impossible for this kernel; valid: false (it wants tiles, no lines, and neither turned nor lanes_first, "
                "or sums in vector registers, no siblings, and neither turned nor depth)"
            )
    if s.near is not None and (s.tiles or s.dot is not None or s.row is None or s.lane is None or s.depth is not None or s.lanes_first):
        return "near is impossible for this kernel; valid: none (it wants rows and columns, and no tiles, depth or lanes_first)"
    if s.chunk is not None and (problem := _impossible_chunk(s)):
        return problem
    if s.rows_copied and (problem := _impossible_copy(kernel, s)):
        return problem
    if s.turned and not model.turned:
        return "turned=true is impossible for this kernel; valid: false (it wants results that are contiguous along the rows, and not along the columns)"
    if s.dot_pairs and not model.dot_pairs:
        return "dot_pairs=true is impossible for this kernel; valid: false (it wants bf16, vdpbf16ps and a product of few rows)"
    return ""


def _ranges(kernel: KernelFunction, target: Target, model: ContractionStrategy, s: ContractionStrategy) -> dict[str, tuple[int, int, str]]:
    """Field -> (least, most, why) of the numbers."""
    d = kernel.domain
    registers = target.vector_registers
    size = 1 if s.row is None else d.sizes[s.row] if s.lines is None else tiles.joined_rows(d.sizes[s.lines], d.sizes[s.row], s.pitch)  # type: ignore[arg-type]
    there = (size, f"there are {size} rows") if isinstance(size, int) else (registers, "registers")
    width = d.sizes[s.lane] if s.lane is not None else 1
    if s.groups is not None:
        width *= d.sizes[s.groups]  # type: ignore[operator, assignment]
    vectors = (-(-width // s.lanes), f"{width} columns, {s.lanes} to a vector") if isinstance(width, int) else (registers, "registers")
    out: dict[str, tuple[int, int, str]] = {}
    if s.tiles:
        out["columns"] = (1, min(2, vectors[0]), "two tile registers side by side")
        out["rows"] = (size, *there) if isinstance(size, int) and size <= 16 else (16, 32, "two tile registers, one below the other")
        out["unroll"] = (1, 1, "tiles are not unrolled")
    elif s.dot is not None:
        out["columns"] = (1, 1, "the lanes run along the reduction")
        out["rows"] = (1, *min(there, (8, "rows that share a stream")))
        most = max((registers - 4) // s.rows, 1) if model.unroll > 1 else 1
        out["unroll"] = (1, min(most, 8), "registers for sums" if model.unroll > 1 else "several reductions")
    else:
        free = registers - 1
        if s.shared is not None:
            free -= min(known(d.sizes[s.shared]), sum_registers(target) // 2)
        whole = model.columns if s.columns == model.columns else PACKED_COLUMNS
        together = (whole, "siblings read whole blocks of columns") if len(d.siblings) > 1 else (UNPACKED_COLUMNS, "vectors side by side")
        out["columns"] = (1, *min(vectors, together))
        most = max(free // s.columns - 1, 1)
        out["rows"] = (1, *min(there, (most, f"{registers} registers, and a row takes {s.columns}")))
        out["unroll"] = (1, 1, "sums are not split")
    out["row_tiles"] = (1, 64, "register tiles")
    out["steps"] = (1, 1, "of register tiles of vectors") if _without_steps(s) else (1, MOST_STEPS, "steps in an iteration")
    out["fetch_level"] = (1, 2, "levels of caches") if s.fetch_ahead and not s.tiles else (2, 2, "nothing is fetched so")
    out["fetch_distance"] = (LINE, MOST_DISTANCE, "bytes") if s.fetch_ahead and not s.tiles else (0, 0, "nothing is fetched so")
    out["streams"] = (1, *_most_streams(kernel, s))
    grouped = s.chunk is not None if s.tiles else s.depth is not None
    out["group"] = (1, tiles.MOST_PANELS, "lane blocks") if grouped else (1, 1, f"without {'chunk' if s.tiles else 'depth'}")
    return out


def _impossible_depth(kernel: KernelFunction, model: ContractionStrategy, s: ContractionStrategy) -> str:
    from ..vectorize.roles import roles

    r = roles(kernel)
    width = s.columns * s.lanes
    if s.tiles:
        length = known(kernel.domain.sizes[s.words])  # type: ignore[index]
        row = tiles.row_length(kernel, r)
        if s.depth % row or not row <= s.depth < length:  # type: ignore[operator]
            return f"valid: multiples of {row} below {length}, or none"
        return ""
    if s.dot is not None or s.shared is not None or len(kernel.domain.siblings) > 1 or panel_step(kernel, r, width) is None:
        return "its reduction cannot be cut in blocks; valid: none"
    length = known(kernel.domain.sizes[r.reductions[0]])
    step = 2 if s.words is None else st.word(kernel.domain.anchor)  # type: ignore[arg-type]
    if s.depth % step or not step <= s.depth < length:  # type: ignore[operator]
        return f"valid: {'even numbers' if step == 2 else f'multiples of {step}'} from {step} to {length - step}, or none"
    element = builders.element_type(kernel.domain.anchor.results[0]).width // 8  # type: ignore[union-attr]
    if (sums := s.rows * s.row_tiles * s.group * width * element) > _STACK:
        return f"rows, columns, row_tiles and group make {sums >> 10} KB of sums between blocks; valid: up to {_STACK >> 10} KB"
    return ""


def _impossible_kept(kernel: KernelFunction, s: ContractionStrategy) -> str:
    """The values that it can have."""
    from ..vectorize.roles import roles

    r = roles(kernel)
    if not s.tiles or s.depth is not None or s.turned or len(r.reductions) > 1 or kernel.seen is not None:
        return "none (it wants tiles, one reduction that is not cut, and results that are not transposed)"
    row, length = tiles.row_length(kernel, r), known(kernel.domain.sizes[r.reductions[0]])
    whole = length // row * row
    return "" if s.kept % row == 0 and row <= s.kept < whole else f"multiples of {row} below {whole}, or none"  # type: ignore[operator]


def _may_fetch(kernel: KernelFunction, target: Target, model: ContractionStrategy) -> bool:
    from ..vectorize.roles import roles

    return model.dot is None and model.shared is None and may_fetch(kernel, roles(kernel), target, model.lanes)


def _looks_ahead(s: ContractionStrategy) -> bool:
    """Whether there is a place to fetch from what the epilogue reads, or stores."""
    return not s.turned and s.lines is None and not s.lanes_first if s.tiles else s.in_rows


def _fetches_rows(kernel: KernelFunction, s: ContractionStrategy) -> bool:
    """Whether the next register tile's rows can be fetched."""
    from ..vectorize.roles import roles

    r = roles(kernel)
    return s.in_rows and follows_rows(kernel, r) or s.in_registers and windows_of(kernel, r, s.words) is not None


def _apart(kernel: KernelFunction, s: ContractionStrategy) -> str:
    from ..vectorize.roles import roles

    return tiles.overlaps(kernel, roles(kernel), s.rows, s.words, s.turned) if s.tiles else "only products on tiles do so"  # type: ignore[arg-type]


def _impossible_chunk(s: ContractionStrategy) -> str:
    if not (s.tiles and s.rows == 32 and s.rows_copied and not s.turned):
        return "chunk is impossible for this kernel; valid: none (it wants tiles, two rows of them, and rows that are copied)"
    if s.depth is None or s.chunk % s.depth:  # type: ignore[operator]
        return f"chunk={s.chunk} is impossible for this kernel; valid: multiples of depth, or none"
    if (size := s.group * tiles.sum_bytes(s.rows * s.row_tiles)) > 2 * tiles.SUM_BYTES:
        return f"rows, row_tiles and group make {size >> 10} KB of sums between chunks; valid: up to {tiles.SUM_BYTES >> 9} KB"
    return ""


def _impossible_copy(kernel: KernelFunction, s: ContractionStrategy) -> str:
    from ..vectorize.roles import roles

    r = roles(kernel)
    reductions = r.reductions
    if s.depth is not None and not s.tiles:
        if not copies(kernel, r):
            return "rows_copied=true is impossible for this kernel; valid: false (not for words, or an operand that is not packed)"
        element = builders.element_type(kernel.domain.anchor.operands[r.along_rows]).width // 8  # type: ignore[union-attr]
        size = s.rows * s.row_tiles * copy_pitch(s.depth, element) * element
        return f"rows, row_tiles and depth make a copy of {size >> 10} KB; valid: up to {_STACK >> 10} KB" if size > _STACK else ""
    if not s.tiles or s.lanes_first or len(reductions) > 1:
        return "rows_copied=true is impossible for this kernel; valid: false (only products on tiles with the lanes innermost read copies, and others with depth)"
    length = product(reductions, kernel.domain.sizes) if s.chunk is None else s.chunk
    size = tiles.copy_bytes(s.rows * s.row_tiles, tiles.element_bytes(kernel) * length)
    if size > tiles.COPY_BYTES:
        return f"rows and row_tiles make a copy of {size >> 10} KB; valid: up to {tiles.COPY_BYTES >> 10} KB"
    return ""


def _impossible_loops(kernel: KernelFunction, target: Target, model: LoopStrategy, s: LoopStrategy) -> str:
    most = max(lanes(kernel, target), model.lanes)
    if s.lanes > most or s.lanes & (s.lanes - 1) or s.lanes < 4:
        valid = ", ".join(str(n) for n in (4, 8, 16, 32, 64, 128, 256) if n <= most)
        return f"lanes={s.lanes} is impossible for this kernel; valid: {valid}"
    if s.lanes != model.lanes and any(c is not None for c in (model.transposed, model.staged, model.interleaved)):
        return f"lanes={s.lanes} is impossible for this kernel, which transposes or interleaves in registers; valid: {model.lanes}"
    rows = most_joined(kernel, s.lanes) if model.rows > 1 and s.staged is None and s.split is None else 1
    if s.joined > rows:
        valid = f"1 to {rows}" if rows > 1 else "1 (it wants rows of known length, reduced along the lanes, or that share what is read along these)"
        return f"joined={s.joined} is impossible for this kernel; valid: {valid}"
    if s.stores_together and (s.rows == 1 or s.joined > 1 or len(s.inner) != 1):
        return "stores_together=true is impossible for this kernel; valid: false (it wants rows that are computed together, reduced along one class)"
    if s.in_turns and not model.in_turns and s.unroll == 1:
        return "in_turns=true is impossible for this kernel; valid: false (it wants an unroll of 2 or more)"
    single = s.transposed is not None or s.lane is None or s.kind in ("scan", "concat") or bool(s.lane not in s.inner and kernel.domain.reductions)
    if s.unroll != model.unroll and s.unroll > (1 if single else 8):
        return f"unroll={s.unroll} is impossible for this kernel; valid: {'1' if single else '1 to 8'}"
    return ""


def _parse(text: str) -> Pin:
    pattern, colon, rest = text.rpartition(":")
    pattern = pattern.strip()
    parts = re.sub(r"\s*=\s*", "=", rest).replace(",", " ").split()
    if not colon or not pattern or not parts:
        raise OptionError(f"option pin wants 'KERNEL: field=value, ...', where KERNEL is a name or a pattern such as *_linear*, got {text!r}")
    fields: dict[str, Value] = {}
    for part in parts:
        name, eq, value = part.partition("=")
        valid = dict.fromkeys((*CONTRACTION_FIELDS, *LOOP_FIELDS, *SEGMENTS_FIELDS))
        if name not in valid:
            raise OptionError(f"option pin: unknown field {name!r}; valid fields: {', '.join(valid)}")
        words: dict[str, Value] = {"true": True, "false": False, "none": None}
        if value.lower() not in words and not re.fullmatch(r"\d{1,9}", value):
            raise OptionError(f"option pin: {name} wants a number, true, false or none, got {value if eq else 'nothing'!r}")
        fields[name] = words[value.lower()] if value.lower() in words else int(value)
    return Pin(pattern, tuple(fields.items()))


def _spell(value: Value) -> str:
    return str(value).lower()
