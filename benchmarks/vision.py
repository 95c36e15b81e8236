"""Makes `import timm`, `import torchvision` and the vision models of transformers work with any build of torch."""

from __future__ import annotations

import sys

_library = None  # torch drops the definitions when this object goes


def prepare_torchvision() -> None:
    """Import torchvision, standing in for its C++ operators where they do not load.

    torchvision's wheel holds operators compiled for one build of torch. With another (a CUDA wheel beside a CPU torch)
    they do not load, and its Python side then fails on the missing `nms`. No model of ours calls it, so a definition
    without an implementation will do. Does nothing where torchvision is not installed.
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
    import torchvision  # noqa: F401
