"""What is computed from weights alone: once for all graphs of a process, kept, and noticed when it is stale.

Every call compares the weights' addresses and `_version` counters with those that the kept results were made from. What
these do not see (writes through `.data` or a numpy view, fused optimisers, other memory at the same address) a native
fingerprint over a few elements of each weight finds nearly always, and `invalidate()` always. Whoever writes to one weight in
such a way writes to others too, as a rule: where a fingerprint finds it, the other weights of that graph are not trusted either.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .abi import aligned
from .fingerprint import Samples
from .memory import Block
from .program import Program
from .recipes import recipes
from .storage import Storage

if TYPE_CHECKING:
    import torch

MAX_ENTRIES = 1024
"""Sets of weights that one compiled graph keeps results for (instances of a block that share the graph)."""

MAX_PLACES = 4
"""Of these, for the same tensors: `p.data = ...` moves them, and may move them back (moving averages)."""

_epoch = 0
_computing = threading.Lock()


def invalidate() -> None:
    """Forget everything computed from weights; the next call of each compiled model computes it again.

    For writes to a weight that torch does not count (`w.data[...] = x`, `w.numpy()[...] = x`, any to a parameter made under
    `inference_mode`) and that the fingerprint may have missed because they change a few rows, columns or elements only.
    """
    global _epoch
    _epoch += 1


@dataclass
class Results:
    """What was computed from one set of weights; its memory lives as long as this object."""

    epoch: int
    versions: tuple[int, ...]
    fingerprint: int
    samples: Samples
    memory: Sequence[Any]
    addresses: list[int]
    tensors: tuple[int, ...]
    """Their ids. Weak references go to the storages: `torch.utils.swap_tensors` refuses a tensor that has any."""
    owners: list[weakref.ref[torch.UntypedStorage]]


@dataclass(eq=False)
class Kept:
    """One result, for all graphs that want the same from the same weights: as long as these live, and their state is this one."""

    address: int
    block: Block
    weights: list[Weight]
    state: Hashable

    def holds(self, state: Hashable) -> bool:
        return self.state == state and all(w.storage.alive() for w in self.weights)


@dataclass(eq=False)
class Weight:
    """What is known of a tensor since it was looked at last. `doubts` counts the times that it may have been written to unseen."""

    owner: weakref.ref[torch.UntypedStorage]
    storage: Storage
    version: int
    fingerprint: int
    doubts: int = 0

    def state(self) -> Hashable:
        return id(self), self.storage.id, self.version, self.fingerprint, self.doubts


_kept: weakref.WeakValueDictionary[Hashable, Kept] = weakref.WeakValueDictionary()
"""Results in use, by recipe and the addresses of its weights."""

_known: dict[int, Weight] = {}
"""Weights by the id of their tensor."""


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
            or entry.tensors != tuple(map(id, tensors))
            or entry.epoch != _epoch
            or entry.samples.fingerprint() != entry.fingerprint
        ):
            entry = self._compute(pointers, versions, tensors)
        return entry

    def memory(self) -> int:
        """Bytes that the kept results take, those that other graphs share included."""
        return sum(self.nbytes) * len(self._entries)

    def _compute(self, pointers: tuple[int, ...], versions: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> Results:
        with _computing:
            ids = tuple(map(id, tensors))
            before = self._make_room(pointers, ids)
            usable = before is not None and before.tensors == ids and before.samples.in_place()
            samples = before.samples if usable else Samples(tensors)  # type: ignore[union-attr]
            fingerprint = samples.fingerprint()
            # A new entry, never the old memory: a call that is still running reads that.
            memory, addresses = self._fill(pointers, tensors, samples)
            # Other weights may come to lie at the same address: these results end with the first storage of their weights.
            forget = functools.partial(_forget, weakref.ref(self), pointers)
            owners = [weakref.ref(t.untyped_storage(), forget) for t in tensors]
            entry = Results(_epoch, versions, fingerprint, samples, memory, addresses, ids, owners)
            self._entries.pop(pointers, None)  # to be the last one
            self._entries[pointers] = entry
            return entry

    def _make_room(self, pointers: tuple[int, ...], tensors: tuple[int, ...]) -> Results | None:
        """Forget what was computed longest ago if there is much; what there is for these weights."""
        entries = dict(self._entries)
        before = entries.pop(pointers, None)
        moved = [key for key, entry in entries.items() if entry.tensors == tensors]
        for key in moved[: 1 - MAX_PLACES] + list(entries)[: 1 - MAX_ENTRIES]:
            self._entries.pop(key, None)
        return before

    def _fill(self, pointers: tuple[int, ...], tensors: Sequence[torch.Tensor], samples: Samples) -> tuple[Sequence[Any], list[int]]:
        """What keeps the results in memory, and the address of each: those of another graph that has them, or else new ones."""
        keys = [r.of(pointers) for r in self._recipes]
        known = _look_at(tensors, samples)
        weights = [[known[i] for i in r.weights()] for r in self._recipes]
        states = [(_epoch, tuple([w.state() for w in of])) for of in weights]
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
                    results[i] = _kept[key] = Kept(addresses[i], block, weights[i], states[i])
        return results, [r.address for r in results if r is not None]


def _look_at(tensors: Sequence[torch.Tensor], samples: Samples) -> list[Weight]:
    """What is known of the weights of a graph, now."""
    weights = []
    written = False
    for t, storage, version, fingerprint in zip(tensors, samples.storages, _versions(tensors), samples.each()):
        weight = _known.get(id(t))
        if weight is None or weight.storage.id != storage.id:
            owner = weakref.ref(t.untyped_storage(), functools.partial(_forget_weight, id(t)))
            weight = _known[id(t)] = Weight(owner, storage, version, fingerprint)
        written = written or (weight.version == version and weight.fingerprint != fingerprint)
        weight.version, weight.fingerprint = version, fingerprint
        weights.append(weight)
    for weight in weights if written else ():
        weight.doubts += 1
    return weights


def _block(nbytes: Sequence[int]) -> tuple[Block, list[int]]:
    """A block with room for pieces of so many bytes, and their addresses."""
    ends = list(itertools.accumulate(aligned(n) for n in nbytes))
    block = Block(ends[-1] if ends else 0)
    return block, [block.address + end - aligned(n) for n, end in zip(nbytes, ends)]


def _forget(table: weakref.ref[WeightTable], pointers: tuple[int, ...], _: object) -> None:
    alive = table()
    if alive is not None:
        alive._entries.pop(pointers, None)


def _forget_weight(key: int, owner: weakref.ref[torch.UntypedStorage]) -> None:
    weight = _known.get(key)
    if weight is not None and weight.owner is owner:
        _known.pop(key, None)


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    try:
        return tuple([t._version for t in tensors])
    except RuntimeError:  # inference tensors have none
        return tuple(0 if t.is_inference() else t._version for t in tensors)
