"""Programs under construction: source lines, run in eager mode as they are added, for one or two sets of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from . import custom
from .choices import Choices
from .state import Weight, weight
from .tensors import tensor

ALLOWED = frozenset(
    (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
)
MAX_ELEMENTS = 20_000
LARGE_ELEMENTS = 1_000_000
"""Of a tensor of a program with large sizes."""
MAX_DIMS = 6
MAX_VALUE = 1e4
INVALID = (NameError, RuntimeError, IndexError, ValueError, TypeError, AttributeError, NotImplementedError, ZeroDivisionError, OverflowError)
"""What a line may raise that makes no sense."""


def alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Of one type and with as many dims: what a value is in each set of sizes."""
    return len({(t.dtype, t.dim()) for t in tensors}) == 1


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
    `kept`: the numbers that decide what a module keeps between calls, and who writes to it; then `f` is its `forward`.
    `automatic`: the first call is compiled for its sizes, and a later one for any.
    `most`: elements of a tensor.
    """

    sizes: list[tuple[int, ...]]
    dynamic: bool = False
    grad: bool = False
    wild: bool = False
    kept: Choices | None = None
    automatic: bool = False
    most: int = MAX_ELEMENTS
    inputs: list[tuple[str, str]] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    failing: tuple[int, str] | None = None
    """A line that raises, and before which of the others."""

    def __post_init__(self) -> None:
        self.envs: list[dict[str, Any]] = [self._fresh(s) for s in self.sizes]

    def _fresh(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        numbers = {f"n{i}": n for i, n in enumerate(sizes)}
        return {"torch": torch, "F": F, "tensor": tensor, "custom": custom, "m": torch.nn.Module(), **numbers}

    def _run(self, how: Callable[[str, dict[str, Any]], Any], text: str, env: dict[str, Any]) -> Any:
        """`how` is eval or exec."""
        custom.LOG.clear()
        with torch.set_grad_enabled(self.grad):
            return how(text, env)

    def add_input(self, expression: str) -> bool:
        name = f"x{len(self.inputs)}"
        made = []
        for env in self.envs:
            try:
                x = self._run(eval, expression, env)
            except INVALID:
                return False
            if x.numel() > self.most:
                return False
            if self.grad and x.is_floating_point() and x._base is None:
                x.requires_grad_()
            made.append(x)
        if not alike(made):
            return False
        for env, x in zip(self.envs, made):
            env[name] = x
        self.inputs.append((name, expression))
        self.values.append(Value(name, made))
        return True

    def weight(self, shape: Sequence[int], dtype: torch.dtype, change: str = "", parameter: bool = True) -> str:
        """What a layer has for weights: a further input, or something that the module keeps."""
        n = len(self.weights)
        if self.keep(f"tensor({tuple(shape)}, {dtype}, SEED){change}", parameter):
            return f"w{n}"
        n = len(self.inputs)
        self.add_input(f"tensor({tuple(shape)}, {dtype}, {n}){change}")
        return f"x{n}"

    def keep(self, expression: str, parameter: bool) -> bool:
        """A parameter or a buffer of the module, if there is one."""
        if self.kept is None:
            return False
        return self.add_weight(weight(self.kept, f"w{len(self.weights)}", expression, parameter, len(self.sizes) - 1))

    def add_weight(self, w: Weight) -> bool:
        """`w` is a value in each call as it is then, but for what calls before it write."""
        made: list[torch.Tensor] = []
        try:
            for call, env in enumerate(self.envs):
                for statement in (w.made(), *w.writes[:call]):
                    exec(statement, env)
                made.append(getattr(env["m"], w.name))
                made[-1].requires_grad_(w.parameter and self.grad)
        except INVALID:
            made = []
        if not made or not all(self._acceptable(x) for x in made) or not alike(made):
            for env in self.envs:
                if hasattr(env["m"], w.name):
                    delattr(env["m"], w.name)
            return False
        for env, x in zip(self.envs, made):
            env[w.name] = x
        self.weights.append(w)
        self.values.append(Value(w.name, made))
        return True

    def add(self, expression: str, names: int = 1) -> bool:
        """`v = expression`, or `v, w = expression` for `names` > 1; False, and nothing changes, if that is not valid."""
        n = len(self.values) - len(self.inputs) - len(self.weights)
        targets = [f"v{n + i}" for i in range(names)]
        made: list[list[torch.Tensor]] = []
        for env in self.envs:
            try:
                out = self._run(eval, expression, env)
            except INVALID:
                return False
            parts = [out] if names == 1 else list(out)
            if len(parts) != names or not all(self._acceptable(p) for p in parts):
                return False
            made.append(parts)
        if not all(map(alike, zip(*made))):
            return False
        for env, parts in zip(self.envs, made):
            env.update(zip(targets, parts))
        self.lines.append(f"{', '.join(targets)} = {expression}")
        self.values += [Value(t, [parts[i] for parts in made]) for i, t in enumerate(targets)]
        return True

    def change(self, statement: str) -> bool:
        """A statement that changes tensors in place; False, and nothing changes, if that is not valid."""
        shapes = [env[w.name].shape for w in self.weights for env in self.envs]
        # AOTAutograd writes an input back with copy_, which refuses elements that share memory.
        shared = [(x, x.detach().clone()) for v in self.values if v.name[0] == "x" for x in v.tensors if 0 in x.stride()]
        try:
            for env in self.envs:
                self._run(exec, statement, env)
            good = shapes == [env[w.name].shape for w in self.weights for env in self.envs]
            # squeeze_ may drop a dim in one set of sizes only.
            good &= all(self._acceptable(t) for v in self.values for t in v.tensors) and all(alike(v.tensors) for v in self.values)
            good &= not any(((x != was) & (was == was)).any() for x, was in shared)
            # What a buffer keeps is no part of the next call's gradients.
            good &= not any(env[w.name].requires_grad for w in self.weights if not w.parameter for env in self.envs)
        except INVALID:
            good = False
        if good:
            self.lines.append(statement)
            return True
        # Something may have been changed: start again without it.
        inputs, weights, lines = self.inputs, self.weights, self.lines
        self.inputs, self.weights, self.lines, self.values = [], [], [], []
        self.__post_init__()
        for _, expression in inputs:
            self.add_input(expression)
        for w in weights:
            self.add_weight(w)
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
        if x.numel() > self.most or x.dim() > MAX_DIMS:
            return False
        if self.wild or not x.is_floating_point() or not x.numel():
            return True
        x = x.detach()
        return bool(x.isfinite().all()) and bool((x.abs() <= MAX_VALUE).all())

    def differentiable(self) -> bool:
        """Whether eager mode can run backwards from the results: in-place ops may have changed what it needs."""
        for env in self.envs:
            results = [self._run(eval, r, env) for r in self.results]
            outs = [x for x in results if x.requires_grad]
            names = [name for name, _ in self.inputs] + [w.name for w in self.weights]
            leaves = [env[name] for name in names if env[name].requires_grad and env[name].is_leaf]
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
        lines = list(self.lines)
        if self.failing:
            lines.insert(*self.failing)
        body = [*lines, f"return {', '.join(self.results)}{',' if len(self.results) == 1 else ''}"]
        if self.weights:
            own = ", ".join(w.name for w in self.weights)
            body.insert(0, f"{own} = {', '.join(f'm.{w.name}' for w in self.weights)}")
            function = [
                "class M(torch.nn.Module):",
                "    def __init__(m):",
                "        super().__init__()",
                *(f"        {w.made()}" for w in self.weights),
                "",
                f"    def forward(m, {names}):",
                *(f"        {line}" for line in body),
                *self._between(),
            ]
        else:
            function = [f"def f({names}):", *(f"    {line}" for line in body)]
        check = "check_errors" if self.failing else "check"
        imports = [f"from mlirc.tests.fuzz.{'errors' if self.failing else 'check'} import {check}", "from mlirc.tests.fuzz.tensors import tensor"]
        if "custom." in "".join(body):
            imports.insert(0, "from mlirc.tests.fuzz import custom")
        arguments = [
            "M" if self.weights else "f",
            "inputs",
            f"sizes=[{', '.join(map(repr, self.sizes))}]",
            f"dynamic={None if self.automatic else self.dynamic}",
            f"grad={self.grad}",
            *(["between=between"] if any(any(w.writes) for w in self.weights) else []),
        ]
        return "\n".join(
            [
                "import torch",
                "import torch.nn.functional as F",
                "",
                *imports,
                "",
                "",
                f"def inputs({parameters}):",
                *(f"    {name} = {expression}" for name, expression in self.inputs),
                f"    return {names}{one}",
                "",
                "",
                *function,
                "",
                "",
                f"{check}({', '.join(arguments)})",
                "",
            ]
        )

    def _between(self) -> list[str]:
        """Who writes to what the module keeps before which call, as a function; nothing if nobody does."""
        lines = []
        for call in range(1, len(self.sizes)):
            writes = [w.writes[call - 1] for w in self.weights if w.writes[call - 1]]
            if writes:
                lines += [f"    if call == {call}:", *(f"        {statement}" for statement in writes)]
        return ["", "", "def between(m, call):", *lines] if lines else []
