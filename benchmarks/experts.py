"""Mixtures of experts: two products whose rows are in groups, by expert, with a gate in between, as transformers computes them.

For each mixture, dtype and number of tokens, in one process: whether the result is right (against fp64), and the time of a call, in turns. Tokens
choose their experts at random. Weights are larger than the caches: few tokens take as long as the weights of the experts that they choose take to
come, whose rate is given, many take as long as the products. With `--train` a call is a step, forward and backward, of which the output is judged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

import click

from .suite import DTYPES, chosen_dtypes

MIXTURES: dict[str, tuple[int, int, int, int]] = {
    "mixtral": (8, 2, 1024, 3584),
    "olmoe": (64, 8, 2048, 1024),
    "qwen3": (128, 8, 1024, 384),
}
"""(experts, of which a token chooses, elements of a token, elements between the products). Mixtral's and Qwen3's are cut to a quarter or less."""


def _product(dtype: str) -> Callable[[Any, Any, Any], Any]:
    """What transformers calls for a dtype: x [rows, k], w [experts, k, n], ends [experts] -> [rows, n]."""
    import torch

    if dtype == "bf16":
        return lambda x, w, ends: torch.nn.functional.grouped_mm(x, w, offs=ends)
    try:
        from transformers.integrations import moe  # noqa: F401  (defines the op)
    except ImportError as e:
        raise click.UsageError(f"{dtype} goes through an op of transformers, which cannot be imported ({e}); bf16 does not") from None
    return torch.ops.transformers.grouped_mm_fallback  # type: ignore[no-any-return]


def mixture(experts: int, chosen: int, width: int, inner: int, tokens: int, dtype: str) -> tuple[Any, tuple[Any, ...]]:
    """A module, and its arguments: tokens [tokens, width] and the experts [tokens, chosen] that they choose."""
    import torch

    product, kind = _product(dtype), getattr(torch, DTYPES[dtype])

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Parameter(torch.randn(experts, 2 * inner, width, dtype=kind) / width**0.5)
            self.down = torch.nn.Parameter(torch.randn(experts, width, inner, dtype=kind) / inner**0.5)

        def forward(self, x: Any, choice: Any) -> Any:
            order = torch.argsort(choice.reshape(-1))
            ends = (choice.reshape(-1, 1) == torch.arange(experts)).sum(0).cumsum(0).to(torch.int32)
            gate, up = self.multiply(x[order // chosen], self.up, ends).chunk(2, -1)
            y = self.multiply(torch.nn.functional.silu(gate) * up, self.down, ends)
            return torch.zeros_like(x).index_add(0, order // chosen, y)

        def multiply(self, x: Any, w: Any, ends: Any) -> Any:
            if x.dtype == torch.float64:  # the reference
                parts = x.tensor_split(ends[:-1].tolist())
                return torch.cat([part @ matrix.mT for part, matrix in zip(parts, w)])
            return product(x, w.mT, ends)

    torch.manual_seed(0)
    choice = torch.stack([torch.randperm(experts)[:chosen] for _ in range(tokens)])
    return Experts(), (torch.randn(tokens, width, dtype=kind), choice)


def measure(sizes: tuple[int, int, int, int], tokens: int, dtype: str, backends: list[str], seconds: float, train: bool = False) -> dict[str, dict[str, float]]:
    """Per backend: `error` relative to the largest result, and `ms`."""
    import copy

    import torch

    from .measure import alternate, median_ms
    from .suite import compiled

    module, (x, choice) = mixture(*sizes, tokens, dtype)
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(x.double(), choice)
    x.requires_grad_(train)
    rows: dict[str, dict[str, float]] = {}
    calls: dict[str, Callable[[], Any]] = {}

    def step(call: Callable[..., Any]) -> Any:
        if train:
            module.zero_grad()
            x.grad = None
        with torch.set_grad_enabled(train):
            out = call(x, choice)
        if train:
            out.square().mean().backward()
        return out.detach()

    for backend in backends:
        call = compiled(module, backend)
        rows[backend] = {"error": float((step(call).double() - exact).abs().max() / exact.abs().max())}
        calls[backend] = lambda call=call: step(call)  # type: ignore[misc]
    for backend, times in alternate(calls, seconds).items():
        rows[backend]["ms"] = median_ms(times)
    return rows


def weight_bytes(sizes: tuple[int, int, int, int], tokens: int, dtype: str) -> int:
    """Of the experts that some token chooses."""
    _, (x, choice) = mixture(*sizes[:2], 1, 1, tokens, dtype)
    return int(choice.unique().numel()) * 3 * sizes[2] * sizes[3] * x.element_size()


@click.command(help=__doc__)
@click.option("--mixtures", default=",".join(MIXTURES), show_default=True)
@click.option("--dtypes", default="f32,bf16", show_default=True, help="f32 is an op of transformers.")
@click.option("--tokens", default="1,4,16,128,512", show_default=True)
@click.option("--backends", default="eager,inductor-freeze,mlirc", show_default=True)
@click.option("--train", is_flag=True, help="Steps of training. Not for frozen weights.")
@click.option("--threads", default=1, show_default=True)
@click.option("--seconds", default=1.0, show_default=True, help="Seconds of timing for each backend.")
def main(mixtures: str, dtypes: str, tokens: str, backends: str, train: bool, threads: int, seconds: float) -> None:
    if unknown := set(mixtures.split(",")) - set(MIXTURES):
        raise click.UsageError(f"unknown {', '.join(sorted(unknown))}; mixtures: {', '.join(MIXTURES)}")
    if not all(n.isdigit() and int(n) for n in tokens.split(",")):
        raise click.UsageError(f"{tokens!r}: numbers of tokens are like 1,128")
    if train and "inductor-freeze" in backends:
        raise click.UsageError("inductor-freeze has no gradients; inductor has")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    ratios: dict[str, list[float]] = {}
    for name, dtype, count in ((m, d, int(n)) for m in mixtures.split(",") for d in chosen_dtypes(dtypes) for n in tokens.split(",")):
        torch._dynamo.reset()
        sizes = MIXTURES[name]
        rows, nbytes = measure(sizes, count, dtype, backends.split(","), seconds, train), weight_bytes(sizes, count, dtype)
        experts, chosen, width, inner = sizes
        for row in rows.values():
            row["GB/s"], row["GF/s"] = nbytes / row["ms"] / 1e6, 6e-6 * count * chosen * width * inner * (3 if train else 1) / row["ms"]
        texts = (f"{b} {r['ms']:8.2f} ms, {r['GF/s']:4.0f} GF/s, {r['GB/s']:4.1f} GB/s, error {r['error']:.0e}" for b, r in rows.items())
        click.echo(f"{name:8} {dtype:4} {count:4} tokens  {'; '.join(texts)}")
        for backend, row in rows.items():
            if backend != "mlirc" and "mlirc" in rows:
                ratios.setdefault(backend, []).append(row["ms"] / rows["mlirc"]["ms"])
    for backend, found in ratios.items():
        click.echo(f"mlirc: {geometric_mean(found):.2f}x {backend} (geometric mean), slowest {min(found):.2f}x")


if __name__ == "__main__":
    main()
