"""Arguments that share elements though AOTAutograd says they share none.

It orders reads and writes of arguments that overlap, and asks torch which do. For windows of one matrix the answer can be wrong:

    a, b = m[:3, :3], m[1:, 2:5]          of m with rows of 6 elements: m[1, 2] and m[2, 2] are in both

A graph that writes to `a` and reads `b` would then read them as they were, with every backend.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
import torch.fx
from numpy.lib.stride_tricks import as_strided
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._guards import TracingContext

from ..errors import CompileError


def check_overlaps(gm: torch.fx.GraphModule) -> None:
    """Raises CompileError if Dynamo's graph `gm`, which AOTAutograd has just traced, has such arguments and writes to one."""
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    if metadata is None or not any(i.mutates_data for i in metadata.input_info):
        return
    places = gm.graph.find_nodes(op="placeholder")
    known = len(places) == len(metadata.input_info)
    sharing: dict[int, list[tuple[torch.fx.Node, torch.Tensor, bool]]] = {}
    for i, node in enumerate(places):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and _is_static(value):
            written = not known or metadata.input_info[i].mutates_data
            sharing.setdefault(value.untyped_storage()._cdata, []).append((node, value, written))
    for of_one_storage in sharing.values():
        for (m, a, a_written), (n, b, b_written) in itertools.combinations(of_one_storage, 2):
            if (a_written or b_written) and not compute_overlapping_tensors([a, b], symbolic=False) and _overlap(a, b):
                raise CompileError(
                    f"arguments {m.name!r} {_shown(a)} and {n.name!r} {_shown(b)} share elements, and one of them is written to; torch "
                    "takes them for separate (with other backends the values are wrong). Give a clone of one, or take the views "
                    "of their base inside of the compiled function"
                )


def _is_static(t: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*t.shape, *t.stride(), t.storage_offset()))


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage have an element in common; of two types, only torch is asked."""
    if a.dtype != b.dtype or not a.numel() or not b.numel():
        return False
    first = min(a.storage_offset(), b.storage_offset())
    ends = [t.storage_offset() - first + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1 for t in (a, b)]
    touched = np.zeros(max(ends), dtype=bool)
    of_a, of_b = (as_strided(touched[t.storage_offset() - first :], t.shape, t.stride()) for t in (a, b))
    of_a[...] = True
    return bool(of_b.any())


def _shown(t: torch.Tensor) -> str:
    return f"(shape {list(t.shape)}, strides {list(t.stride())}, offset {t.storage_offset()})"
