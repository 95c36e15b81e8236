"""The user's own modules that a Python file imports: what it does depends on them as it does on itself.

They are read with the file, and imported from what was read: a worker process may have another `sys.path`, or may have
imported them before they were changed.
"""

from __future__ import annotations

import ast
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

_OTHERS = [
    Path(path).resolve()
    for path in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
] + [Path(__file__).resolve().parents[1]]
"""Where Python's modules, the installed packages and mlirc lie."""


@dataclass(frozen=True)
class OwnModule:
    """A module of the user's, as it was when the compilation began."""

    name: str
    path: str
    source: str


def own_modules(source: str) -> tuple[OwnModule, ...]:
    """The imported modules that lie outside of installed packages, and those that they import; of a package, all files.

    Imports with names that are only known at run time are not found. A file that cannot be parsed has none.
    """
    found: dict[str, OwnModule] = {}
    left = [source]
    while left:
        for name in _imported(left.pop()):
            for module, path in _files(name) if name not in found else ():
                found[module] = OwnModule(module, str(path), path.read_text(encoding="utf-8", errors="replace"))
                left.append(found[module].source)
    return tuple(found[name] for name in sorted(found))


class _Finder(MetaPathFinder, InspectLoader):
    """Imports modules from what was read of them."""

    def __init__(self, modules: Iterable[OwnModule]) -> None:
        self.modules = {m.name: m for m in modules}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self.modules.get(fullname)
        if module is None:
            return None
        folder = [str(Path(module.path).parent)] if Path(module.path).name == "__init__.py" else None
        return spec_from_file_location(fullname, module.path, loader=self, submodule_search_locations=folder)

    def get_source(self, fullname: str) -> str:
        return self.modules[fullname].source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_source(fullname), self.modules[fullname].path)


def serve(modules: Iterable[OwnModule]) -> None:
    """From now on `import` gives these modules as they were read, and no others that were served before.

    What the program has imported itself stays as it is: a second copy would have other classes.
    """
    new = _Finder(modules)
    for old in [f for f in sys.meta_path if isinstance(f, _Finder)]:
        sys.meta_path.remove(old)
        for name in old.modules if old.modules != new.modules else ():
            sys.modules.pop(name, None)
    sys.meta_path.insert(0, new)


def _imported(source: str) -> Iterator[str]:
    """First parts of the names of imported modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name.partition(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _files(name: str) -> Iterator[tuple[str, Path]]:
    """(name of the module, its file) of a module or package of the user's."""
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return
    file = Path(spec.origin).resolve()
    if not _is_own(file):
        return
    if not spec.submodule_search_locations:
        yield name, file
        return
    for path in filter(_is_own, sorted(file.parent.rglob("*.py"))):
        parts = path.relative_to(file.parent).with_suffix("").parts
        yield ".".join((name, *(parts[:-1] if parts[-1] == "__init__" else parts))), path


def _is_own(file: Path) -> bool:
    return not any(file.is_relative_to(folder) for folder in _OTHERS)
