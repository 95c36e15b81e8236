"""How long each kernel of real models takes to compile, one by one, LLVM included, as a compile worker does it.

A kernel's time is the least of some, after one that does not count: other programs can only add to it. What comes on top of it once in
a process (imports, the first use of each pass) and what the graph passes take is part of `benchmarks.suite --compile-time`.
"""

from __future__ import annotations

import gc
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm


@dataclass
class Row:
    """A kernel: what its name says it is for, the lines of its code before and after, and milliseconds."""

    model: str
    dtype: str
    name: str
    lines: int
    instructions: int
    ms: float

    def __str__(self) -> str:
        return f"{self.model:14} {self.dtype:4} {self.name:52} {self.lines:5} lines of MLIR {self.instructions:6} of assembly {self.ms:7.1f} ms"


def kernels_of(model: str, dtype: Any, train: bool = False) -> list[Any]:
    """The distinct kernels of a model of `benchmarks.models`, outlined for this machine."""
    import torch._dynamo

    from mlirc.frontend.dump import Selection, capture_graphs, dump_graph
    from mlirc.frontend.user_model import UserModel
    from mlirc.options import Options
    from mlirc.passes.registry import NOTHING

    from .groups import case

    module, args, kwargs = case(model, dtype)
    options, nothing = Options.make(None, None), Selection(frozenset())
    torch._dynamo.reset()
    graphs = capture_graphs(UserModel(module.train(train), args, kwargs), options, train=train)
    torch._dynamo.reset()
    found = [k for graph in graphs for k, _ in dump_graph(graph, options, NOTHING, nothing, lambda _: None).kernels]
    return list({k.text: k for k in found}.values())


def compile_ms(text: str, repeats: int) -> float:
    """The least of `repeats` compilations of a kernel, after one that does not count."""
    from mlirc.driver import compile_kernel
    from mlirc.lowering.target import Target

    target = Target.parse("host")
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        compile_kernel(text, target, "kernel")
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def instructions(text: str) -> int:
    """Lines of assembly that are neither labels nor directives."""
    from mlirc.driver import compile_kernel
    from mlirc.lowering.target import Target

    seen: dict[str, Any] = {}
    compile_kernel(text, Target.parse("host"), "kernel", seen.__setitem__)
    return sum(line.startswith("\t") and not line.startswith("\t.") for line in seen["asm"].splitlines())


@click.command(help=__doc__)
@click.option("--models", default="bert,mobilenetv3,swin_t", show_default=True, help="Comma-separated, NAME or NAME@SIZE.")
@click.option("--dtypes", default="f32,bf16", show_default=True, help="Comma-separated, of f32, bf16, f16, f64.")
@click.option("--train", is_flag=True, help="The kernels of a training step.")
@click.option("--repeats", default=3, show_default=True, help="Compilations of each kernel that count.")
@click.option("--above", default=60.0, show_default=True, help="Print the kernels that take more milliseconds than this.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the rows to this file as JSON lines.")
def main(models: str, dtypes: str, train: bool, repeats: int, above: float, out: Path | None) -> None:
    import torch

    from mlirc.lowering.codegen import own_process

    from .suite import DTYPES

    if unknown := set(dtypes.split(",")) - set(DTYPES):
        raise click.UsageError(f"unknown {', '.join(sorted(unknown))}; dtypes: {', '.join(DTYPES)}")
    own_process()
    for model in models.split(","):
        for dtype in dtypes.split(","):
            try:
                kernels = kernels_of(model, getattr(torch, DTYPES[dtype]), train)
            except (KeyError, ValueError) as e:
                raise click.UsageError(e.args[0]) from None
            gc.collect()
            gc.disable()  # as in a worker
            rows = []
            for k in tqdm(kernels, f"{model} {dtype}", leave=False, disable=None):
                rows.append(Row(model, dtype, k.name, len(k.text.splitlines()), instructions(k.text), compile_ms(k.text, repeats)))
            gc.enable()
            for row in sorted(rows, key=lambda r: -r.ms):
                if row.ms > above:
                    click.echo(str(row))
            slow = sum(r.ms > above for r in rows)
            total, code = sum(r.ms for r in rows), sum(r.instructions for r in rows)
            click.echo(f"{model} {dtype}: {len(rows)} kernels in {total / 1e3:.2f} s, {1e3 * total / max(code, 1):.0f} us an instruction; {slow} above {above:g} ms")
            if out:
                with out.open("a") as file:
                    file.writelines(json.dumps(asdict(r)) + "\n" for r in rows)


if __name__ == "__main__":
    main()
