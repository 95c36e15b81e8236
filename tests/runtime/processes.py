"""Whether processes have ended."""

from __future__ import annotations

import time


def gone(pid):
    """Whether the process ends, soon."""
    for _ in range(1000):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False
