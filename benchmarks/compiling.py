"""How long each kernel of real models takes to compile, one by one, LLVM included, as a compile worker does it.

A kernel's time is the least of some, after one that does not count: other programs can only add to it. What comes on top of it once in
a process (imports, the first use of each pass) and what the graph passes take is part of `benchmarks.suite --compile-time`.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm


@dataclass
class Row:
    """A kernel: its name, the lines of its text, the bytes of its object file, and the milliseconds in between."""

    model: str
    dtype: str
    name: str
    lines: int
    bytes: int
    ms: float

    def __str__(self) -> str:
        return f"{self.model:14} {self.dtype:4} {self.name:52} {self.lines:5} lines of MLIR {self.bytes:6} bytes {self.ms:7.1f} ms"


def kernels_of(model: str, dtype: Any, train: bool = False) -> list[Any]:
    """The distinct kernels of a model of `benchmarks.models`, outlined for this machine."""
    import torch._dynamo

    from mlirc.frontend.dump import Selection, capture_graphs, dump_graph
    from mlirc.frontend.user_model import UserModel
    from mlirc.options import Options
    from mlirc.passes.registry import NOTHING

    from .models import build_in
    from .training import prepare

    module, args, kwargs = build_in(model, dtype)
    options, nothing = Options.make(None, None), Selection(frozenset())
    torch._dynamo.reset()
    graphs = capture_graphs(UserModel(prepare(module) if train else module, args, kwargs), options, train=train)
    torch._dynamo.reset()
    found = [k for graph in graphs for k, _ in dump_graph(graph, options, NOTHING, nothing, lambda _: None).kernels]
    return list({k.text: k for k in found}.values())


def compiled(text: str, repeats: int) -> tuple[bytes, float]:
    """The object file of a kernel, and the milliseconds of the quickest of `repeats` compilations, after one that does not count."""
    from mlirc.driver import compile_kernel
    from mlirc.lowering.target import Target

    target = Target.parse("host")
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        code = compile_kernel(text, target, "kernel")
        times.append(time.perf_counter() - start)
    return code, 1e3 * min(times[1:])


@click.command(help=__doc__)
@click.option("--models", default="bert,mobilenetv3,swin_t", show_default=True, help="Comma-separated, NAME or NAME@SIZE.")
@click.option("--dtypes", default="f32,bf16", show_default=True, help="Comma-separated, of f32, bf16, f16, f64.")
@click.option("--train", is_flag=True, help="The kernels of a training step.")
@click.option("--repeats", default=3, type=click.IntRange(min=1), show_default=True, help="Compilations of each kernel that count.")
@click.option("--above", default=60.0, show_default=True, help="Print the kernels that take more milliseconds than this.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the rows to this file as JSON lines.")
def main(models: str, dtypes: str, train: bool, repeats: int, above: float, out: Path | None) -> None:
    import torch

    from mlirc.frontend.collector import paused
    from mlirc.lowering.codegen import own_process

    from .suite import DTYPES, chosen_dtypes, chosen_models

    cases = [(m, d) for m in chosen_models(models) for d in chosen_dtypes(dtypes)]
    own_process()
    for model, dtype in cases:
        rows = []
        with paused():  # as in a worker
            for k in tqdm(kernels_of(model, getattr(torch, DTYPES[dtype]), train), f"{model} {dtype}", leave=False, disable=None):
                code, ms = compiled(k.text, repeats)
                rows.append(Row(model, dtype, k.name, len(k.text.splitlines()), len(code), ms))
        slow = sorted((r for r in rows if r.ms > above), key=lambda r: -r.ms)
        for row in slow:
            click.echo(str(row))
        click.echo(f"{model} {dtype}: {len(rows)} kernels in {sum(r.ms for r in rows) / 1e3:.2f} s; {len(slow)} above {above:g} ms")
        if out:
            with out.open("a") as file:
                file.writelines(json.dumps(asdict(r)) + "\n" for r in rows)


if __name__ == "__main__":
    main()
