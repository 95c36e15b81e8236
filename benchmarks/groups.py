"""The fused groups of real models, one by one: how near to memory speed, and against eager and Inductor.

Groups are what the compiler made kernels of, but for those with a product or a convolution, taken from the model's own graph
with the values that the model has there; nothing is picked by hand. Each becomes a small graph of its own. Equal groups
(the layers of a transformer) count once, `calls` says how often the model has them.

`limit` is the longer of two times, both from this run: what a plain loop takes to copy as many bytes as the group's inputs and
outputs have (`bytes`), in the same rounds and, as the kernels, with what has room there in the caches; and what the vector units
need for the arithmetic, each element once, at the rates of products, divisions and ops of any kind from registers (`units`, see
`benchmarks.arithmetic`). `of limit` is that time over the bare kernel's, without Python. It is above one where inputs are not read
whole. Sums over sorted indices are timed in a program of their own, with what sorts the indices.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from .arithmetic import Rates
from .fused import Group, groups_of, kernels_of_sums

SAMPLE_SECONDS = 50e-6
"""The least time of a sample of native calls."""


def measure(group: Group, backends: list[str], seconds: float, rates: Rates | None = None) -> dict[str, Any]:
    """A row: milliseconds of each backend through torch.compile, of the bare kernels, and of both limits."""
    import torch
    import torch._dynamo

    from mlirc.frontend.backend import compile_fx
    from mlirc.lowering.target import Target
    from mlirc.options import Options

    from .in_model import kernels_ms
    from .limits import Repeat
    from .measure import alternate, median_ms
    from .suite import first_call

    rates = rates or Rates()
    row: dict[str, Any] = {"model": group.model, "group": group.name, "calls": group.calls, "bytes": group.moved_bytes}
    arguments = group.arguments
    row["shapes"] = [str(tuple(a.shape)) for a in arguments if isinstance(a, torch.Tensor)]
    calls: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        expected = group.graph(*arguments)
        for backend in backends:
            torch._dynamo.reset()
            call, got, _ = first_call(group.graph, tuple(arguments), {}, backend)
            pairs = [(a, b) for a, b in zip(expected, got) if isinstance(a, torch.Tensor)]
            row[f"{backend} error"] = max(((a.double() - b.double()).abs().max().item() for a, b in pairs if a.numel()), default=0.0)
            calls[backend] = lambda call=call: call(*arguments)
        runner = compile_fx(group.graph, arguments, options=Options.make(None, None), target=Target.parse("host"))
        row["kernels"] = len(runner.report.kernels)  # type: ignore[attr-defined]
        row["aten"] = len(runner.report.aten)  # type: ignore[attr-defined]
        repeat = Repeat()
        results = runner(list(arguments))
        found = [_of_the_model(group, i) for i in range(len(group.texts))] if group.work and group.sorts is None else []
        natives, memory = [native for native, _ in found if native is not None], [kept for _, kept in found]
        if not natives or len(natives) < len(group.texts):
            natives = [runner.program.last_call()] if hasattr(runner, "program") else []
            if group.sorts is None:
                row["bytes"] = group.graph_bytes
        copy = repeat.copy(row["bytes"])
        first = {"bytes": lambda: copy(1), **{f"kernel {i}": repeat.function(*native, 1) for i, native in enumerate(natives)}}
        times = {name: _times(call) for name, call in first.items()}
        calls["bytes"] = lambda: copy(times["bytes"])
        calls.update((f"kernel {i}", repeat.function(*native, times[f"kernel {i}"])) for i, native in enumerate(natives))
        if not natives:
            calls["kernel 0"] = first["kernel 0"] = lambda: runner(list(arguments))
        taken = {name: median_ms(samples) / times.get(name, 1) for name, samples in alternate(calls, seconds, before=first).items()}
        row["kernel ms"] = sum(ms for name, ms in taken.items() if name.startswith("kernel "))
        row.update((f"{name} ms", ms) for name, ms in taken.items() if not name.startswith("kernel "))
        if group.sorts is not None:
            sums, sorting = kernels_of_sums(group.graph)
            alone = kernels_ms(lambda: runner(list(arguments)), [runner.report])  # type: ignore[attr-defined]
            row["kernel ms"] = sum(alone[name] for name in (sums | sorting if group.sorts else sums))
        del results, memory
    row["units ms"] = 1e3 * rates.seconds(group.work) / torch.get_num_threads() if group.work else 0.0
    row["limit ms"] = max(row["bytes ms"], row["units ms"])
    row["of limit"] = row["limit ms"] / row["kernel ms"]
    return row


def _of_the_model(group: Group, call: int) -> tuple[tuple[int, int, int] | None, Any]:
    """Addresses (f, a, b) of one of the model's kernels, with the layouts that its arguments have there; None where sizes are symbols.

    `f(a, b)` runs it on random numbers, and on the model's own where they are integers; the second result keeps all that in memory. What
    are views of one tensor in the model are so here.
    """
    import numpy as np
    import torch

    from mlirc.dialects.mlir import ir
    from mlirc.dialects.own import load_for
    from mlirc.driver import compile_kernel
    from mlirc.lowering.target import Target
    from mlirc.passes.build_plan import BYTES
    from mlirc.passes.vectorize import KernelFunction
    from mlirc.runtime.loader import Library

    text = group.texts[call]
    with ir.Context(), ir.Location.unknown():
        load_for(text)
        module = ir.Module.parse(text)
        kernel = KernelFunction.of(module)
        wanted: list[tuple[Any, int, str, int]] = []  # (which memory, where in it, dtype, elements)
        places = iter(group.places[call])
        for v, steps in zip((*kernel.arguments, *kernel.stored), [*(kernel.strides.get(v) for v in kernel.arguments), *kernel.stored_strides]):
            sizes = kernel.shapes.of(v) if steps is not None else ()
            if steps is None or not all(isinstance(n, int) for n in (*steps, *sizes)):
                return None, None
            memory, offset = next(places, (("stored", len(wanted)), 0))
            wanted.append((memory, offset, str(v.type.element_type), 1 + sum((n - 1) * s for n, s in zip(sizes, steps))))
    extents: dict[Any, int] = {}
    for memory, offset, _, extent in wanted:
        extents[memory] = max(extents.get(memory, 0), offset + extent)
    made = {memory: _random(kind, extents[memory]) for memory, _, kind, _ in wanted}
    integers = [a.contiguous().view(-1) for a in group.arguments if isinstance(a, torch.Tensor) and not a.is_floating_point() and not a.is_complex()]
    for memory, offset, kind, extent in wanted[: len(group.places[call])]:
        same = [a for a in integers if kind not in _RANDOM and a.numel() == extent and a.element_size() == BYTES[kind]]
        if same:
            made[memory][offset : offset + extent] = same[0].view(made[memory].dtype)
            integers = [a for a in integers if a is not same[0]] + same[:1]  # another one first, the next time
    library = Library({"kernel": compile_kernel(text, Target.parse("host"), "kernel")})
    status = np.zeros(1, np.int64)
    slots = np.array([status.ctypes.data, *(made[m].data_ptr() + offset * made[m].element_size() for m, offset, _, _ in wanted)], np.int64)
    return (library.address("kernel"), slots.ctypes.data, 0), (library, status, slots, made)


def _random(kind: str, extent: int) -> Any:
    """So many random numbers of an MLIR type, zeros where it has no fraction."""
    import torch

    from mlirc.passes.build_plan import BYTES

    if kind in _RANDOM:
        return torch.randn(extent, dtype=getattr(torch, _RANDOM[kind]))
    return torch.zeros(extent, dtype=getattr(torch, f"int{8 * BYTES[kind]}"))


_RANDOM = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "complex<f32>": "complex64", "complex<f64>": "complex128"}


def _times(call: Callable[[], object]) -> int:
    """How often a call is to be repeated for a sample that a clock can tell."""
    import time

    call()
    start = time.perf_counter()
    call()
    return max(1, min(1000, int(SAMPLE_SECONDS / (time.perf_counter() - start)) + 1))


def _describe(row: dict[str, Any], backends: list[str]) -> str:
    text = f"{row['model']:13} {row['calls']:3}x {row['group'][:44]:44} {row['bytes'] / 1e6:8.2f} MB  kernel {row['kernel ms'] * 1e3:8.1f} us, {row['of limit']:5.2f} of limit"
    text += " (units)" if row["units ms"] > row["bytes ms"] else " (bytes)"
    for backend in backends:
        if backend != "mlirc":
            text += f", {row[f'{backend} ms'] / row['mlirc ms']:5.2f}x {backend}"
    return text


def _summary(rows: list[dict[str, Any]], backends: list[str]) -> str:
    spent = sum(r["kernel ms"] * r["calls"] for r in rows)
    share, at_most = (sum(min(r["limit ms"], most * r["kernel ms"]) * r["calls"] for r in rows) / spent for most in (math.inf, 1))
    text = f"{len(rows)} groups; of limit, weighted by time: {share:.2f}, {at_most:.2f} where none counts for more than 1"
    for backend in backends:
        if backend != "mlirc":
            ratios = [r[f"{backend} ms"] / r["mlirc ms"] for r in rows]
            text += f"; {geometric_mean(ratios):.2f}x {backend} (geometric mean), slowest {min(ratios):.2f}x"
    return text


def _table(rows: list[dict[str, Any]]) -> str:
    """Rows of several runs: per dtype and number of threads, by the share of the time of all groups of the model."""
    latest = {(r["dtype"], r["threads"], r["model"], r["group"], *r["shapes"]): r for r in rows}
    out = []
    for kind in sorted({key[:2] for key in latest}, reverse=True):
        members = [r for key, r in latest.items() if key[:2] == kind]
        backends = [k[:-3] for k in members[0] if k.endswith(" ms") and k[:-3] not in ("kernel", "bytes", "units", "limit")]
        out.append(f"{kind[0]}, {kind[1]} threads")
        out += [_describe(r, backends) for r in sorted(members, key=lambda r: -r["kernel ms"] * r["calls"])]
        out += [_summary(members, backends), ""]
    return "\n".join(out)


@click.command(help=__doc__)
@click.option(
    "--models",
    default="bert,gpt2,llama_prefill,vit_b16,convnext_t,mobilenetv3,swin_t,unet,diffusion,sage",
    show_default=True,
    help="NAME or NAME@SIZE, as bert@129: the number of tokens or of nodes, the side of the image.",
)
@click.option("--dtype", default="f32", show_default=True, type=click.Choice(["f32", "bf16"]))
@click.option("--threads", default=1, show_default=True)
@click.option("--backends", default="eager,mlirc", show_default=True, help="Comma-separated; inductor-freeze is another.")
@click.option("--seconds", default=0.5, show_default=True, help="Seconds of timing for each contestant.")
@click.option("--dynamic", is_flag=True, help="Sizes are symbols.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the rows to this file as JSON lines.")
@click.option("--report", type=click.Path(path_type=Path, exists=True), help="Print the table of rows in this file, dearest first.")
def main(models: str, dtype: str, threads: int, backends: str, seconds: float, dynamic: bool, out: Path | None, report: Path | None) -> None:
    import torch

    from mlirc.lowering.codegen import own_process

    from .suite import DTYPES

    own_process()
    torch.set_num_threads(threads)
    contestants = backends.split(",")
    if report:
        click.echo(_table([json.loads(line) for line in report.read_text().splitlines()]))
        return
    rows = []
    rates = Rates()
    for model in models.split(","):
        try:
            groups = groups_of(model, getattr(torch, DTYPES[dtype]), dynamic)
        except Exception as error:  # nor may a model's
            click.echo(f"{model:13} FAILED {type(error).__name__}: {str(error)[:300]}", err=True)
            continue
        for group in groups:
            try:
                row = measure(group, contestants, seconds, rates)
                row.update(dtype=dtype, threads=threads)
            except Exception as error:  # one group's failure must not end the table
                click.echo(f"{model:13} {group.name} FAILED {type(error).__name__}: {str(error)[:300]}", err=True)
                continue
            if not row["kernels"] and not row["aten"]:
                continue  # a copy in the model, a view where it is alone
            rows.append(row)
            click.echo(_describe(row, contestants))
            if out:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    if rows:
        click.echo(_summary(rows, contestants))
    sys.exit(0 if rows else 1)


if __name__ == "__main__":
    main()
