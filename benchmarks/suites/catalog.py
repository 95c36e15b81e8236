"""All suites by name, and builders out of a user's file in their place."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from . import huggingface, timm_models, torchbench
from .build import Models

SUITES: dict[str, Models] = {"torchbench": torchbench.MODELS, "huggingface": huggingface.MODELS, "timm": timm_models.MODELS}

PUBLISHED = {"torchbench": 0.93, "huggingface": 0.96, "timm": 1.0}
"""The best pass rates published for a CPU compiler: 56/60, 44/46 and 61/61 (PyTorch 2.1, TorchInductor's C++ backend)."""


def load(builders: str | None = None) -> Mapping[str, Models]:
    """The suites, or those of `builders`: "FILE.py" or "FILE.py:NAME".

    NAME (SUITES if not given) is a dict suite -> model -> function that returns (module, args, kwargs); models come as the
    file makes them. Raises ValueError where there is no such file or dict.
    """
    if not builders:
        return SUITES
    # The last colon: a path may hold others.
    path, _, name = builders.rpartition(":") if not builders.endswith(".py") else (builders, "", "")
    name = name or "SUITES"
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"mlirc_builders_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes of the file can be pickled and copied
    sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    suites = getattr(module, name, None)
    if not isinstance(suites, Mapping) or not all(isinstance(models, Mapping) for models in suites.values()):
        raise ValueError(f"{path} has no dict {name} of suites")
    return suites
