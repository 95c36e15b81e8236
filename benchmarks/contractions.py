"""Linear layers of real models, shape by shape: against the libraries that PyTorch calls, and against what the core can do.

A contestant runs a chain of layers in one graph. `hot`: all of them have the same weight, which stays in cache as far as it
fits; `cold`: weights of their own, more of them than the last-level cache holds. Weights are prepacked on both sides; packing
of activations and conversion of results is inside the timing.

The library is the faster of oneDNN (`mkldnn._linear_pointwise` on a reordered weight) and, for f32, MKL (`mkl._mkl_linear`). For i8, rows
are unsigned bytes with a zero point, weights signed ones with a scale for each column, results f32, and the library is oneDNN's
`onednn.qlinear_pointwise`.
With `--epilogue` the layers have a bias and that function of the result, or add a tensor to it; the bare product is timed beside them, and
`over bare` is what the epilogue costs. With `--dynamic` the number of rows is a symbol, and `over static` is what that costs.
The limit is that of the units or of the stream of weights, activations and results, whichever takes longer, both measured
between the contestants (`benchmarks.limits`). Hot weights are read as fast as a buffer of their size, which stays in the caches that
have room for it; activations and results as fast as one that the second-level cache has.

`MLIRC_OPTIONS=target=znver3` makes code for AVX2, here and for the limit; to the libraries `ONEDNN_MAX_CPU_ISA=AVX2` and
`MKL_ENABLE_INSTRUCTIONS=AVX2` say the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .limits import Probe

SHAPES: dict[str, list[tuple[int, int]]] = {
    "bert_base": [(768, 768), (768, 3072), (3072, 768)],
    "bert_large": [(1024, 1024), (1024, 4096), (4096, 1024)],
    "gpt2": [(768, 2304)],
    "llama_1b": [(2048, 2048), (2048, 512), (2048, 8192), (8192, 2048)],
    "llama_8b": [(4096, 4096), (4096, 1024), (4096, 14336), (14336, 4096)],
    "mixer": [(196, 384), (384, 196)],
    "dlrm": [(13, 512), (512, 256), (256, 64), (479, 1024), (1024, 1)],
    "odd": [(1023, 513), (33, 17), (769, 3071), (100, 1000)],
}
"""(features in, features out) of the layers. ViT-B/16 has BERT-base's, an MLP 1024 BERT-large's."""
ROWS = (1, 4, 16, 64, 128, 197, 512, 2048)
COLD_BYTES = 96 << 20
LEAST_LAYERS, HOT_LAYERS, MOST_LAYERS = 4, 8, 256
MOST_FLOPS = 4e9
"""Of one call of a chain, where it still has `LEAST_LAYERS` layers."""


ROW_SCALE, ROW_ZERO = 0.02, 131
"""Of i8."""


EPILOGUES: dict[str, tuple[str, str]] = {
    "bias": ("none", ""),
    "relu": ("relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "sigmoid": ("sigmoid", ""),
    "tanh": ("tanh", ""),
    "hardswish": ("hardswish", ""),
    "add": ("add", ""),
}
"""Each with oneDNN's name for it, and its variant."""


def _applied(epilogue: str, y: Any, other: Any) -> Any:
    """`epilogue` of [rows, n]; `other`: what is added, of the same shape."""
    from torch.nn import functional as F

    if epilogue == "add":
        return y + other
    if epilogue == "gelu_tanh":
        return F.gelu(y, approximate="tanh")
    return y if epilogue == "bias" else getattr(F, epilogue)(y)


