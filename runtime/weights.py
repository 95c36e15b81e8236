"""What is computed from weights alone: once for all graphs of a process, kept, and noticed when it is stale.

Every call compares the weights' addresses and `_version` counters with those that the kept results were made from. What
these do not see (writes through `.data` or a numpy view) a native fingerprint over a few elements of each weight finds
nearly always, and `invalidate()` always.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .abi import ALIGNMENT
from .loader import Library, assemble
from .memory import Block
from .program import Program
from .recipes import recipes

if TYPE_CHECKING:
    import torch

MAX_ENTRIES = 64
"""Sets of weights that one compiled graph keeps results for (instances of a block that share the graph)."""

SAMPLES = 3
"""Words per weight in the fingerprint: first, middle, last."""

_epoch = 0
_computing = threading.Lock()


def invalidate() -> None:
    """Forget everything computed from weights; the next call of each compiled model computes it again.

    For writes to a weight that torch does not count (`w.data[...] = x`, `w.numpy()[...] = x`) and that the fingerprint may
    have missed because they change a few elements only.
    """
    global _epoch
    _epoch += 1


@dataclass
class Results:
    """What was computed from one set of weights; its memory lives as long as this object."""

    epoch: int
    versions: tuple[int, ...]
    fingerprint: int
    samples: Any
    memory: Sequence[Any]
    addresses: list[int]
    owners: list[Any]


@dataclass(eq=False)
class Kept:
    """One result, for all graphs that want the same from the same weights, the `owners`: as long as their state is this one."""

    address: int
    block: Block
    state: Hashable
    owners: list[weakref.ref[torch.Tensor]]

    def holds(self, state: Hashable) -> bool:
        return self.state == state and all(o() is not None for o in self.owners)


_kept: weakref.WeakValueDictionary[Hashable, Kept] = weakref.WeakValueDictionary()
"""Results in use, by recipe and the addresses of its weights."""


class WeightTable:
    """Results of the weights' program for each set of weights that a graph is called with."""

    def __init__(self, program: Program, nbytes: Sequence[int]) -> None:
        self.program = program
        self.nbytes = list(nbytes)
        self._recipes = recipes(program.plan)
        self._entries: dict[tuple[int, ...], Results] = {}

    def results(self, pointers: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> Results:
        """The results for these weights, computed now if there are none, or stale ones. To be held while they are used."""
        entry = self._entries.get(pointers)
        versions = _versions(tensors)
        if (
            entry is None
            or entry.versions != versions
            or entry.epoch != _epoch
            or (entry.samples is not None and _fingerprint()(entry.samples, len(entry.samples)) != entry.fingerprint)
        ):
            entry = self._compute(pointers, versions, tensors)
        return entry

    def memory(self) -> int:
        """Bytes that the kept results take, those that other graphs share included."""
        return sum(self.nbytes) * len(self._entries)

    def _compute(self, pointers: tuple[int, ...], versions: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> Results:
        with _computing:
            for key in list(self._entries)[: 1 - MAX_ENTRIES]:
                self._entries.pop(key, None)
            samples = _sample_addresses(tensors)
            fingerprint = _fingerprint()(samples, len(samples))
            # A new entry, never the old memory: a call that is still running reads that.
            memory, addresses = self._fill(pointers, tensors)
            # Other weights may come to lie at the same address: these results end with the first of their weights.
            forget = functools.partial(_forget, weakref.ref(self), pointers)
            owners = [weakref.ref(t, forget) for t in tensors]
            entry = self._entries[pointers] = Results(_epoch, versions, fingerprint, samples, memory, addresses, owners)
            return entry

    def _fill(self, pointers: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> tuple[Sequence[Any], list[int]]:
        """What keeps the results in memory, and the address of each: those of another graph that has them, or else new ones."""
        keys = [r.of(pointers) for r in self._recipes]
        weights = [[tensors[i] for i in r.weights()] for r in self._recipes]
        states = [_state(w) for w in weights]
        found = [_kept.get(key) for key in keys]
        results = [k if k is not None and k.holds(state) else None for k, state in zip(found, states)]
        if any(r is None for r in results):
            # The program computes all; what is there already goes to memory that is not kept. One block for the rest: large
            # enough, as a rule, to lie in huge pages, which hardly any single weight is.
            new, again = ([n if (r is None) == missing else 0 for n, r in zip(self.nbytes, results)] for missing in (True, False))
            (block, addresses), (_unused, others) = _block(new), _block(again)
            self.program.run(pointers, [a if r is None else o for r, a, o in zip(results, addresses, others)])
            for i, key in enumerate(keys):
                if results[i] is None:
                    results[i] = _kept[key] = Kept(addresses[i], block, states[i], list(map(weakref.ref, weights[i])))
        return results, [r.address for r in results if r is not None]


def _state(weights: Sequence[torch.Tensor]) -> Hashable:
    """What changes when other tensors come to lie at the same addresses, or these are written to."""
    samples = _sample_addresses(weights)
    return _epoch, _versions(weights), _fingerprint()(samples, len(samples)), tuple(map(id, weights))


def _block(nbytes: Sequence[int]) -> tuple[Block, list[int]]:
    """A block with room for pieces of so many bytes, and their addresses."""
    ends = list(itertools.accumulate(_aligned(n) for n in nbytes))
    block = Block(ends[-1] if ends else 0)
    return block, [block.address + end - _aligned(n) for n, end in zip(nbytes, ends)]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _forget(table: weakref.ref[WeightTable], pointers: tuple[int, ...], _: object) -> None:
    alive = table()
    if alive is not None:
        alive._entries.pop(pointers, None)


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    try:
        return tuple([t._version for t in tensors])
    except RuntimeError:  # inference tensors have none
        return tuple(0 if t.is_inference() else t._version for t in tensors)


def _sample_addresses(tensors: Sequence[torch.Tensor]) -> Any:
    places = []
    for t in tensors:
        start, n = t.data_ptr(), t.untyped_storage().nbytes() - t.storage_offset() * t.element_size()
        if n >= 8 and t.numel():
            last = min(n, t.numel() * t.element_size()) - 8
            places += [start + last * k // (SAMPLES - 1) for k in range(SAMPLES)] if last > 8 else [start]
    return (ctypes.c_int64 * len(places))(*places)


_IR = """
define i64 @mlirc_fingerprint(ptr %places, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %h = phi i64 [ 1469598103934665603, %entry ], [ %mixed, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %slot = getelementptr i64, ptr %places, i64 %i
  %address = load i64, ptr %slot
  %place = inttoptr i64 %address to ptr
  %word = load i64, ptr %place, align 1
  %xored = xor i64 %h, %word
  %mixed = mul i64 %xored, 1099511628211
  %next = add i64 %i, 1
  br label %loop
done:
  ret i64 %h
}
"""


@functools.cache
def _fingerprint_library() -> Library:
    return Library({"mlirc_fingerprint": assemble(_IR)})


@functools.cache
def _fingerprint() -> Any:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    return kind(_fingerprint_library().address("mlirc_fingerprint"))
