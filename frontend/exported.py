"""What `torch.export` hands over, as a graph that AOTAutograd could have made: functional, of ops that we lower, all tensors arguments."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from ..errors import CompileError
from ..runtime.artefact import MOST
from .decompositions import decompositions
from .dtypes import SUPPORTED
from .extents import normal
from .recurrent import _layers as layers

aten = torch.ops.aten
_KEPT = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass
class LiftedGraph:
    """`kept` are the placeholders whose tensors belong to the model, `arguments` those that a caller gives, with the names that the model's
    `forward` has for them. The graph returns new row-major tensors, called `results` after where they lie in what `forward` returns, that share
    no memory, and writes to arguments by `copy_` at its end. `ranges` has the limits of each symbol, None where there is none."""

    gm: torch.fx.GraphModule
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)


def lift(program: ExportedProgram, rng: str = "native") -> LiftedGraph:
    """The graph of a program, decomposed as for `torch.compile`; `rng` is the option.

    Raises CompileError for what a graph of C functions cannot have: buffers that it changes, objects, results that are no tensors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, about what torch itself calls
        names = _result_names(program)
        program = program.run_decompositions(_table(rng))
    signature = program.graph_signature
    out = LiftedGraph(program.graph_module)
    for node in out.gm.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        out.gm.graph.erase_node(node)  # an exported model gets addresses: what lies there is the caller's word
    places = out.gm.graph.find_nodes(op="placeholder")
    by_name = {n.name: n for n in places}
    for i, (place, spec) in enumerate(zip(places, signature.input_specs)):
        if spec.kind in _KEPT:
            out.kept[i] = _tensor_of(program, spec.target)
        elif spec.kind == InputKind.USER_INPUT:
            out.arguments[i] = place.name
        else:
            raise CompileError(f"the model keeps {spec.target or place.name}, a {spec.kind.name.lower()}: only tensors can be exported")
    output = out.gm.graph.output_node()
    results: list[Any] = []
    with out.gm.graph.inserting_before(output):
        for value, spec in zip(output.args[0], signature.output_specs):  # type: ignore[arg-type]
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                place = by_name[spec.target]
                copy = out.gm.graph.call_function(aten.copy_.default, (place, value))
                copy.meta["val"] = place.meta["val"]
            elif spec.kind == OutputKind.USER_OUTPUT:
                name = names.pop(0)
                if value is not None:
                    results.append(_own_memory(out.gm.graph, value))
                    out.results.append(name)
            else:
                raise CompileError(
                    f"the model changes {spec.target}, which it keeps, and an exported one has no state: let `forward` take it as an argument, "
                    "which may be written to" + (", or call `eval()` before exporting" if "running_" in str(spec.target) else "")
                )
    output.args = (tuple(results),)
    out.gm.recompile()
    out.ranges = {str(normal(s)): _limits(r) for s, r in program.range_constraints.items()}
    return out


def _limits(found: Any) -> tuple[int | None, int | None]:
    """Of a torch `ValueRanges`, both inclusive; None for a limit that no size in memory reaches."""
    return None if found.lower < -MOST else int(found.lower), None if found.upper > MOST else int(found.upper)


def _result_names(program: ExportedProgram) -> list[str]:
    """`logits`, `hidden_states.0`, ...: the keys and numbers that lead to each result."""
    spec = program.call_spec.out_spec
    if spec is None:
        return ["output"] * len(program.graph_signature.output_specs)
    paths = [path for path, _ in pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))[0]]
    return [".".join(re.sub(r"\W", "", pytree.keystr((key,))) for key in path) or "output" for path in paths]


def shape_env(gm: torch.fx.GraphModule) -> Any:
    """What torch knows of the symbols in a graph, None if there are none."""
    for node in gm.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
            for n in sizes:
                if isinstance(n, torch.SymInt):
                    return n.node.shape_env
    return None


def conditions(gm: torch.fx.GraphModule) -> list[sympy.Basic]:
    """What the graph takes for granted of its symbols, besides their ranges: `Eq(Mod(s0, 2), 0)`."""
    env = shape_env(gm)
    if env is None:
        return []
    found = [normal(env.replace(g.expr)) for g in env.guards]
    return [e for e in dict.fromkeys(found) if isinstance(e, sympy.Basic)]


def _tensor_of(program: ExportedProgram, target: str | None) -> torch.Tensor:
    found = program.state_dict.get(target, program.constants.get(target))  # type: ignore[arg-type]
    if not isinstance(found, torch.Tensor) or found.device.type != "cpu" or found.layout != torch.strided:
        what = f"a tensor on {found.device}, {found.layout}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
        raise CompileError(f"the model keeps {target}, {what}: only dense tensors on the CPU can be exported")
    return found.detach()


def _own_memory(graph: torch.fx.Graph, value: Any) -> torch.fx.Node:
    """A copy of a result, which costs nothing where it has memory of its own already."""
    if not isinstance(value, torch.fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
        raise CompileError(f"the model returns the number {value}: only tensors can be results of an exported one")
    if value.meta["val"].dtype not in SUPPORTED:
        raise CompileError(f"the model returns a tensor of {value.meta['val'].dtype}, which kernels cannot make")
    node = graph.call_function(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    with value.meta["val"].fake_mode:
        node.meta["val"] = value.meta["val"].detach().clone(memory_format=torch.contiguous_format)
    return node


@functools.cache
def _table(rng: str) -> dict[Any, Callable[..., Any]]:
    """All composite ops, which AOTAutograd's dispatcher takes apart by itself, and what we have it take apart."""
    from torch._export.utils import _collect_all_valid_cia_ops, _get_decomp_for_cia

    composite = {op: _get_decomp_for_cia(op) for op in _collect_all_valid_cia_ops()}
    recurrent = {
        aten.lstm.input: functools.partial(layers, "lstm"),
        aten.gru.input: functools.partial(layers, "gru"),
        aten.rnn_tanh.input: functools.partial(layers, "tanh"),
        aten.rnn_relu.input: functools.partial(layers, "relu"),
    }
    return {**composite, **decompositions(rng), **recurrent}