def chain(k: int, n: int, rows: int, dtype: Any, cold: bool, epilogue: str | None = None) -> tuple[Any, list[Any]]:
    """A module that applies its layers to one input each, and the inputs: [rows, k] of each layer, then what an epilogue adds, [rows, n]."""
    import torch

    weight_bytes = k * n * dtype.itemsize
    layers = -(-COLD_BYTES // weight_bytes) if cold else HOT_LAYERS
    layers = max(LEAST_LAYERS, min(layers, MOST_LAYERS, int(MOST_FLOPS / (2 * rows * k * n))))

    def weight() -> Any:
        return torch.randint(-128, 128, (n, k), dtype=dtype) if dtype == torch.int8 else torch.randn(n, k).div(k**0.5).to(dtype)

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(
                torch.nn.Parameter(weight(), requires_grad=False) for _ in range(layers if cold else 1)
            )
            self.scales = torch.nn.Parameter(torch.rand(n) / k)
            self.bias = torch.nn.Parameter(torch.randn(n).to(dtype), requires_grad=False) if epilogue else None

        def forward(self, *inputs: Any) -> list[Any]:
            products = [self.layer(x, self.weights[i if cold else 0]) for i, x in enumerate(inputs[:layers])]
            return [_applied(epilogue, y, inputs[-1]) for y in products] if epilogue else products

        def layer(self, x: Any, weight: Any, kind: Any = torch.float32) -> Any:
            if weight.dtype == torch.int8:
                x, weight = (x.to(kind) - ROW_ZERO) * ROW_SCALE, weight.to(kind) * self.scales[:, None]
            return torch.nn.functional.linear(x, weight, self.bias)

    if dtype == torch.int8:
        return Chain(), [torch.randint(0, 256, (rows, k), dtype=torch.uint8) for _ in range(layers)]
    inputs = [torch.randn(rows, k).to(dtype) for _ in range(layers)]
    return Chain(), [*inputs, torch.randn(rows, n).to(dtype)] if epilogue == "add" else inputs


def ours(module: Any, inputs: list[Any], dynamic: bool = False, options: dict[str, Any] | None = None) -> Callable[[], Any]:
    """The compiled graph without Dynamo's guards in front of it."""
    import torch
    import torch._dynamo

    from mlirc.frontend.backend import capture, compile_fx
    from mlirc.lowering.target import Target
    from mlirc.options import Options

    found: list[tuple[Any, list[Any]]] = []
    chosen = Options.make(options)
    target = Target.parse(chosen.target)
    target.check_runnable()

    def compiler(gm: Any, examples: Any, direction: str) -> Any:
        runner = compile_fx(gm, examples, options=chosen, target=target, direction=direction)

        def run(arguments: list[Any]) -> Any:
            found.append((runner, list(arguments)))
            return runner(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    if dynamic:
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 0)
    torch.compile(module, backend=lambda gm, examples: capture(gm, examples, compiler, chosen), dynamic=dynamic or False)(*inputs)
    ((runner, arguments),) = found
    return lambda: runner(list(arguments))


def libraries(module: Any, inputs: list[Any], epilogue: str | None = None) -> dict[str, Callable[[], Any]]:
    """One call per library that has the dtype on this CPU; what eager mode calls where none has.

    oneDNN fuses the epilogue; after MKL, which adds the bias, and after ATen it is a call of its own.
    """
    import torch

    weights = [w.detach() for w in module.weights]
    bias = module.bias.detach() if epilogue else None
    rows = inputs[0].shape[0]
    other = inputs[-1]
    if epilogue == "add":
        inputs = inputs[:-1]
    out: dict[str, Callable[[], Any]] = {}
    if weights[0].dtype == torch.int8:
        quantised, scales = torch.ops.onednn.qlinear_pointwise, module.scales.detach()
        zeros, blocked = torch.zeros(len(scales), dtype=torch.int64), [torch.ops.onednn.qlinear_prepack(w, None) for w in weights]
        rest = (scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        pairs = [(x, blocked[i % len(blocked)]) for i, x in enumerate(inputs)]
        return {"onednn": lambda: [quantised(x, ROW_SCALE, ROW_ZERO, w, *rest) for x, w in pairs]}
    if inputs[0].dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        linear = torch.ops.mkldnn._linear_pointwise
        packed = [torch.ops.mkldnn._reorder_linear_weight(w, rows) for w in weights]
        each = [(x, packed[i % len(packed)]) for i, x in enumerate(inputs)]
        name, variant = EPILOGUES[epilogue or "bias"]
        if epilogue == "add":
            out["onednn"] = lambda: [linear.binary(x, other, w, bias, name) for x, w in each]
        else:
            out["onednn"] = lambda: [linear(x, w, bias, name, [], variant) for x, w in each]
    else:
        linear = torch.nn.functional.linear
        out["aten"] = lambda: [_applied(epilogue or "bias", linear(x, weights[i % len(weights)], bias), other) for i, x in enumerate(inputs)]
    if inputs[0].dtype == torch.float32 and torch.backends.mkl.is_available():
        mkl = torch.ops.mkl._mkl_linear
        reordered = [torch.ops.mkl._mkl_reorder_linear_weight(w, rows) for w in weights]
        triples = [(x, reordered[i % len(weights)], weights[i % len(weights)]) for i, x in enumerate(inputs)]
        out["mkl"] = lambda: [_applied(epilogue or "bias", mkl(x, p, w, bias, rows), other) for x, p, w in triples]
    return out


class Limits:
    """Of one core, timed between the contestants: a core that slows down for a while does so for all."""

    def __init__(self) -> None:
        from . import limits

        self.units = {d: limits.units(d) for d in ("f32", "bf16", "i8")}

    def calls(self, nbytes: int, dtype: str, cold: bool = False) -> dict[str, Callable[[], Any]]:
        """What is to be timed for layers of this kind, with weights of so many bytes."""
        return {"units": self.units[dtype].run, "near": self.stream(NEAR).run, "weights": self.stream(FAR if cold else nbytes).run}

    def seconds(self, k: int, n: int, rows: int, dtype: str, cold: bool, threads: int, taken: dict[str, float]) -> float:
        """The least time of one layer, where the calls have `taken` so many seconds."""
        size, out = {"f32": (4, 4), "bf16": (2, 2), "i8": (1, 4)}[dtype]
        near = taken["near"] / self.stream(NEAR).amount
        weights = taken["weights"] / self.stream(FAR if cold else k * n * size).amount
        stream = k * n * size * weights + rows * (k * size + n * out) * near
        return max(2 * rows * k * n * taken["units"] / self.units[dtype].amount / threads, stream)

    def stream(self, nbytes: int) -> Probe:
        """Reads as many bytes over and over, in whole steps of `NEAR`: where they stay, weights do."""
        return _reading(min(-(-nbytes // NEAR) * NEAR, FAR))

    def __str__(self) -> str:
        of = {d: probe.rate(0.2) / 1e9 for d, probe in self.units.items()}
        near, several, far = (self.stream(size).rate(0.2) / 1e9 for size in (NEAR, OF_SEVERAL, FAR))
        return (
            f"limits of one core: f32 {of['f32']:.0f}, bf16 {of['bf16']:.0f} GF/s, i8 {of['i8']:.0f} GOP/s; "
            f"reading {NEAR >> 10} KB {near:.0f}, {OF_SEVERAL >> 20} MB {several:.0f}, {FAR >> 20} MB {far:.0f} GB/s"
        )


@functools.lru_cache(maxsize=3)
def _reading(size: int) -> Probe:
    from . import limits

    return limits.read(size)


NEAR, OF_SEVERAL, FAR = 512 << 10, 4 << 20, 256 << 20
"""Bytes that are read over and over: what a second-level cache has room for; weights of a layer, which many have not; and memory."""


def measure(
    k: int, n: int, rows: int, dtype: str, cold: bool, dynamic: bool, seconds: float, limits: Limits, pin: str | None = None, epilogue: str | None = None
) -> dict[str, Any]:
    """Microseconds of a layer for each contestant, and what follows from them; with a pin, also for what it makes of the kernel."""
    import torch

    from .measure import alternate, median_ms
    from .suite import DTYPES

    torch.manual_seed(0)
    module, inputs = chain(k, n, rows, getattr(torch, {**DTYPES, "i8": "int8"}[dtype]), cold, epilogue)
    layers = len(inputs) - (epilogue == "add")
    row: dict[str, Any] = {"k": k, "n": n, "rows": rows, "dtype": dtype, "cold": cold, "dynamic": dynamic, "epilogue": epilogue}
    with torch.no_grad():
        static = {"static": ours(module, inputs)} if dynamic else {}  # first: inputs stay marked
        calls = {"mlirc": ours(module, inputs, dynamic), **libraries(module, inputs, epilogue), **static}
        if epilogue:
            bare, _ = chain(k, n, rows, inputs[0].dtype, cold)
            calls["bare"] = ours(bare, inputs[:layers], dynamic)
        if pin:
            calls["pinned"] = ours(module, inputs, dynamic, {"pin": f"*: {pin}"})
        weight = module.weights[0]
        if dtype == "i8":
            expected = module.layer(inputs[0], weight, torch.float64)
        else:
            expected = torch.nn.functional.linear(inputs[0].double(), weight.double(), module.bias.double() if epilogue else None)
            expected = _applied(epilogue or "bias", expected, inputs[-1])
        row["error"] = (calls["mlirc"]()[0].double() - expected).abs().max().item()
        limiting = limits.calls(weight.numel() * weight.element_size(), dtype, cold)
        times = alternate({**calls, **limiting}, seconds)
    for name in calls:
        row[f"{name} us"] = 1e3 * median_ms(times[name]) / layers
    library = min(("onednn", "mkl", "aten"), key=lambda name: row.get(f"{name} us", float("inf")))
    row["library us"] = row[f"{library} us"]
    # Round by round: a core that slows down in the middle is no advantage for anybody.
    row["ratio"] = median(a / b for a, b in zip(times[library], times["mlirc"]))
    least = [limits.seconds(k, n, rows, dtype, cold, torch.get_num_threads(), {name: times[name][i] for name in limiting}) for i in range(len(times["mlirc"]))]
    for name in {"bare", "static"} & times.keys():
        row[f"over {name}"] = median(a / b for a, b in zip(times["mlirc"], times[name]))
    row["of limit"] = median(layers * a / b for a, b in zip(least, times["mlirc"]))
    row["gflops"] = 2e-3 * rows * k * n / row["mlirc us"]
    return row


def _describe(row: dict[str, Any]) -> str:
    shape = f"{row['rows']}x{row['k']}x{row['n']}"
    more = f", {row['over bare']:.2f}x the bare product" if "over bare" in row else ""
    more += f", {row['over static']:.2f}x the static kernel" if "over static" in row else ""
    more += f", {row['pinned us']:.1f} us pinned" if "pinned us" in row else ""
    return (
        f"{row['dtype']:4} {'cold' if row['cold'] else 'hot':4} {shape:17} {row['mlirc us']:9.1f} us {row['gflops']:6.1f} GF/s "
        f"{row['of limit']:5.2f} of limit, {row['ratio']:5.2f}x the library, error {row['error']:.0e}{more}"
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """A line per dtype, and hot or cold."""
    out = []
    for key in sorted({(r["dtype"], r["cold"]) for r in rows}):
        mine = [r for r in rows if (r["dtype"], r["cold"]) == key]
        worst = min(mine, key=lambda r: r["ratio"])
        large = [r["of limit"] for r in mine if r["rows"] >= 128] or [float("nan")]
        single = [r["of limit"] for r in mine if r["rows"] == 1] or [float("nan")]
        over = ""
        for name, what in (("bare", "the bare product"), ("static", "the kernel for this number of rows")):
            times = [r[f"over {name}"] for r in mine if f"over {name}" in r]
            over += f"; {geometric_mean(times):.3f}x {what}, at most {max(times):.2f}x" if times else ""
        out.append(
            f"{key[0]} {'cold' if key[1] else 'hot'}: {len(mine)} shapes, {geometric_mean([r['ratio'] for r in mine]):.2f}x the library (geometric mean), "
            f"slowest {worst['ratio']:.2f}x at {worst['rows']}x{worst['k']}x{worst['n']}; of limit at 128 rows and more {geometric_mean(large):.2f}, at one {geometric_mean(single):.2f}{over}"
        )
    return out


@click.command(help=__doc__)
@click.option("--models", default=",".join(SHAPES), show_default=True, help="Whose layers.")
@click.option("--shape", "shapes", multiple=True, help="KxN instead, can be repeated.")
@click.option("--rows", default=",".join(map(str, ROWS)), show_default=True)
@click.option("--dtypes", default="f32,bf16", show_default=True, help="f32, bf16, i8.")
@click.option("--weights", default="hot,cold", show_default=True)
@click.option("--dynamic", is_flag=True, help="The number of rows is a symbol; also beside the kernel that knows it.")
@click.option("--epilogue", type=click.Choice(list(EPILOGUES)), help="What the layers do with their results.")
@click.option("--pin", metavar="FIELD=VALUE,...", help="Also with a strategy that has these fields, as the option pin takes them.")
@click.option("--threads", default=1, show_default=True)
@click.option("--seconds", default=0.15, show_default=True, help="Seconds of timing for each contestant.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the rows to this file as JSON lines.")
def main(
    models: str, shapes: tuple[str, ...], rows: str, dtypes: str, weights: str, dynamic: bool, epilogue: str | None, pin: str | None, threads: int,
    seconds: float, out: Path | None,
) -> None:  # fmt: skip
    import torch

    if epilogue and "i8" in dtypes.split(","):
        raise click.UsageError("--epilogue is for f32 and bf16")
    torch.set_num_threads(threads)
    limits = Limits()
    click.echo(str(limits))
    pairs = [tuple(map(int, s.split("x"))) for s in shapes] or [p for m in models.split(",") for p in SHAPES[m]]
    found = []
    for dtype in dtypes.split(","):
        for cold in [w == "cold" for w in weights.split(",")]:
            for k, n in pairs:
                for m in map(int, rows.split(",")):
                    row = measure(k, n, m, dtype, cold, dynamic, seconds, limits, pin, epilogue)
                    found.append(row)
                    click.echo(_describe(row))
                    if out:
                        with out.open("a") as file:
                            file.write(json.dumps(row) + "\n")
    for line in summary(found):
        click.echo(line)


if __name__ == "__main__":
    main()
