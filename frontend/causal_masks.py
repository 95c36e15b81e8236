"""Masks that are computed of nothing but numbers, and let each query see the keys up to its own place, become `is_causal`.

    %le = le(arange(n), arange(n)[:, None])
    %mask = where(%le, 0.0, -inf)                        ->    attention(%q, %k, %v, is_causal=True)
    attention(%q, %k, %v, attn_mask=%mask)

So `transformers` makes them of causal models in every layer. A mask is read then, and one for each layer kept for the backward pass, where
nobody knows what it hides; gradients of causal attention leave that out (`ops.attention_gradients`).
"""

from __future__ import annotations

import contextlib

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

aten = torch.ops.aten

CAUSAL_AT = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 4,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 7,
}
"""Where `is_causal` is among the arguments, behind the number of the dropout."""
QUERY_AT = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 0,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 1,
}
"""Where the queries are, in front of the keys."""

MOST_ELEMENTS = 1 << 24
"""Of a value that is looked at: masks of 4096 tokens."""


def name_causal_masks(gm: torch.fx.GraphModule) -> int:
    """Rewrite a functional ATen graph in place; returns how many nodes were changed."""
    numbers = _Numbers(gm.graph)
    causal: dict[tuple[int, int, int], bool] = {}
    changed = 0
    for node in gm.graph.nodes:
        mask = node.kwargs.get("attn_mask") if node.target in CAUSAL_AT else None
        if mask is None:
            continue
        at = CAUSAL_AT[node.target]
        q, k = (n.meta["val"] for n in node.args[QUERY_AT[node.target] :][:2])
        queries, keys = q.shape[2], k.shape[2]
        if not isinstance(queries, int) or not isinstance(keys, int) or (len(node.args) > at and node.args[at]):
            continue
        if (number := numbers.number(mask)) is None:
            continue
        key = number, queries, keys
        if key not in causal:
            with unset_fake_temporarily(), torch.no_grad():
                value = numbers.value(number)
                causal[key] = value is not None and _is_causal(value, queries, keys)
        if causal[key]:
            node.args = (*node.args[: at - 1], *(node.args[at - 1 : at] or (0.0,)), True, *node.args[at + 1 :])
            node.kwargs = {name: v for name, v in node.kwargs.items() if name != "attn_mask"}
            changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


class _Numbers:
    """Values that are computed of numbers alone, each once: every layer has its own nodes for the same ones."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._place = {n: i for i, n in enumerate(graph.nodes)}
        self._number: dict[torch.fx.Node, int] = {}
        self._known: dict[str, int] = {}
        self._makers: list[torch.fx.Node] = []
        self._values: dict[int, torch.Tensor | None] = {}

    def number(self, node: torch.fx.Node) -> int | None:
        """That of a node's value, the same for those that are computed in the same way; None if it depends on arguments, on chance, or is too much."""
        above, left = {node}, [node]
        while left:
            n = left.pop()
            if n not in self._number and not _is_of_numbers(n):
                return None
            new = [i for i in n.all_input_nodes if i not in above and n not in self._number]
            above.update(new)
            left += new
        for n in sorted(above - self._number.keys(), key=self._place.__getitem__):
            how = repr((n.target, torch.fx.map_arg((n.args, n.kwargs), lambda i: f"%{self._number[i]}")))
            self._number[n] = self._known.setdefault(how, len(self._makers))
            if self._number[n] == len(self._makers):
                self._makers.append(n)
        return self._number[node]

    def value(self, number: int) -> torch.Tensor | None:
        """None where an op raises, which it is for the program to do. Makers come after those of what they read."""
        needed, left = {number}, [number]
        while left:
            new = {self._number[i] for i in self._makers[left.pop()].all_input_nodes} - needed
            needed |= new
            left += new
        for k in sorted(needed - self._values.keys()):
            n = self._makers[k]
            self._values[k] = None
            if all(self._values[self._number[i]] is not None for i in n.all_input_nodes):
                args, kwargs = torch.fx.map_arg((n.args, n.kwargs), lambda i: self._values[self._number[i]])
                with contextlib.suppress(Exception):
                    self._values[k] = n.target(*args, **kwargs)  # type: ignore[operator]
        return self._values[number]


def _is_of_numbers(n: torch.fx.Node) -> bool:
    """Whether a node makes one tensor of at most `MOST_ELEMENTS` from numbers, or from tensors that may be so."""
    target, value = n.target, n.meta.get("val")
    if n.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags or torch.Tag.data_dependent_output in target.tags:
        return False
    return isinstance(value, FakeTensor) and all(isinstance(s, int) for s in value.shape) and value.numel() <= MOST_ELEMENTS


def _is_causal(mask: torch.Tensor, queries: int, keys: int) -> bool:
    """Whether a mask (True or 0 where a query sees a key, else False or so low that nothing is left) is that of `is_causal`."""
    if mask.dim() < 2 or tuple(mask.shape[-2:]) != (queries, keys):
        return False
    expected = torch.ones(queries, keys, dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return bool((mask == expected).all())
    if not mask.dtype.is_floating_point:
        return False
    # Scores of f16 are f32, beside which its lowest number is not much.
    return bool(torch.where(expected, mask == 0, mask <= torch.finfo(torch.bfloat16).min).all())
