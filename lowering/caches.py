"""What one core has of the caches: the sizes that block sizes are derived from."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/devices/system/cpu/cpu0")

# Numbers of glibc's sysconf, which asks the CPU itself; Python has no names for them.
_SC_FIRST, _SC_FIRST_WAYS, _SC_SECOND = 188, 189, 191
PLAUSIBLE = {"first": (8 << 10, 1 << 20), "first_ways": (2, 64), "second": (128 << 10, 64 << 20)}


@dataclass(frozen=True)
class Caches:
    """Bytes of the first level for data, its associativity, bytes of the second level. The defaults are what CPUs with AVX-512 have at least."""

    first: int = 32 << 10
    first_ways: int = 8
    second: int = 1 << 20

    @classmethod
    def host(cls) -> Caches:
        """Of this machine: from sysfs, else from the C library; the default for each number that neither tells, or none can believe."""
        found = {**_asked(os.sysconf), **_listed(SYSFS)}
        return cls(**{name: value for name, value in found.items() if PLAUSIBLE[name][0] <= value <= PLAUSIBLE[name][1]})

    def key(self) -> str:
        return f"{self.first}/{self.first_ways}/{self.second}"


def _listed(cpu: Path) -> dict[str, int]:
    """What the kernel lists of a CPU's caches; containers may hide it. A cache that several cores share is divided among them."""
    found: dict[str, int] = {}
    try:
        siblings = max(len(_cpus((cpu / "topology/thread_siblings_list").read_text())), 1)
    except (OSError, ValueError):
        siblings = 1
    for index in sorted((cpu / "cache").glob("index*")):
        try:
            level, kind = (index / "level").read_text().strip(), (index / "type").read_text().strip()
            size = _bytes((index / "size").read_text().strip())
            cores = max(len(_cpus((index / "shared_cpu_list").read_text())) // siblings, 1)
            if level == "1" and kind in ("Data", "Unified"):
                found["first"] = size // cores
                found["first_ways"] = int((index / "ways_of_associativity").read_text())
            elif level == "2" and kind in ("Data", "Unified"):
                found["second"] = size // cores
        except (OSError, ValueError):
            continue
    return found


def _asked(sysconf: Callable[[int], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    if platform.libc_ver()[0] != "glibc":
        return found
    for name, number in (("first", _SC_FIRST), ("first_ways", _SC_FIRST_WAYS), ("second", _SC_SECOND)):
        try:
            found[name] = sysconf(number)
        except (OSError, ValueError):
            continue
    return found


def _bytes(text: str) -> int:
    """`48K`, `2M` or a plain number."""
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    return int(text[:-1] if unit else text) << unit


def _cpus(text: str) -> set[int]:
    """`0-1,8` -> {0, 1, 8}."""
    out: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return out
