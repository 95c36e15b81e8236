"""The hypothesis strategy of programs: a list of op descriptors, each a few small numbers that a rule reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hypothesis import strategies as st

from .choices import Choices
from .grammar import rules
from .grammar.failing import failing
from .grammar.rules import DTYPES, FLOATS
from .program import LARGE_ELEMENTS, MAX_ELEMENTS, Program
from .tensors import KINDS

NUMBERS = st.lists(st.integers(0, 999), min_size=10, max_size=10)
SETTING = st.lists(st.integers(0, 999), min_size=46, max_size=46)
RESULTS, KEPT, FAILING = 14, 24, 40
"""Where in the setting the numbers for the results begin, those for what a module keeps, and those for a line that raises."""
SIZES = (3, 2, 5, 1, 4, 7, 8, 13, 16, 17, 6, 31, 33, 64, 9, 3, 2, 5, 1, 4, 7, 8, 13, 16, 0)
LARGE = (64, 3, 100, 300, 2, 130, 1000, 1, 17, 2100, 513, 48, 256, 5, 4097, 33, 10000, 768)
"""Where loops have blocks, threads have something to share, and sums are long."""


def build(
    setting: Sequence[int], inputs: Sequence[Sequence[int]], steps: Sequence[Sequence[int]], part: str = "", large: bool = False
) -> Program | None:
    """The program that these numbers stand for; None if nothing is left of it."""
    available = LARGE if large else SIZES
    c = Choices(setting)
    dynamic, grad, wild = c.chance(4), c.chance(2 if part == "masks" else 4), c.chance(8)
    dynamic ^= part == "meetings"
    kept = c.chance(5) or part == "state"
    sizes: list[tuple[int, ...]] = _sizes(c, available) if dynamic else [()] * c.pick((1, 2, 1) if not kept else (3, 2, 4))
    if dynamic and kept:
        sizes += sizes[-1:]
    p = Program(sizes, dynamic, grad, wild, Choices(setting[KEPT:FAILING]) if kept else None, dynamic and c.chance(5), LARGE_ELEMENTS if large else MAX_ELEMENTS)
    for numbers in inputs:
        p.add_input(_input(p, Choices(numbers), available))
    if not p.inputs:
        return None
    table = rules(part)
    for numbers in steps:
        c = Choices(numbers)
        which = c.below(len(table) + 1)
        if which and len(p.lines) < 12:
            table[which - 1](p, c)
    if not p.lines or not _choose_results(p, Choices(setting[RESULTS:])):
        return None
    _fail(p, Choices(setting[FAILING:]), part)
    return p


def _fail(p: Program, c: Choices, part: str) -> None:
    """Let a few programs raise: those of a part of the grammar that is named `failing`, and one in sixteen."""
    if not c.chance(16) and part != "failing":
        return
    at = c.below(len(p.lines) + 1)
    made = [v for line in p.lines[:at] for v in line.partition(" = ")[0].split(", ") if v.startswith("v") and v.isalnum()]
    tensors = [v.name for v in p.values if v.name[0] != "v" or v.name in made]
    line, makes = failing(c, tensors, [v.name for v in p.values if v.name in tensors and v.dim], "bad")
    p.failing = at, line
    p.results += ["bad"] * makes


def _sizes(c: Choices, available: Sequence[int]) -> list[tuple[int, ...]]:
    """Those of several calls: any, or some that become equal, one or nothing, or change places."""
    more_than_one = tuple(n for n in available if n > 1)
    a, b = c.pick(more_than_one), c.pick(more_than_one)
    d, e = c.pick(available), c.pick(available)
    return c.pick(([(a, b), (d, e)], [(a, b), (b, a)], [(a, b), (d, d), (b, a)], [(a, a), (a, b), (d, a)], [(a, b), (0, b), (a, e)], [(a, b), (1, b), (b, 1)], [(a, b), (a, b), (a, e)], [(a, b), (a * b, 1), (1, a * b)]))


def _input(p: Program, c: Choices, available: Sequence[int]) -> str:
    rank = (2, 1, 3, 4, 2, 3, 0, 5)[c.below(8)]
    names = ["n0", "n1"] if p.dynamic else []
    shape = [c.pick(names) if names and c.chance(2) else str(c.pick(available)) for _ in range(rank)]
    dtype = c.pick(FLOATS) if p.grad or c.chance(2) else c.pick(DTYPES)
    kind = c.pick(KINDS[:3] if not p.wild else KINDS)
    if p.inputs and c.chance(8):
        old = p.inputs[0][0]
        return c.pick((old, f"{old}[1:]", f"{old}.transpose(0, -1)", f"{old}.view(-1)[1:]"))
    text = f"tensor(({', '.join(shape)}{',' if rank == 1 else ''}), {dtype}, {len(p.inputs)}, {kind!r})"
    layouts = ["{}"] * 4
    if rank:
        layouts += ["{}[..., ::2]", "{}.transpose(0, -1)", "{}[1:]", "{}.flip(0)[:1].expand(3, " + ", ".join(["-1"] * (rank - 1)) + ")" if rank > 1 else "{}[2:]", "{}[..., 1:]"]
    if rank == 4:
        layouts += ["{}.contiguous(memory_format=torch.channels_last)"] * 3
    return c.pick(layouts).format(text)


def _choose_results(p: Program, c: Choices) -> bool:
    """Return the last value, what nobody uses, and a few more, or views of them; False where gradients fail."""
    used = Counter(re.findall(r"\bv\d+\b", " ".join(p.lines)))
    made = [v for v in p.values if v.name.startswith("v")]
    changed = len(made) < len(p.lines)
    unused = [v for v in made if used[v.name] == 1 or c.chance(4)]
    p.results = [v.name for v in unused[-6:]] or [v.name for v in p.values[-1:]]
    if not made and not changed:
        return False
    if c.chance(3):  # once more, or a view of it, or of an input or a weight
        v = c.pick([p.values[-1], *[v for v in p.values if v.name in p.results], *p.values])
        view = c.pick(("{v}", "{v}.view(-1)", "{v}[1:]", "{v}.mT", "{v}[..., ::2]", "{v}.detach()", "{v}.unsqueeze(0)", "{v}.flatten()", "{v}.expand(2, *{v}.shape)", "{v}.contiguous()")).format(v=v)
        if view == v.name or p.add(view):
            p.results.insert(c.below(2) * len(p.results), view if view == v.name else p.values[-1].name)
    return not p.grad or p.differentiable()


@st.composite
def programs(draw: st.DrawFn, part: str = "", large: bool = False) -> Program | None:
    """Programs of about 3 to 12 ops on 1 to 3 inputs; None where the numbers mean nothing.

    The list of ops has a least length, or most programs would be tiny; one that is all zeros is no op, so that failures shrink.
    """
    setting = draw(SETTING)
    inputs = draw(st.lists(NUMBERS, min_size=1, max_size=3))
    steps = draw(st.lists(NUMBERS, min_size=9, max_size=16))
    return build(setting, inputs, steps, part, large)
