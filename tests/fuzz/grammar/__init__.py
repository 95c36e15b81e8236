"""The ops of fuzzed programs. A rule adds one line to a program, or a few that belong together; or it finds nothing that fits and returns False."""

from __future__ import annotations

from . import arithmetic, changes, contractions, families, indexing, layers, masks, meetings, opaque, reductions, state, views
from .rules import RULES, Rule

PARTS = (*dict.fromkeys(r.__module__.rpartition(".")[2] for r in RULES), "failing")
"""Names of the files: what `--part` asks for more of."""


def rules(part: str = "") -> list[Rule]:
    """All rules; half of them those of `part`, if one is named."""
    chosen = [r for r in RULES if r.__module__.endswith("." + part)]
    return RULES + chosen * (len(RULES) // len(chosen)) if chosen else RULES


__all__ = ["PARTS", "RULES", "Rule", "arithmetic", "changes", "contractions", "families", "indexing", "layers", "masks", "meetings", "opaque", "reductions", "rules", "state", "views"]
