"""Ops that hold graphs of their own.

    invoke_subgraph(graph, name, x)           the nodes of the graph, in its place
    flex_attention(q, k, v, score, mask)      products and a softmax, as torch's own definition has them, with the graphs of score and mask
    cond(p, graph, graph, x), while_loop,     a call of torch's function, which gets compiled graphs (`compiled_calls`)
    scan, map
    auto_functionalized(op, x)                a call of torch's function: an op of others that writes to its arguments

The first two are expanded before a graph is imported, so that what they hold is fused with what is around it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .decompositions import decompositions
from .extents import normal
from .imported import AtenCall, Subgraph

ops = torch.ops.higher_order

aten = torch.ops.aten

CONTROL_FLOW = (ops.cond, ops.while_loop, ops.scan, ops.map_impl)
"""Those that decide at run time what runs, and how often."""

WRITERS = (ops.auto_functionalized, ops.auto_functionalized_v2)
"""Calls of ops of others that write to their arguments, which get copies."""

CALLED = (*CONTROL_FLOW, *WRITERS)
"""What torch's own functions answer, in their place in the graph."""


def expand_subgraphs(gm: torch.fx.GraphModule) -> None:
    """Put graphs that are called in the place of their calls, in place; those of `CALLED` stay."""
    calls = [n for n in gm.graph.nodes if n.target in (ops.invoke_subgraph, ops.flex_attention)]
    try:
        for node in calls:
            if node.target is ops.invoke_subgraph:
                sub = getattr(gm, node.args[0].target)
                expand_subgraphs(sub)
                _splice(gm, node, sub, node.args[2:], anew=True)
            else:
                _splice(gm, node, *_attention(gm, node))
    finally:  # the graph is one in any case, and ATen may have to run it
        if calls:
            gm.graph.eliminate_dead_code()
            gm.recompile()


def _attention(gm: torch.fx.GraphModule, node: torch.fx.Node) -> tuple[torch.fx.GraphModule, list[torch.fx.Node]]:
    """torch's definition of `flex_attention` as a graph, and the nodes that it is called with."""
    given = [n for n in node.all_input_nodes if n.op != "get_attr" or isinstance(n.meta.get("val"), torch.Tensor)]

    def call(*values: Any) -> Any:
        known = dict(zip(given, values))
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: known[n] if n in known else getattr(gm, n.target))
        return math_attention(*args, **kwargs)

    values = [n.meta["val"] for n in given]
    mode = torch._guards.detect_fake_mode(values)
    assert mode is not None
    table = {**decompositions(), aten._to_copy.default: _number_as_tensor}
    with mode:
        traced = make_fx(lambda *values: _as_described(call(*values), node.meta["val"]), decomposition_table=table)(*values)
        for n, expected in zip(traced.graph.output_node().args[0], node.meta["val"]):  # type: ignore[arg-type]
            n.meta["val"] = torch.empty_strided(expected.shape, expected.stride(), dtype=expected.dtype)  # callers go by those of the query
    for n in traced.graph.nodes:
        n.meta.update({name: node.meta[name] for name in ("stack_trace", "nn_module_stack") if name in node.meta})
    return traced, given


def _as_described(results: Sequence[torch.Tensor], described: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """In the dtypes that the rest of the graph was traced with: torch says that sums of exponentials of f64 are f32."""
    return [x.to(d.dtype) for x, d in zip(results, described, strict=True)]


def _number_as_tensor(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """A decomposition of `_to_copy` for numbers, which vmap hands to it in place of tensors."""
    return NotImplemented if isinstance(x, torch.Tensor) else aten.scalar_tensor.default(x, dtype=dtype)


def _splice(gm: torch.fx.GraphModule, call: torch.fx.Node, sub: torch.fx.GraphModule, arguments: Sequence[Any], anew: bool = False) -> None:
    """The nodes of `sub` in front of `call`, whose results are read instead of it.

    `anew`: with fake tensors of their own (`meta["val"]`), for a graph of several calls. These tell what shares memory, and the sizes of a call.
    """
    env: dict[torch.fx.Node, Any] = dict(zip(sub.graph.find_nodes(op="placeholder"), arguments))
    with gm.graph.inserting_before(call):
        results = gm.graph.graph_copy(sub.graph, env)
    for n, copy in env.items():
        if n.op == "get_attr":
            copy.target = _free_name(gm, n.target)
            setattr(gm, copy.target, getattr(sub, n.target))
        elif anew and n.op != "placeholder":
            copy.meta["val"] = _value(copy)
    _replace(call, results)


def _value(node: torch.fx.Node) -> Any:
    """What a node gives for what its arguments are."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"] if "val" in n.meta else getattr(n.graph.owning_module, n.target))
    mode = torch._guards.detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    if mode is None:
        return node.target(*args, **kwargs)  # type: ignore[operator]
    with mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _free_name(gm: torch.fx.GraphModule, wanted: Any) -> str:
    name, n = f"{wanted}".replace(".", "_"), 0
    while hasattr(gm, name):
        name, n = f"{wanted}_{n}".replace(".", "_"), n + 1
    return name


def _replace(node: torch.fx.Node, results: Any) -> None:
    """Read results instead of the parts of a node."""
    for user in list(node.users):
        assert user.target is operator.getitem, f"{node.target} is read as a whole by {user.format_node()}"
        part = results[user.args[1]]
        if isinstance(part, (tuple, list)):
            _replace(user, part)
            continue
        if isinstance(part, torch.fx.Node):
            user.replace_all_uses_with(part)
        else:
            _replace_by_number(user, part)
        user.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)


def _replace_by_number(node: torch.fx.Node, number: Any) -> None:
    for user in list(node.users):
        user.args, user.kwargs = torch.fx.map_arg((user.args, user.kwargs), lambda n: number if n is node else n)  # type: ignore[assignment]


def offsets_within_bases(node: torch.fx.Node, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of a writer's keyword arguments that say where views of its bases begin: behind the bases, and not behind their storages.

    A base is handed over in memory that begins with it: an input that lies further back in its storage does not any more.
    """
    out = {}
    for name, value in arguments.items():
        place = f"{name.removesuffix(_OFFSET)}_base_index"
        if name.endswith(_OFFSET) and place in arguments:
            base = node.kwargs["_all_bases"][arguments[place]]  # type: ignore[index]
            out[name] = normal(value - normal(base.meta["val"].storage_offset()))  # type: ignore[union-attr]
    return out


_OFFSET = "_storage_offset"


def compiled_calls(calls: Sequence[AtenCall], compiler: Callable[[torch.fx.GraphModule, list[Any]], Callable[[list[Any]], list[Any]]]) -> None:
    """Compile the graphs that ops left to torch call."""
    for call in calls:
        call.arguments = pytree.tree_map(functools.partial(_callable, compiler=compiler), call.arguments, is_leaf=lambda x: isinstance(x, Subgraph))


def _callable(x: Any, compiler: Callable[..., Any]) -> Any:
    if not isinstance(x, Subgraph):
        return x
    graph = torch.fx.Graph()  # of its own: another call may have the same one
    results: Any = graph.graph_copy(x.gm.graph, {})
    single = not isinstance(results, (tuple, list))
    graph.output((results,) if single else results)  # the condition of a loop is no tuple
    inputs = [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]
    # What torch knows of the graph around it (which of its placeholders are weights, which outputs are views) is not so of this one.
    with torch._guards.tracing(None):
        run = compiler(torch.fx.GraphModule(x.gm, graph), inputs)

    def call(*args: Any) -> Any:
        results = run(list(args))
        return results[0] if single else tuple(results)

    return call
