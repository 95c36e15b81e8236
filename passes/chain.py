"""Kernels of which one leaves for the next what is too much for the second-level cache become one kernel, in which they take turns.

    %s = call @k08(%q, %k)                  {scores, 1.9 MB}
    %p:2 = call @k09(%s)                                     ->        %o = call @k08_chain(%q, %k, %v)
    %o = call @k11(%p#0, %v, %p#1)

Attention is the case: its scores, and their softmax, are needed one head (or some rows of one) at a time, and then stay in cache
(`strategy.chains` chooses). They take no memory of the graph's any more either. The sums of each element stay what they were.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dialects import builders
from ..dialects.mlir import func, ir
from ..errors import CompileError
from . import structure as st
from .chained import CHAIN, RESHAPES, ChainFunction, unshaped
from .layouts import pitch_of, set_pitches
from .outline import SYMBOL, Kernel, called, kernel_number
from .overwrite import OVERWRITES
from .strategy import Strategy, select_strategy
from .strategy.chains import chain as choose
from .strategy.chains import pitch, reads_in_common, stays_in_cache, too_few_chunks
from .strategy.trial import worth_trying

if TYPE_CHECKING:
    from ..lowering.target import Target
    from .vectorize.kernel import KernelFunction

PASS_NAME = "mlirc-chain"
UNCHAINED = "mlirc.unchained"
"""On a call of which the next one reads results: why they do not take turns."""
MOST_CALLS = 8
"""That take turns: attention has three. Each further one of a residual network, whose values are read far below, would be tried in vain."""
WRITES = ("mlirc.in_place", "mlirc.write", OVERWRITES)


def chain(function: ir.Operation, kernels: list[Kernel], target: Target) -> list[Kernel]:
    """Replace calls of `kernels` in an outlined graph; returns those that are called then."""
    return _Chain(function, kernels, target).run()


Key = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, bool], ...]]
"""The numbers of kernels, what each of them reads, and what they pass to one another, with `_spread` rows or as it was."""


@dataclass
class _Link:
    """Calls that take turns, their operands from others, what they pass to one another, and their results for others."""

    calls: list[ir.Operation]
    operands: list[ir.Value]
    passed: list[ir.Value]
    results: list[ir.Value]


def _unknown(value: ir.Value) -> bool:
    """Whether a value is of unknown size."""
    return min(st.shape(value), default=0) < 0


def _bytes(value: ir.Value) -> int:
    """Of a value of known size."""
    shape = st.shape(value)
    return math.prod(shape) * (builders.element_type(value).width // 8 or 1) if min(shape, default=0) >= 0 else 0


def _spread(value: ir.Value) -> ir.Attribute | None:
    """Strides of a value with `pitch` from row to row; None where its rows are as they were."""
    shape = st.shape(value)
    if len(shape) < 2 or min(shape) < 0 or any(st.operation(use.owner).name in RESHAPES for use in value.uses):
        return None
    step = pitch(shape[-1], builders.element_type(value).width // 8 or 1)
    if step == shape[-1]:
        return None
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, step if len(strides) == 1 else strides[0] * size)
    return ir.ArrayAttr.get([ir.StringAttr.get(str(n)) for n in strides])


def _sizes_of_views(value: ir.Value) -> list[ir.Value]:
    """The sizes, if they are symbols, of the views that a value is seen through."""
    return [v for view in st.views(value) for v in list(view.operands)[1:]]


class _Chain:
    def __init__(self, function: ir.Operation, kernels: list[Kernel], target: Target) -> None:
        self.function = function
        self.block = function.regions[0].blocks[0]
        self.kernels = list(kernels)
        self.target = target
        self.known: dict[Key, tuple[bool, str]] = {}
        """Whether such a chain is possible, and why it is none."""
        self.strategies: dict[tuple[object, ...], Strategy] = {}
        """By the numbers of kernels, and which of their operands and results have `_spread` rows."""
        self.modules: dict[tuple[int, bool], ir.Module] = {}
        """Kernels, by number, with locations and without."""
        self.apart: dict[int, tuple[ir.Operation, str]] = {}
        """By their places in the block: calls after which nothing takes turns with them, and why."""
        self.numbers: dict[Key, int] = {}
        """Of the kernels that are chains."""
        self.same: dict[ir.Value, ir.Value] = {}
        """Numbers of the graph, and the first ones that are computed in the same way."""
        self.replaced: dict[ir.Value, ir.Value] = {}
        """Results of calls, and of the chains that they have become parts of."""

    def run(self) -> list[Kernel]:
        self.order = [st.operation(o) for o in self.block.operations]
        self.place = {op: n for n, op in enumerate(self.order)}
        self._find_numbers()
        taken: set[ir.Operation] = set()
        found: list[_Link] = []
        for op in self.order:
            if op in taken or not self._begins(op):
                continue
            if (link := self._longest(op, taken)) is not None:
                found.append(link)
                taken.update(link.calls)
        chained = {self.place[link.calls[0]] for link in found}
        # Not sooner: the hash of an op is that of what it is.
        for op, why_not in (self.apart[n] for n in self.apart.keys() - chained):
            op.attributes[UNCHAINED] = ir.StringAttr.get(why_not)
        dead = [op for link in found for op in self._replace(link)]
        for op in dead:
            op.erase()
        return called(self.function, self.kernels) if found else self.kernels

    def _find_numbers(self) -> None:
        """Sizes are computed anew in many places, and kernels should see that they are equal."""
        first: dict[tuple[object, ...], ir.Value] = {}
        rank = {v: n for n, v in enumerate(self.block.arguments)}
        for op in self.order:
            if op.name.startswith("arith.") and isinstance(op.results[0].type, ir.IndexType):
                inputs = [self.same.get(v, v) for v in op.operands]
                if op.name in ("arith.addi", "arith.muli"):
                    inputs.sort(key=lambda v: rank.get(v, -1))
                rank[op.results[0]] = len(rank)
                value = op.attributes["value"] if "value" in op.attributes else None
                self.same[op.results[0]] = first.setdefault((op.name, value, *inputs), op.results[0])

    def _begins(self, op: ir.Operation) -> bool:
        return self._movable(op) and worth_trying(self.kernels[kernel_number(op)].text) and not self._stores_inside(op)

    def _movable(self, op: ir.Operation) -> bool:
        if st.kind(op) != "call" or "mlirc.kernel" not in op.attributes or any(w in op.attributes for w in WRITES):
            return False
        return st.RAGGED not in self.kernels[kernel_number(op)].text  # which has a loop of its own around its parallel one

    def _stores_inside(self, op: ir.Operation) -> bool:
        """Whether it calls a product that stores results inside of padding, which takes no turns; quicker than a verdict."""
        text = self.kernels[kernel_number(op)].text
        return "tensor.pad" in text and worth_trying(text)

    def _longest(self, first: ir.Operation, taken: set[ir.Operation]) -> _Link | None:
        """The chain that begins with a call."""
        best, calls = None, [first]
        while len(calls) < MOST_CALLS and (follower := self._follower(calls)) is not None and follower not in taken:
            calls = [*calls, follower]
            if (link := self._link(calls)) is None:
                continue
            possible, why_not = True, "" if any(map(_unknown, link.passed)) else stays_in_cache(sum(map(_bytes, link.passed)), self.target)
            if not why_not:  # which is quickly asked
                possible, why_not = self._verdict(link)
            if why_not:
                self.apart[self.place[first]] = first, why_not
            else:
                best = link
            if not possible:
                break  # nor with what follows
        return best

    def _follower(self, calls: Sequence[ir.Operation]) -> ir.Operation | None:
        """The first call that reads what the last of these makes, and nothing of which a call in between could change."""
        users = [u for r in calls[-1].results for u in self._users(r) if st.kind(u) == "call"]
        follower = min(users, key=self.place.__getitem__, default=None)
        if follower is None or not self._movable(follower) or self._stores_inside(follower):
            return None
        between = [op for op in self.order[self.place[calls[0]] : self.place[follower]] if st.kind(op) == "call"]
        return follower if all(map(self._movable, between)) else None

    def _users(self, value: ir.Value) -> list[ir.Operation]:
        """The ops that read a value, or reshaped views of it."""
        out = []
        for use in value.uses:
            op = st.operation(use.owner)
            out += self._users(op.results[0]) if op.name in RESHAPES else [op]
        return out

    def _link(self, calls: list[ir.Operation]) -> _Link | None:
        """The chain of these calls, if there is one."""
        made = [r for op in calls for r in op.results]
        users = {r: self._users(r) for r in made}
        passed = [r for r in made if users[r] and all(u in calls for u in users[r])]
        results = [r for r in made if r not in passed]
        operands = [v for op in calls for v in op.operands if unshaped(v) not in passed]
        numbers = [v for op in calls for x in op.operands if unshaped(x) in passed for v in _sizes_of_views(x)]
        # Whatever reads the results comes after all of the chain.
        early = any(self.place[u] <= self.place[calls[-1]] for r in results for u in users[r])
        if early or not all(users.values()) or any(unshaped(v) in made for v in operands if st.is_tensor(v)):
            return None
        if any(map(_unknown, passed)) and any(map(pitch_of, passed)) or not all(st.is_tensor(v) or isinstance(v.type, ir.IndexType) for v in operands):
            return None
        operands = [self.same.get(v, v) for v in (*operands, *numbers)]
        return _Link(calls, list(dict.fromkeys(operands)), passed, results)

    def _key(self, link: _Link) -> Key:
        """What a chain does: those with the same one are the same kernel, but for reshapes that leave all elements in their places."""
        places = {v: n for n, v in enumerate((*link.operands, *(r for op in link.calls for r in op.results)))}
        tied = [tuple(places[v if (v := self.same.get(x, x)) in places else unshaped(v)] for x in op.operands) for op in link.calls]
        tied += [tuple(places[self.same.get(v, v)] for x in op.operands if x not in places for v in _sizes_of_views(x)) for op in link.calls]
        return tuple(map(kernel_number, link.calls)), tuple(tied), tuple((places[r], _spread(r) is not None) for r in link.passed)

    def _verdict(self, link: _Link) -> tuple[bool, str]:
        """Whether the calls can take turns, and why they do not; empty if they do."""
        key = self._key(link)
        if key not in self.known:
            self.known[key] = self._judged(link)
        return self.known[key]

    def _judged(self, link: _Link) -> tuple[bool, str]:
        try:
            chained = ChainFunction(self._module(link, located=False))
            if heavy := reads_in_common(chained.parts, self.target):
                return False, heavy
            strategies = [self._strategy(part, link, n) for n, part in enumerate(chained.parts)]
        except CompileError as e:  # whoever compiles the kernels says so
            return False, e.reason
        chosen = choose(chained, strategies, self.target)
        return (False, chosen) if isinstance(chosen, str) else (True, too_few_chunks(chosen))

    def _strategy(self, part: KernelFunction, link: _Link, n: int) -> Strategy:
        """Of part n of a chain: longer ones begin as shorter ones do."""
        call = link.calls[n]
        key = kernel_number(call), *(v in link.passed and _spread(v) is not None for v in (*call.operands, *call.results))
        if key not in self.strategies:
            self.strategies[key] = select_strategy(part, self.target)
        return self.strategies[key]

    def _replace(self, link: _Link) -> list[ir.Operation]:
        """Put a call of the chain where its last call is; returns what is dead then, users first."""
        link.operands = [self.replaced.get(v, v) for v in link.operands]
        index = self._kernel(link)
        with ir.InsertionPoint(link.calls[-1]), ir.Location.fused([op.location for op in link.calls]):
            call = func.CallOp([v.type for v in link.results], self.kernels[index].name, link.operands)
        op = st.operation(call)
        op.attributes["mlirc.kernel"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), index)
        sizes = {r: s for c in link.calls for r, s in zip(c.results, ir.ArrayAttr(c.attributes["mlirc.sizes"]))}
        op.attributes["mlirc.sizes"] = ir.ArrayAttr.get([sizes[r] for r in link.results])
        set_pitches(op, [pitch_of(r) for r in link.results])
        for old, new in zip(link.results, op.results):
            old.replace_all_uses_with(new)
            self.replaced[old] = new
        dead = []
        for c in reversed(link.calls):
            dead += [v for r in c.results for v in self._views(r)]
            dead.append(c)
        return dead

    def _views(self, value: ir.Value) -> list[ir.Operation]:
        """All reshaped views of a value, users first."""
        views = [op for use in value.uses if (op := st.operation(use.owner)).name in RESHAPES]
        return [v for view in views for v in (*self._views(view.results[0]), view)]

    def _kernel(self, link: _Link) -> int:
        """The number of the chain's kernel."""
        key = self._key(link)
        if key not in self.numbers:
            self.numbers[key] = len(self.kernels)
            members = [self.kernels[kernel_number(op)] for op in link.calls]
            base, number = members[0].name.split("_", 1)[0], 0
            words = list(dict.fromkeys(re.sub(r"^k\d+_", "", k.name) for k in members))
            while (name := f"{base}{chr(ord('a') + number)}_chain_{'_'.join(words)}") in {k.name for k in self.kernels}:
                number += 1
            origins = [origin for k in members for origin in k.origins]
            text, located = (
                self._module(link, located).operation.get_asm(enable_debug_info=located, assume_verified=True) for located in (False, True)
            )
            self.kernels.append(Kernel(name, text, located, origins))
            kinds = [v.type for v in link.operands], [v.type for v in link.results]
            with ir.InsertionPoint(st.operation(self.function.parent).regions[0].blocks[0]), ir.Location.unknown():
                func.FuncOp(name, ir.FunctionType.get(*kinds), visibility="private")
        return self.numbers[key]

    def _module(self, link: _Link, located: bool) -> ir.Module:
        """What the kernel of a chain is, with the locations of its parts or without any."""
        with ir.Location.unknown():
            module = ir.Module.create()
            strides = []
            for n, call in enumerate(link.calls):
                part = self._parsed(kernel_number(call), located)
                with ir.InsertionPoint(module.body):
                    copy = st.operation(st.operation(part.body.operations[0]).clone())
                copy.attributes["sym_name"] = ir.StringAttr.get(f"part{n}")
                copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
                self._spread_rows(copy, link, n)
                strides += list(zip(link.calls[n].results, ir.ArrayAttr(copy.attributes["mlirc.result_strides"])))
            with ir.InsertionPoint(module.body):
                f = func.FuncOp(SYMBOL, ir.FunctionType.get([v.type for v in link.operands], [v.type for v in link.results]))
            f.operation.attributes[CHAIN] = ir.UnitAttr.get()
            f.operation.attributes["mlirc.result_strides"] = ir.ArrayAttr.get([dict(strides)[r] for r in link.results])
            inside: dict[ir.Value, ir.Value] = {}
            with ir.InsertionPoint(f.add_entry_block()):
                inside.update(zip(link.operands, f.arguments))

                def value(v: ir.Value) -> ir.Value:
                    v = self.same.get(v, v)
                    if v not in inside:
                        view = st.owner(v)
                        source = value(view.operands[0])  # type: ignore[union-attr]
                        copy = st.operation(view.clone())  # type: ignore[union-attr]
                        copy.operands[0] = source
                        for n, size in enumerate(list(copy.operands)[1:], 1):
                            copy.operands[n] = inside[self.same.get(size, size)]
                        inside[v] = copy.results[0]
                    return inside[v]

                for n, call in enumerate(link.calls):
                    operands = [value(v) for v in call.operands]
                    inside.update(zip(call.results, func.CallOp([r.type for r in call.results], f"part{n}", operands).results))
                func.ReturnOp([inside[r] for r in link.results])
            return module

    def _parsed(self, number: int, located: bool) -> ir.Module:
        """The module of a kernel, which nobody changes."""
        if (number, located) not in self.modules:
            kernel = self.kernels[number]
            text = kernel.located if located and kernel.located else kernel.text
            self.modules[number, located] = ir.Module.parse(text)
        return self.modules[number, located]

    def _spread_rows(self, part: ir.Operation, link: _Link, n: int) -> None:
        """Have the rows of what is passed begin with a line of the cache each, where nobody reads it reshaped."""
        call = link.calls[n]
        made = list(ir.ArrayAttr(part.attributes["mlirc.result_strides"]))
        given = list(ir.ArrayAttr(part.attributes["arg_attrs"])) if "arg_attrs" in part.attributes else [ir.DictAttr.get({}) for _ in call.operands]
        for m, v in enumerate(call.results):
            if v in link.passed and (strides := _spread(v)):
                made[m] = strides
        for m, v in enumerate(call.operands):
            if v in link.passed and (strides := _spread(v)):
                given[m] = ir.DictAttr.get({"mlirc.strides": strides})
        part.attributes["mlirc.result_strides"] = ir.ArrayAttr.get(made)
        part.attributes["arg_attrs"] = ir.ArrayAttr.get(given)
