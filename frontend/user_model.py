"""The models that a command line names: `FILE.py:NAME` or an exported `.pt2`, with inputs to call them with."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


class NotFound(ValueError):
    """The command line names something that is not there, or not of the right form."""


@dataclass
class UserModel:
    """Something to call, and what to call it with."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def load_model(what: str, inputs: Sequence[str] = ()) -> UserModel:
    """Load `FILE.py:NAME` (a module, a module class, or a function; dots in NAME reach attributes) or `FILE.pt2`.

    Arguments are `inputs` (see `make_input`), or else `example_inputs` of the file: a tuple of arguments, a dict of
    keyword arguments, one tensor, or a function that returns one of these. A class is instantiated without arguments
    and put into evaluation mode. Raises NotFound, saying what is there, and whatever the user's file raises.
    """
    generator = torch.Generator().manual_seed(0)
    given = tuple(make_input(text, generator) for text in inputs)
    if what.endswith(".pt2"):
        return _exported(Path(what), given)
    path, _, name = what.rpartition(":")
    if not path and what.endswith(".py"):
        path = what
        name = ""
    if not path.endswith(".py"):
        raise NotFound(f"{what!r} is neither FILE.py:NAME, nor a .pt2 file, nor, for `dump`, a .mlir file")
    module = _import(_existing(Path(path)))
    target: Any = module
    for part in name.split(".") if name else ():
        if not hasattr(target, part):
            raise NotFound(f"{path} has no {name!r}; it has: {_candidates(module)}")
        target = getattr(target, part)
    if inspect.isclass(target) and issubclass(target, torch.nn.Module):
        target = target().eval()
    if target is module or not callable(target):
        raise NotFound(f"name a module or a function of {path}; it has: {_candidates(module)}")
    if given:
        return UserModel(target, given)
    if not hasattr(module, "example_inputs"):
        raise NotFound(f"no inputs: give --input, such as 1x3x224x224xf32, or define example_inputs in {path}")
    return UserModel(target, *_arguments(module.example_inputs))


def make_input(text: str, generator: torch.Generator | None = None) -> torch.Tensor:
    """`1x3x224x224xf32` -> a random tensor: floats are normal, integers 0 or 1, so that they are valid indices.

    `f32` alone is a tensor of no dimension. Raises NotFound for anything else.
    """
    match = re.fullmatch(r"((?:\d+x)*)(\w+)", text)
    if not match or match[2] not in DTYPES:
        raise NotFound(f"{text!r} is not a shape and a dtype, such as 1x3x224x224xf32; dtypes: {', '.join(DTYPES)}")
    shape = [int(n) for n in match[1].split("x") if n]
    dtype = DTYPES[match[2]]
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _exported(path: Path, given: tuple[Any, ...]) -> UserModel:
    program = torch.export.load(str(_existing(path)))
    module = program.module()
    if given:
        return UserModel(module, given)
    if program.example_inputs is None:
        raise NotFound(f"{path} was saved without example inputs: give --input, such as 1x3x224x224xf32")
    args, kwargs = program.example_inputs
    return UserModel(module, tuple(args), dict(kwargs))


def load_program(what: str, inputs: Sequence[str] = (), dynamic: bool = False) -> torch.export.ExportedProgram:
    """The same as a program of `torch.export`, with the sizes that the model leaves open if `dynamic`; a `.pt2` file is one already.

    Raises NotFound, also for inputs and `dynamic` with a `.pt2` file, which has both, and whatever the model or torch raises.
    """
    if what.endswith(".pt2"):
        if inputs or dynamic:
            raise NotFound(f"{what} says by itself what its inputs are and which sizes are open: leave out --input and --dynamic")
        return torch.export.load(str(_existing(Path(what))))
    model = load_model(what, inputs)
    module = model.function if isinstance(model.function, torch.nn.Module) else _AsModule(model.function)

    def open_sizes(x: Any) -> Any:
        return dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) if isinstance(x, torch.Tensor) else None

    shapes = pytree.tree_map(open_sizes, (model.args, model.kwargs)) if dynamic else None
    if shapes is not None:
        names = list(inspect.signature(module.forward).parameters)
        shapes = {**dict(zip(names, shapes[0])), **shapes[1]}
    with torch.no_grad():
        return torch.export.export(module, model.args, model.kwargs, dynamic_shapes=shapes)


class _AsModule(torch.nn.Module):
    """`torch.export` takes nothing but modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function  # type: ignore[method-assign]


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if callable(example) and not isinstance(example, torch.Tensor):
        example = example()
    if isinstance(example, dict):
        return (), example
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    return path


def _import(path: Path) -> Any:
    """Execute a file under a name of its own, with its folder on the path, as `python FILE` would have it."""
    name = f"mlirc_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _candidates(module: Any) -> str:
    """Names in a file that could be meant."""
    own = module.__name__

    def fits(value: Any) -> bool:
        if isinstance(value, torch.nn.Module):
            return True
        return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == own

    return ", ".join(name for name, value in vars(module).items() if fits(value)) or "nothing to call"
