"""`flex_attention` with several changes of its scores, beside Inductor, which has a kernel of C++ for it.

For each shape, dtype and change, in one process: whether the result is right (against fp64), seconds to compile, and the time of a call, in
turns. Eager mode keeps all scores in memory and is no contestant.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

import click

from .suite import DTYPES, chosen_dtypes

CHANGES = ("none", "alibi", "softcap", "causal", "documents")


def change(name: str, length: int) -> dict[str, Any]:
    """The arguments of `flex_attention` for a change; masks are made here, outside of what is compiled."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    def mask(keep: Callable[..., Any]) -> dict[str, Any]:
        return {"block_mask": create_block_mask(keep, None, None, length, length, device="cpu")}

    if name == "alibi":
        return {"score_mod": lambda s, b, h, i, j: s + (j - i) * 0.01}
    if name == "softcap":
        return {"score_mod": lambda s, b, h, i, j: torch.tanh(s / 20) * 20}
    if name == "causal":
        return mask(lambda b, h, i, j: i >= j)
    if name == "documents":
        of = torch.arange(length) * 4 // length
        return mask(lambda b, h, i, j: (of[i] == of[j]) & (i >= j))
    return {}


def measure(shape: tuple[int, ...], dtype: str, name: str, backends: list[str], seconds: float) -> dict[str, dict[str, float]]:
    """Per backend: `compile_s`, `error` relative to the largest result, and `ms`."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    from .measure import alternate, median_ms

    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=getattr(torch, DTYPES[dtype])) for _ in range(3))
    arguments = change(name, shape[2])
    exact = flex_attention(q.double(), k.double(), v.double(), **arguments)
    rows: dict[str, dict[str, float]] = {}
    calls = {}
    for backend in backends:
        torch._dynamo.reset()
        call = torch.compile(lambda q, k, v: flex_attention(q, k, v, **arguments), backend=backend, fullgraph=True)
        start = time.perf_counter()
        got = call(q, k, v)
        rows[backend] = {"compile_s": time.perf_counter() - start, "error": float((got.double() - exact).abs().max() / exact.abs().max())}
        calls[backend] = lambda call=call: call(q, k, v)
    for backend, times in alternate(calls, seconds).items():
        rows[backend]["ms"] = median_ms(times)
    return rows


@click.command(help=__doc__)
@click.option("--shapes", default="1x12x512x64,1x8x2048x64", show_default=True, help="Batch, heads, length and width; with commas between them.")
@click.option("--dtypes", default="f32,bf16", show_default=True)
@click.option("--changes", default=",".join(CHANGES), show_default=True)
@click.option("--backends", default="inductor,mlirc", show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Seconds of timing for each backend.")
def main(shapes: str, dtypes: str, changes: str, backends: str, threads: int, seconds: float) -> None:
    if unknown := set(changes.split(",")) - set(CHANGES):
        raise click.UsageError(f"unknown {', '.join(sorted(unknown))}; changes: {', '.join(CHANGES)}")
    try:
        sizes = [tuple(map(int, text.split("x"))) for text in shapes.split(",")]
    except ValueError:
        raise click.UsageError(f"{shapes!r}: shapes are like 1x12x512x64") from None
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
    ratios = []
    with torch.no_grad():
        for shape, dtype, name in ((s, d, c) for s in sizes for d in chosen_dtypes(dtypes) for c in changes.split(",")):
            rows = measure(shape, dtype, name, backends.split(","), seconds)
            texts = (f"{b} {r['ms']:8.2f} ms, error {r['error']:.0e}, compiled in {r['compile_s']:.1f} s" for b, r in rows.items())
            click.echo(f"{'x'.join(map(str, shape)):14} {dtype:4} {name:10} {'; '.join(texts)}")
            if {"inductor", "mlirc"} <= rows.keys():
                ratios.append(rows["inductor"]["ms"] / rows["mlirc"]["ms"])
    if ratios:
        click.echo(f"mlirc: {geometric_mean(ratios):.2f}x inductor (geometric mean), slowest {min(ratios):.2f}x")


if __name__ == "__main__":
    main()
