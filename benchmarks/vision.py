"""Makes `import timm`, `import torchvision` and the vision models of transformers work with any build of torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_library = None  # torch drops the definitions when this object goes


def prepare_torchvision() -> None:
    """Import torchvision, standing in for its C++ operators where they do not load.

    torchvision's wheel holds operators compiled for one build of torch. With another (a CUDA wheel beside a CPU torch)
    they do not load, and its Python side then fails on the missing `nms`. That one gets an implementation here; `roi_align`
    has one in torchvision. Does nothing where torchvision is not installed.
    """
    global _library
    try:
        import torchvision

        return
    except ModuleNotFoundError:
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    import torch

    for name in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for op in ("nms", "qnms"):
        _library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.impl("nms", _suppress, "CPU")
    import torchvision  # noqa: F401
    from torchvision.ops import boxes

    boxes._assert_has_ops = lambda: None
    # In Python it needs much memory, so torchvision compiles it with Inductor, even in eager mode. The bare function is wanted:
    # the benchmarks' images are small, and Inductor must not run in another backend's name.
    aligning = sys.modules["torchvision.ops.roi_align"]
    aligning._roi_align = aligning._roi_align.__wrapped__


def _suppress(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Non-maximum suppression: indices of `boxes` [n, 4], best score first, none over `threshold` of the union with a better one."""
    import torch
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True)
    overlaps = box_iou(boxes[order], boxes[order]) > threshold
    kept: list[int] = []
    for i, row in enumerate(overlaps.tolist()):
        if not any(row[j] for j in kept):
            kept.append(i)
    return order[torch.tensor(kept, dtype=torch.int64)]
