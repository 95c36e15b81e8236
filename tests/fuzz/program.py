"""Programs under construction: source lines, run in eager mode as they are added, for one or two sets of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from .choices import Choices
from .tensors import tensor

ALLOWED = frozenset(
    (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
)
MAX_ELEMENTS = 20000
MAX_DIMS = 6
MAX_VALUE = 1e4


class Value:
    """A tensor of the program: its name, and what it is in each set of sizes."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self.name, self.tensors = name, list(tensors)

    def __str__(self) -> str:
        return self.name

    @property
    def t(self) -> torch.Tensor:
        return self.tensors[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.t.dtype

    @property
    def dim(self) -> int:
        return self.t.dim()

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point

    def size(self, d: int) -> int:
        """The smallest size of dimension d in any set: what constants have to respect."""
        return min(t.shape[d] for t in self.tensors)

    def fixed(self, d: int) -> bool:
        return len({t.shape[d] for t in self.tensors}) == 1

    @property
    def all_fixed(self) -> bool:
        return all(self.fixed(d) for d in range(self.dim))

    @property
    def numel(self) -> int:
        return max(t.numel() for t in self.tensors)


@dataclass
class Program:
    """`def inputs(n0, ...)` and `def f(x0, ...)`, with the values that `f` has so far.

    `sizes`: the arguments of `inputs`, one tuple for each call of the same compiled function.
    `wild`: infinities, NaN and huge values are let in.
    """

    sizes: list[tuple[int, ...]]
    dynamic: bool = False
    grad: bool = False
    wild: bool = False
    inputs: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.envs: list[dict[str, Any]] = [self._fresh(s) for s in self.sizes]

    def _fresh(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {"torch": torch, "F": F, "tensor": tensor, **{f"n{i}": n for i, n in enumerate(sizes)}}

    def add_input(self, expression: str) -> bool:
        name = f"x{len(self.inputs)}"
        made = []
        for env in self.envs:
            try:
                x = eval(expression, env)
            except (RuntimeError, IndexError, ValueError, TypeError):
                return False
            if x.numel() > MAX_ELEMENTS:
                return False
            if self.grad and x.is_floating_point() and x._base is None:
                x.requires_grad_()
            made.append(x)
        for env, x in zip(self.envs, made):
            env[name] = x
        self.inputs.append((name, expression))
        self.values.append(Value(name, made))
        return True

    def weight(self, shape: Sequence[int], dtype: torch.dtype, change: str = "") -> str:
        """A further input: what a layer has for weights."""
        n = len(self.inputs)
        self.add_input(f"tensor({tuple(shape)}, {dtype}, {n}){change}")
        return f"x{n}"

    def add(self, expression: str, names: int = 1) -> bool:
        """`v = expression`, or `v, w = expression` for `names` > 1; False, and nothing changes, if that is not valid."""
        n = len(self.values) - len(self.inputs)
        targets = [f"v{n + i}" for i in range(names)]
        made: list[list[torch.Tensor]] = []
        for env in self.envs:
            try:
                out = eval(expression, env)
            except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError, OverflowError):
                return False
            parts = [out] if names == 1 else list(out)
            if len(parts) != names or not all(self._acceptable(p) for p in parts):
                return False
            made.append(parts)
        if any(len({parts[i].dtype for parts in made}) > 1 or len({parts[i].dim() for parts in made}) > 1 for i in range(names)):
            return False
        for env, parts in zip(self.envs, made):
            env.update(zip(targets, parts))
        self.lines.append(f"{', '.join(targets)} = {expression}")
        self.values += [Value(t, [parts[i] for parts in made]) for i, t in enumerate(targets)]
        return True

    def change(self, statement: str) -> bool:
        """A statement that changes tensors in place; False, and nothing changes, if that is not valid."""
        try:
            for env in self.envs:
                exec(statement, env)
            good = all(self._acceptable(t) for v in self.values for t in v.tensors)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError, OverflowError):
            good = False
        if good:
            self.lines.append(statement)
            return True
        # Something may have been changed: start again without it.
        inputs, lines = self.inputs, self.lines
        self.inputs, self.lines, self.values = [], [], []
        self.__post_init__()
        for _, expression in inputs:
            self.add_input(expression)
        for line in lines:
            targets, equals, expression = line.partition(" = ")
            if equals and targets.replace(",", "").replace(" ", "").isalnum():
                self.add(expression, targets.count(",") + 1)
            else:
                self.change(line)
        return False

    def _acceptable(self, x: Any) -> bool:
        if not isinstance(x, torch.Tensor) or x.dtype not in ALLOWED or x.layout != torch.strided:
            return False
        if x.numel() > MAX_ELEMENTS or x.dim() > MAX_DIMS:
            return False
        if self.wild or not x.is_floating_point() or not x.numel():
            return True
        x = x.detach()
        return bool(x.isfinite().all()) and bool((x.abs() <= MAX_VALUE).all())

    def differentiable(self) -> bool:
        """Whether eager mode can run backwards from the results: in-place ops may have changed what it needs."""
        for env in self.envs:
            outs = [env[r] for r in self.results if env[r].requires_grad]
            leaves = [env[name] for name, _ in self.inputs if env[name].requires_grad and env[name].is_leaf]
            if not outs or not leaves:
                continue
            try:
                torch.autograd.grad(outs, leaves, [torch.ones_like(o) for o in outs], allow_unused=True, retain_graph=True)
            except (RuntimeError, NotImplementedError):
                return False
        return True

    def value(self, c: Choices, where: Callable[[Value], bool] | None = None) -> Value | None:
        """One of the values so far that meet the condition, more often a late one."""
        candidates = [v for v in self.values if where is None or where(v)]
        if not candidates:
            return None
        return candidates[-1 - min(c.below(len(candidates)), c.below(len(candidates)))]

    def source(self) -> str:
        """Python that checks the program, and fails where the compiled function differs from eager mode."""
        parameters = ", ".join(f"n{i}" for i in range(len(self.sizes[0])))
        names = ", ".join(name for name, _ in self.inputs)
        one = "," if len(self.inputs) == 1 else ""
        result = ", ".join(self.results)
        sizes = ", ".join(repr(s) for s in self.sizes)
        return "\n".join(
            [
                "import torch",
                "import torch.nn.functional as F",
                "",
                "from mlirc.tests.fuzz.check import check",
                "from mlirc.tests.fuzz.tensors import tensor",
                "",
                "",
                f"def inputs({parameters}):",
                *(f"    {name} = {expression}" for name, expression in self.inputs),
                f"    return {names}{one}",
                "",
                "",
                f"def f({names}):",
                *(f"    {line}" for line in self.lines),
                f"    return {result}{',' if len(self.results) == 1 else ''}",
                "",
                "",
                f"check(f, inputs, sizes=[{sizes}], dynamic={self.dynamic}, grad={self.grad})",
                "",
            ]
        )
