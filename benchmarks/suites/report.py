"""Rows as one HTML page: pass rates, speedups, compile times, memory, what ATen does, the slowest kernels, failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import charts
from .catalog import PUBLISHED, SUITES
from .charts import Bar, Dot, Strip
from .rows import Row, kind
from .statistics import Group, geometric_mean, groups

TITLES = {"torchbench": "TorchBench", "huggingface": "Hugging Face", "timm": "TIMM"}
OUTCOMES = {
    "right": "right",
    "wrong": "wrong result",
    "error": "does not compile or run",
    "time": "out of time",
    "memory": "out of memory",
    "unbuilt": "eager cannot run it",
}
KERNELS, OPS = 30, 25
"""How many of the slowest kernels, and of the ops left to ATen, are shown."""


@dataclass(frozen=True)
class Chart:
    """A picture with its heading."""

    heading: str
    note: str
    svg: str


def render(rows: Sequence[Row]) -> str:
    """The page. Rows of several suites, dtypes and backends may be mixed, of calls and of training; each of these has charts of its own."""
    import jinja2
    import markupsafe

    folder = Path(__file__).parent
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["svg"] = markupsafe.Markup  # the charts escape what they show
    environment.filters["kind"] = _kind
    template = environment.from_string((folder / "report.html").read_text())
    every = groups(rows)
    return template.render(
        backends=_unique(g.backend for g in every),
        machine=", ".join(_unique(f"{r['cpu']}, torch {r['torch']}" for r in rows if "cpu" in r)),
        threads=_unique(str(r["threads"]) for r in rows),
        models=len({(r["suite"], r["model"]) for r in rows}),
        tiles=_tiles(every),
        groups=every,
        titles=TITLES,
        outcomes=OUTCOMES,
        published=PUBLISHED,
        speedups=_speedups(every),
        strips=_strips(every),
        aten=_aten(rows),
        kernels=_kernels(rows),
        failures=[r for r in rows if r["outcome"] != "right"],
        warned=[(r, r["warnings"]) for r in rows if r.get("warnings")],
        rows=rows,
        missing=_missing(),
    )


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _kind(row: Row) -> str:
    return kind(row["dtype"], row.get("train", False))


def _rival(every: Sequence[Group]) -> tuple[str, str | None]:
    """The backend that the charts are about (mlirc where it is there), and the one that it is compared with."""
    names = [b for b in _unique(g.backend for g in every) if b != "eager"] or ["eager"]
    main = "mlirc" if "mlirc" in names else names[0]
    others = [b for b in names if b != main]
    return main, others[0] if others else None


def _tiles(every: Sequence[Group]) -> list[dict[str, str]]:
    """The headline numbers of the main backend, per dtype."""
    main, _ = _rival(every)
    tiles = []
    for what in _unique(g.kind for g in every):
        mine = [g for g in every if g.backend == main and g.kind == what]
        right, counted = sum(g.right for g in mine), sum(g.counted for g in mine)
        if counted:
            tiles.append({"label": f"{what}: right", "value": f"{right / counted:.1%}", "note": f"{right} of {counted} models"})
        timed = [r for g in mine for r in g.rows if r["outcome"] == "right" and "speedup" in r]
        mean = geometric_mean(r["speedup"] for r in timed)
        if mean:
            slower = sum(r["speedup"] < 1 for r in timed)
            tiles.append({"label": f"{what}: speed", "value": charts.ratio(mean), "note": f"of eager, geometric mean; {slower} slower"})
    return tiles


def _tip(row: Row) -> str:
    parts = [f"{row['model']}, {_kind(row)}, {row['backend']}: {OUTCOMES[row['outcome']]}"]
    if "speedup" in row:
        parts.append(f"{row['ms']:.2f} ms, eager {row['eager_ms']:.2f} ms: {charts.ratio(row['speedup'])}")
    if "compile_s" in row:
        parts.append(f"compiles in {row['compile_s']:.1f} s")
    if "peak_mb" in row:
        parts.append(f"{row['peak_mb']:.0f} MiB, eager {row['eager_peak_mb']:.0f} MiB")
    if "aten_share" in row:
        parts.append(f"{row['aten_share']:.1%} of the run time in ATen")
    return "\n".join(parts)


def _speedups(every: Sequence[Group]) -> list[Chart]:
    """A chart of bars for each suite and dtype, fastest first, the rival's result as a dot."""
    main, rival = _rival(every)
    made = []
    for group in every:
        timed = [r for r in group.rows if "speedup" in r and r["outcome"] == "right"]
        if group.backend != main or not timed:
            continue
        theirs: dict[str, Row] = {}
        for other in every:
            if (other.suite, other.kind, other.threads, other.backend) == (group.suite, group.kind, group.threads, rival):
                theirs = {r["model"]: r for r in other.rows if "speedup" in r and r["outcome"] == "right"}
        bars = []
        for row in sorted(timed, key=lambda r: -r["speedup"]):
            other_row = theirs.get(row["model"])
            kind = "faster" if row["speedup"] >= 1 else "slower"
            dot, tip = (other_row["speedup"], _tip(other_row)) if other_row else (None, "")
            bars.append(Bar(row["model"], row["speedup"], kind, _tip(row), dot, tip))
        note = f"{main} {charts.ratio(group.speedup or 1)} of eager (geometric mean of {len(timed)})"
        common = [r for r in timed if r["model"] in theirs]
        if common:
            against = geometric_mean(r["speedup"] / theirs[r["model"]]["speedup"] for r in common)
            note += f", {charts.ratio(against or 1)} of {rival} (dots) where both are right"
        heading = f"{TITLES.get(group.suite, group.suite)}, {group.kind}"
        made.append(Chart(heading, note, charts.speedups(bars, f"Speed over eager: {heading}")))
    return made


