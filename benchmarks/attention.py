"""`scaled_dot_product_attention`: all keys, those before the query, or what a mask shows, with known lengths and with lengths that change.

For each shape, dtype and kind, in one process: whether the result is right (against fp64), and the time of a call, in turns. `mlirc-dynamic` and
`inductor-dynamic` are compiled for any length. Inductor calls ATen's flash kernel, as eager mode does. With `--train` a call is a step, forward
and backward.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

import click

from .suite import DTYPES, chosen_dtypes

KINDS = ("all", "causal", "window", "documents")


def kind_of(name: str, length: int) -> tuple[Any, bool]:
    """The mask, if there is one, and whether queries see only the keys before them."""
    import torch

    i, j = torch.arange(length)[:, None], torch.arange(length)
    masks = {"window": (j <= i) & (j > i - 256), "documents": (i * 4 // length == j * 4 // length) & (j <= i)}
    return masks.get(name), name == "causal"


def measure(
    shape: tuple[int, ...], dtype: str, name: str, backends: list[str], seconds: float, heads_of_keys: int | None = None, train: bool = False
) -> dict[str, dict[str, float]]:
    """Per backend: `error` relative to the largest result (of those of a step, to that of each), and `ms`."""
    import torch
    import torch.nn.functional as F

    from .measure import alternate, median_ms

    torch.manual_seed(0)
    of_keys = (shape[0], heads_of_keys or shape[1], *shape[2:])
    inputs = [torch.randn(s, dtype=getattr(torch, DTYPES[dtype])) for s in (shape, of_keys, of_keys)]
    gradient = torch.randn_like(inputs[0])
    mask, causal = kind_of(name, shape[2])

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=of_keys != shape)

    def step(call: Callable[..., Any], arguments: list[Any], mask: Any) -> tuple[Any, ...]:
        out = call(*arguments, mask)
        return (out.detach(), *torch.autograd.grad(out, arguments, gradient.to(out.dtype))) if train else (out,)

    exact = step(attend, [x.double().requires_grad_(train) for x in inputs], mask)
    rows: dict[str, dict[str, float]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for backend in backends:
        call: Callable[..., Any] = attend
        arguments = [x.clone().requires_grad_(train) for x in inputs]
        seen = None if mask is None else mask.clone()
        if backend != "eager":
            call = torch.compile(_apart(attend), backend=backend.removesuffix("-dynamic"), dynamic=None if backend.endswith("-dynamic") else False)
            if backend.endswith("-dynamic"):
                for x, dims in ((arguments[0], [2]), (arguments[1], [2]), (arguments[2], [2]), (seen, [0, 1])):
                    for dim in dims if x is not None else ():
                        torch._dynamo.mark_dynamic(x, dim)
        found = step(call, arguments, seen)
        rows[backend] = {"error": max(float((x.double() - y).abs().max() / y.abs().max()) for x, y in zip(found, exact))}
        calls[backend] = lambda call=call, arguments=arguments, seen=seen: step(call, arguments, seen)  # type: ignore[misc]
    for backend, times in alternate(calls, seconds).items():
        rows[backend]["ms"] = median_ms(times)
    return rows


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy with code of its own: what Dynamo compiles belongs to the code."""
    import types

    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__)  # type: ignore[attr-defined]


@click.command(help=__doc__)
@click.option("--shapes", default="1x12x512x64,1x12x1024x64,1x32x2048x64", show_default=True, help="Batch, heads, length and width; with commas between them.")
@click.option("--dtypes", default="f32,bf16", show_default=True)
@click.option("--kinds", default=",".join(KINDS), show_default=True)
@click.option("--backends", default="eager,inductor-dynamic,mlirc,mlirc-dynamic", show_default=True)
@click.option("--heads-of-keys", type=click.IntRange(min=1), help="Fewer than those of queries, which share them.")
@click.option("--train", is_flag=True, help="Steps of training.")
@click.option("--threads", default=1, show_default=True)
@click.option("--seconds", default=1.0, show_default=True, help="Seconds of timing for each backend.")
def main(
    shapes: str, dtypes: str, kinds: str, backends: str, heads_of_keys: int | None, train: bool, threads: int, seconds: float
) -> None:
    if unknown := set(kinds.split(",")) - set(KINDS):
        raise click.UsageError(f"unknown {', '.join(sorted(unknown))}; kinds: {', '.join(KINDS)}")
    try:
        sizes = [tuple(map(int, text.split("x"))) for text in shapes.split(",")]
    except ValueError:
        raise click.UsageError(f"{shapes!r}: shapes are like 1x12x512x64") from None
    if odd := [s[1] for s in sizes if s[1] % (heads_of_keys or 1)]:
        raise click.UsageError(f"{heads_of_keys} heads of keys are no part of {odd[0]}")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    ratios: dict[str, list[float]] = {}
    with torch.set_grad_enabled(train):
        for shape, dtype, name in ((s, d, k) for s in sizes for d in chosen_dtypes(dtypes) for k in kinds.split(",")):
            torch._dynamo.reset()
            rows = measure(shape, dtype, name, backends.split(","), seconds, heads_of_keys, train)
            texts = (f"{b} {r['ms']:8.2f} ms, error {r['error']:.0e}" for b, r in rows.items())
            click.echo(f"{'x'.join(map(str, shape)):14} {dtype:4} {name:10} {'; '.join(texts)}")
            for backend, row in rows.items():
                if backend != "eager" and "eager" in rows:
                    ratios.setdefault(backend, []).append(rows["eager"]["ms"] / row["ms"])
    for backend, found in ratios.items():
        click.echo(f"{backend}: {geometric_mean(found):.2f}x eager (geometric mean), slowest {min(found):.2f}x")


if __name__ == "__main__":
    main()
