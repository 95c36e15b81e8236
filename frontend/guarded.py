"""A compiled graph for finding wrong accesses (the option `guard_pages`): it runs on guarded copies of its arguments."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..passes.build_plan import PlannedGraph
from ..runtime import guards
from ..runtime.guarded import GuardedProgram, GuardedWeightTable
from ..runtime.guards import GuardedBlock
from ..runtime.program import Frame
from .imported import ImportedGraph
from .report import GraphReport
from .runner import Runner


@dataclass
class Guarded:
    """The program for one placement of the buffers, and what goes with it."""

    program: GuardedProgram
    weights: GuardedWeightTable | None


def guarded(
    planned: PlannedGraph,
    objects: dict[str, bytes],
    hosts: Sequence[Callable[[Frame], object]],
    names: Mapping[str, str],
    placement: str,
    perf: bool,
) -> Guarded:
    """The programs of a planned graph; `names` maps symbols of kernels to their names."""
    host_names = [h.name for h in planned.hosts]
    program = GuardedProgram(planned.plan, objects, hosts, placement=placement, names=names, host_names=host_names, perf=perf)
    if planned.weights is None:
        return Guarded(program, None)
    folded = GuardedProgram(planned.weights, objects, placement=placement, names=names, perf=perf)
    return Guarded(program, GuardedWeightTable(folded, planned.weight_bytes))


class GuardedRunner(Runner):
    """Runs the graph once for each placement. Outputs and inputs that the graph writes to are copied back from the last run."""

    def __init__(self, graph: ImportedGraph, runs: Sequence[Guarded], weight_inputs: Sequence[int], report: GraphReport) -> None:
        super().__init__(graph, runs[-1].program, runs[-1].weights, weight_inputs, report)
        self.runs = list(runs)

    def _execute(
        self, tensors: list[torch.Tensor], outputs: list[torch.Tensor], inputs: list[int], results: list[int], sizes: Sequence[int]
    ) -> None:
        for run in self.runs:
            # Every run draws the same random numbers.
            with torch.random.fork_rng(devices=[]) if run is not self.runs[-1] else contextlib.nullcontext():
                copies, blocks = self._run_once(run, tensors, outputs, sizes)
        done = set()
        for i in self.written:
            _, block, original = copies[i]
            if block.address not in done:
                ctypes.memmove(original, block.address, block.nbytes)
            done.add(block.address)
        for tensor, block in zip(outputs, blocks):
            ctypes.memmove(tensor.data_ptr(), block.address, block.nbytes)

    def _run_once(
        self, run: Guarded, tensors: list[torch.Tensor], outputs: list[torch.Tensor], sizes: Sequence[int]
    ) -> tuple[list[Any], list[GuardedBlock]]:
        placement = run.program.placement
        addresses = [t.data_ptr() for t in tensors]
        packed = run.weights.results(self._weights_of(addresses), self._weights_of(tensors)) if run.weights is not None else None
        names = [f"input {i}" for i in range(len(tensors))]
        copies = guards.copies(tensors, names, self.written, placement)
        blocks = [GuardedBlock(guards.extent(t), f"output {i}", placement) for i, t in enumerate(outputs)]
        inputs = [address for address, _, _ in copies] + (packed.addresses if packed is not None else [])
        run.program.run(inputs, [b.address for b in blocks], sizes)
        guards.check("a kernel of the graph", [b.address for b in blocks] + [b.address for _, b, _ in copies])
        return copies, blocks
