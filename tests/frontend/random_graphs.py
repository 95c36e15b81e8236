"""Random functions of a few tensors: what no one would write, but fusion has to get right."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SIDES = (1, 2, 3, 5, 8, 17)


class Builder:
    """A program as a list of steps, each a function of earlier values; `seed` decides everything."""

    def __init__(self, seed: int, steps: int = 12) -> None:
        self.random = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.inputs = [self._input(generator) for _ in range(self.random.randint(1, 3))]
        self.steps: list[tuple[str, Callable[..., Tensor], list[int]]] = []
        values = list(self.inputs)
        while len(self.steps) < steps:
            found = self._step(values)
            if found is None:
                continue
            name, f, at = found
            try:
                value = f(*(values[i] for i in at))
            except (RuntimeError, IndexError, ValueError):
                continue
            if value.numel() > 20000 or value.dim() > 5 or not value.isfinite().all() or value.abs().max() > 1e4:
                continue
            self.steps.append((name, f, at))
            values.append(value)
        # Values that nobody uses, and some others.
        used = {i for _, _, at in self.steps for i in at}
        first = len(self.inputs)
        self.results = [i for i in range(first, len(values)) if i not in used or self.random.random() < 0.2]

    def _input(self, generator: torch.Generator) -> Tensor:
        shape = [self.random.choice(SIDES) for _ in range(self.random.randint(1, 4))]
        x = torch.randn(shape, generator=generator, dtype=torch.float64).float()
        return x.transpose(0, -1) if self.random.random() < 0.3 else x

    def _step(self, values: list[Tensor]):  # type: ignore[no-untyped-def]
        r = self.random
        i = r.choice(range(max(0, len(values) - 5), len(values))) if r.random() < 0.7 else r.randrange(len(values))
        x = values[i]
        kind = r.choice(("unary", "binary", "binary", "reduce", "move", "move", "normalise", "matmul", "join", "in place", "more"))
        if kind == "unary":
            name = r.choice(("tanh", "sigmoid", "abs", "neg", "relu", "sin", "exp"))
            return name, getattr(torch, name), [i]
        if kind == "binary":
            j = r.randrange(len(values))
            name = r.choice(("add", "mul", "sub", "maximum"))
            return name, getattr(torch, name), [i, j]
        if kind == "reduce" and x.dim():
            d, keep, name = r.randrange(x.dim()), r.random() < 0.6, r.choice(("sum", "mean", "amax", "amin"))
            return f"{name} {d} {keep}", lambda x: getattr(x, name)(d, keepdim=keep), [i]
        if kind == "normalise" and x.dim():
            d = r.randrange(x.dim())
            if r.random() < 0.5:
                return f"softmax {d}", lambda x: x.softmax(d), [i]
            return "layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), [i]
        if kind == "matmul" and x.dim() >= 2:
            j = r.randrange(len(values))
            if r.random() < 0.5:
                return "matmul of its transpose", lambda x: x @ x.transpose(-1, -2) / x.shape[-1], [i]
            return "matmul", lambda x, y: x @ y, [i, j]
        if kind == "join" and x.dim():
            d, j = r.randrange(x.dim()), r.randrange(len(values))
            if r.random() < 0.5:
                return f"cat {d}", lambda x, y: torch.cat([x, y], d), [i, j]
            return f"stack {d}", lambda x: torch.stack([x, x * 2], d), [i]
        if kind == "in place" and x.dim():
            def changed(x: Tensor) -> Tensor:
                y = x.clone()
                y[..., :1] = y[..., -1:] * 2
                return y.add_(1)

            return "clone, change", changed, [i]
        if kind == "more" and x.dim():
            return self._more(i, x)
        return self._move(i, x)

    def _more(self, i: int, x: Tensor):  # type: ignore[no-untyped-def]
        r = self.random
        d = r.randrange(x.dim())
        at = r.sample(range(x.shape[d]), min(2, x.shape[d]))
        return {
            "where": ("where", lambda x: torch.where(x > 0.1, x, x.sum(d, keepdim=True)), [i]),
            "cumsum": (f"cumsum {d}", lambda x: x.cumsum(d), [i]),
            "gather": (f"gather {d}", lambda x: x.gather(d, (x > 0).to(torch.int64) * (x.shape[d] - 1)), [i]),
            "scatter": (f"index_add {d} {at}", lambda x: x.index_add(d, torch.tensor(at), x.narrow(d, 0, len(at)) * 2), [i]),
            "argmax": (f"argmax {d}", lambda x: x * x.argmax(d, keepdim=True), [i]),
            "round": ("through int32", lambda x: (x * 4).to(torch.int32).to(x.dtype) // 2 + x, [i]),
            "half": ("through bf16", lambda x: (x.bfloat16() * 2).to(x.dtype).round(), [i]),
            "pool": ("max_pool", lambda x: F.max_pool1d(x.reshape(1, -1, x.shape[-1]), 2, 1)[0], [i]),
            "average": ("avg_pool", lambda x: F.avg_pool1d(x.reshape(1, -1, x.shape[-1]), 3, 2, 1)[0], [i]),
            "conv": ("conv", lambda x: F.conv1d(x.reshape(1, -1, x.shape[-1]), x.new_ones(3, x.numel() // x.shape[-1], 2), padding=1), [i]),
            "norm": ("batch_norm", lambda x: F.batch_norm(x.reshape(x.shape[0], -1), None, None, training=True), [i]),
            "unfold": (f"unfold {d}", lambda x: x.unfold(d, 2, 1).sum(-1), [i]),
            "diagonal": ("tril", lambda x: x.tril() + x.triu(1), [i]),
        }[r.choice(("where", "cumsum", "gather", "scatter", "argmax", "round", "half", "pool", "average", "conv", "norm", "unfold", "diagonal"))]

    def _move(self, i: int, x: Tensor):  # type: ignore[no-untyped-def]
        r = self.random
        if not x.dim():
            return "view", lambda x: x.view(1, 1), [i]
        a, b = r.randrange(x.dim()), r.randrange(x.dim())
        n = x.shape[a]
        choice = r.choice(("transpose", "permute", "flatten", "slice", "pad", "unsqueeze", "expand", "flip", "roll", "split", "select", "index"))
        order = r.sample(range(x.dim()), x.dim())
        lo = r.randrange(n) if n else 0
        step = r.choice((1, 1, 2))
        return {
            "transpose": (f"transpose {a} {b}", lambda x: x.transpose(a, b), [i]),
            "permute": (f"permute {order}", lambda x: x.permute(order), [i]),
            "flatten": ("reshape", lambda x: x.reshape(-1) if b else x.reshape(x.shape[0], -1), [i]),
            "slice": (f"slice {a} {lo} {step}", lambda x: x.narrow(a, lo, n - lo)[::step], [i]),
            "pad": ("pad", lambda x: F.pad(x, (1, lo % 3)), [i]),
            "unsqueeze": (f"unsqueeze {a}", lambda x: x.unsqueeze(a), [i]),
            "expand": ("expand", lambda x: x.unsqueeze(0).expand(3, *x.shape), [i]),
            "flip": (f"flip {a}", lambda x: x.flip(a), [i]),
            "roll": (f"roll {lo} {a}", lambda x: x.roll(lo, a), [i]),
            "split": (f"chunk {a}", lambda x: x.chunk(2, a)[-1], [i]),
            "select": (f"select {a} {lo}", lambda x: x.select(a, lo), [i]),
            "index": (f"index_select {a}", lambda x: x.index_select(a, torch.tensor([lo, 0, lo])), [i]),
        }[choice]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        values = list(inputs)
        for _, f, at in self.steps:
            values.append(f(*(values[i] for i in at)))
        return [values[i] for i in self.results]

    def __str__(self) -> str:
        lines = [f"v{i} = input {tuple(x.shape)} {x.stride()}" for i, x in enumerate(self.inputs)]
        first = len(self.inputs)
        lines += [f"v{first + n} = {name}({', '.join(f'v{i}' for i in at)})" for n, (name, _, at) in enumerate(self.steps)]
        return "\n".join([*lines, f"return {', '.join(f'v{i}' for i in self.results)}"])
