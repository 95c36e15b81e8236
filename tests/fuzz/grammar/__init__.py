"""The ops of fuzzed programs. A rule adds one line to a program, or finds nothing that fits and returns False."""

from __future__ import annotations

from . import arithmetic, changes, indexing, layers, reductions, views
from .rules import RULES, Rule

__all__ = ["RULES", "Rule", "arithmetic", "changes", "indexing", "layers", "reductions", "views"]
