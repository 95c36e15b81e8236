"""Products of two tensors that a graph computes, batch by batch: attention's scores and values, and thousands of small ones.

Beside `benchmarks.contractions`, whose products are with a weight. A contestant computes `COPIES` products of tensors of their own in
one graph. The library is what eager mode calls (`torch.bmm`: MKL, oneDNN); transposed operands are views, as attention has them. The
limit is that of the units or of the stream of operands and results, as fast as a buffer of the operands' size is read over and over,
whichever takes longer, both measured between the contestants.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import click

from .contractions import Limits, ours

SHAPES: dict[str, list[tuple[int, int, int, int, bool]]] = {
    "bert": [(12, 128, 64, 128, True), (12, 128, 128, 64, False)],
    "bert_512": [(12, 512, 64, 512, True), (12, 512, 512, 64, False)],
    "vit": [(12, 197, 64, 197, True), (12, 197, 197, 64, False)],
    "swin": [(192, 49, 32, 49, True), (192, 49, 49, 32, False)],
    "diffusion": [(8, 1024, 40, 1024, True), (8, 1024, 1024, 40, False), (8, 1024, 40, 77, True)],
    "decode": [(16, 1, 64, 256, True), (16, 1, 256, 64, False), (32, 4, 128, 1024, True), (32, 4, 1024, 128, False)],
    "small": [(10000, 3, 3, 3, False), (4096, 4, 4, 4, False), (4096, 8, 8, 8, False), (1024, 16, 16, 16, True), (2048, 1, 40, 40, False)],
    "odd": [(7, 33, 17, 9, False), (64, 31, 33, 65, True), (5, 129, 127, 1, False), (300, 1, 129, 3, True)],
}
"""(batch, rows, elements of the reduction, columns, whether the second operand is a transposed view)."""
COPIES = 4


def pairs(batch: int, m: int, k: int, n: int, turned: bool, dtype: Any) -> list[Any]:
    """`COPIES` times [batch, m, k] and [batch, k, n], one after the other."""
    import torch

    out = []
    for _ in range(COPIES):
        second = torch.randn(batch, n, k).to(dtype).transpose(1, 2) if turned else torch.randn(batch, k, n).to(dtype)
        out += [torch.randn(batch, m, k).to(dtype), second]
    return out


def measure(shape: tuple[int, int, int, int, bool], dtype: str, seconds: float, limits: Limits) -> dict[str, Any]:
    """Microseconds of a product for each contestant, and what follows from them."""
    import torch

    from .measure import alternate, median_ms
    from .suite import DTYPES

    class Products(torch.nn.Module):
        def forward(self, *operands: Any) -> list[Any]:
            return [torch.bmm(a, b) for a, b in zip(operands[::2], operands[1::2])]

    torch.manual_seed(0)
    batch, m, k, n, turned = shape
    module, operands = Products(), pairs(*shape, getattr(torch, DTYPES[dtype]))
    row: dict[str, Any] = {"batch": batch, "rows": m, "k": k, "n": n, "transposed": turned, "dtype": dtype}
    with torch.no_grad():
        call = ours(module, operands)
        row["error"] = (call()[0].double() - operands[0].double() @ operands[1].double()).abs().max().item()
        read = batch * (m * k + k * n) * operands[0].element_size()
        limiting = limits.calls(read, dtype)
        times = alternate({"mlirc": call, "library": lambda: module(*operands), **limiting}, seconds)
    for name in ("mlirc", "library"):
        row[f"{name} us"] = 1e3 * median_ms(times[name]) / COPIES
    row["ratio"] = median(a / b for a, b in zip(times["library"], times["mlirc"]))
    size, bytes_rate = operands[0].element_size(), limits.stream(read).amount
    threads = torch.get_num_threads()
    of_limit = []
    for i, taken in enumerate(times["mlirc"]):
        units = 2 * batch * m * k * n * times["units"][i] / limits.units[dtype].amount
        stream = batch * (m * k + k * n + m * n) * size * times["weights"][i] / bytes_rate
        of_limit.append(COPIES * max(units, stream) / threads / taken)
    row["of limit"] = median(of_limit)
    row["gflops"] = 2e-3 * batch * m * k * n / row["mlirc us"]
    return row


def _describe(row: dict[str, Any]) -> str:
    shape = f"{row['batch']}x{row['rows']}x{row['k']}x{row['n']}{'t' if row['transposed'] else ''}"
    return (
        f"{row['dtype']:4} {shape:18} {row['mlirc us']:9.1f} us {row['gflops']:6.1f} GF/s {row['of limit']:5.2f} of limit, "
        f"{row['ratio']:5.2f}x the library, error {row['error']:.0e}"
    )


@click.command(help=__doc__)
@click.option("--models", default=",".join(SHAPES), show_default=True, help="Whose products.")
@click.option("--dtypes", default="f32,bf16", show_default=True, help="f32, bf16.")
@click.option("--threads", default=1, show_default=True)
@click.option("--seconds", default=0.15, show_default=True, help="Seconds of timing for each contestant.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the rows to this file as JSON lines.")
def main(models: str, dtypes: str, threads: int, seconds: float, out: Path | None) -> None:
    import torch

    if unknown := (set(models.split(",")) - set(SHAPES)) | (set(dtypes.split(",")) - {"f32", "bf16"}):
        raise click.UsageError(f"unknown {', '.join(sorted(unknown))}; models: {', '.join(SHAPES)}; dtypes: f32, bf16")
    torch.set_num_threads(threads)
    limits = Limits()
    click.echo(str(limits))
    for dtype in dtypes.split(","):
        rows = []
        for shape in (s for name in models.split(",") for s in SHAPES[name]):
            rows.append(measure(shape, dtype, seconds, limits))
            click.echo(_describe(rows[-1]))
            if out:
                with out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
        worst = min(rows, key=lambda r: r["ratio"])
        click.echo(
            f"{dtype}: {len(rows)} shapes, {geometric_mean([r['ratio'] for r in rows]):.2f}x the library (geometric mean), slowest {worst['ratio']:.2f}x; "
            f"of limit {geometric_mean([r['of limit'] for r in rows]):.2f}"
        )


if __name__ == "__main__":
    main()