def _strips(every: Sequence[Group]) -> list[Chart]:
    """Compile time and memory: one line of dots for each suite, dtype and backend."""

    def chart(heading: str, note: str, value: Any, unit: Any, emphasis: float | None = None) -> Chart | None:
        lines = []
        for g in every:
            if g.backend == "eager":
                continue
            dots = [Dot(v, _tip(r), "main" if g.backend == main else "other") for r in g.rows if (v := value(r))]
            lines.append(Strip(f"{TITLES.get(g.suite, g.suite)}, {g.kind}, {g.backend}", dots))
        return Chart(heading, note, charts.strips(lines, unit, heading, emphasis)) if any(s.dots for s in lines) else None

    def memory(row: Row) -> float | None:
        return row["peak_mb"] / row["eager_peak_mb"] if "peak_mb" in row and row.get("eager_peak_mb") else None

    main, _ = _rival(every)
    made = [
        chart("Compile time", "Seconds of the first call. The mark is the median.", lambda r: r.get("compile_s"), lambda v: f"{v:g} s" if v < 1 else f"{v:.3g} s"),
        chart("Peak memory of a call, relative to eager", "Resident set of the process, weights included.", memory, charts.ratio, 1.0),
    ]
    return [c for c in made if c]


def _aten(rows: Sequence[Row]) -> dict[str, Any]:
    """The ops that are left to ATen over all models, and the models with the largest shares."""
    ops: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for row in rows:
        for entry in row.get("aten", ()):
            ops.setdefault((entry["op"], entry["reason"]), []).append((entry["share"], row["model"]))
    table = [
        {
            "op": op,
            "reason": reason,
            "models": len({m for _, m in found}),
            "mean": sum(s for s, _ in found) / len(found),
            "most": max(found),
        }
        for (op, reason), found in ops.items()
    ]
    with_share = sorted((r for r in rows if r.get("aten_share", 0) > 0.005), key=lambda r: -r["aten_share"])[:OPS]
    bars = [Bar(f"{r['model']} {_kind(r)}", r["aten_share"], "share", _tip(r)) for r in with_share]
    return {
        "ops": sorted(table, key=lambda e: -e["models"] * e["mean"])[:OPS],
        "bars": charts.lengths(bars, 1.0, _percent, "Share of run time left to ATen") if bars else "",
    }


def _kernels(rows: Sequence[Row]) -> str:
    """The kernels that take the most milliseconds of a call; nothing without profiles."""
    found = [(k, r) for r in rows if r["outcome"] in ("right", "wrong") for k in r.get("slowest", ())]
    found.sort(key=lambda pair: -pair[0]["ms"])
    bars = [
        Bar(
            f"{r['model']} {_kind(r)} {k['kernel']}",
            k["ms"],
            "share",
            f"{r['model']}, {_kind(r)}\n{k['kernel']}: {k['ms']:.2f} ms of a call, {k['share']:.1%} of it",
        )
        for k, r in found[:KERNELS]
    ]
    return charts.lengths(bars, bars[0].value, lambda v: f"{v:.1f} ms", "The slowest kernels") if bars else ""


def _percent(share: float) -> str:
    return f"{share:.0%}" if share in (0, 0.25, 0.5, 0.75, 1) else f"{share:.1%}"


def _missing() -> dict[str, dict[str, list[str]]]:
    """suite -> reason -> models that are not built."""
    from .build import Missing

    out: dict[str, dict[str, list[str]]] = {}
    for suite, models in SUITES.items():
        for name, model in models.items():
            if isinstance(model, Missing):
                out.setdefault(suite, {}).setdefault(model.reason, []).append(name)
    return out
