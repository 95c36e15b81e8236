"""A graph that cannot be compiled, run node by node through ATen."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.fx

from . import aten
from .imported import AtenCall, source_of
from .report import AtenNode, GraphReport


class EagerRunner:
    """Takes one list of arguments and clears it, as `runner.Runner` does."""

    def __init__(self, gm: torch.fx.GraphModule, reason: str, direction: str, seconds: dict[str, float]) -> None:
        self._boxed_call = True  # on the object: Dynamo copies its attributes to a wrapper
        self.gm = gm
        nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
        self.calls = {n: _call(n, reason) for n in nodes}
        left = [AtenNode(n.name, str(n.target), reason, c.source, c.spent) for n, c in self.calls.items()]
        self.report = GraphReport(direction, len(nodes), left, [], len(nodes), 0, 0, "0 bytes", seconds)

    def __call__(self, args: list[Any]) -> Any:
        mine = list(args)
        args.clear()
        if aten.is_profiling():
            return _Timed(self.gm, self.calls).run(*mine)
        return self.gm.forward(*mine)


class _Timed(torch.fx.Interpreter):
    def __init__(self, gm: torch.fx.GraphModule, calls: dict[torch.fx.Node, AtenCall]) -> None:
        super().__init__(gm)
        self.calls = calls

    def run_node(self, n: torch.fx.Node) -> Any:
        start = time.perf_counter()
        try:
            return super().run_node(n)
        finally:
            if n in self.calls:
                self.calls[n].spent.seconds += time.perf_counter() - start


def _call(n: torch.fx.Node, reason: str) -> AtenCall:
    # Reports are kept: they must not hold the graph, nor its constants.
    return AtenCall(n.name, n.target, ((), {}), [], [], True, reason, n.name, source_of(n))
