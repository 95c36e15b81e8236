"""Products with sums in memory for some lane blocks at once, which share what is in cache of the rows.

    func @kernel_body(%begin, %end, %context):        (of the parallel range: outer classes, row blocks, lane blocks)
      for outer classes and row blocks in it:
        for groups of lane blocks in it: ...

A thread takes what it has of a row block in as few groups as there is memory for.
"""

from __future__ import annotations

import abc

from ...dialects.mlir import ir
from .contraction import Contraction
from .lanes import Index, Number
from .nest import Values, delinearize, loop


class Groups(Contraction, abc.ABC):
    """As `Contraction`, group after group."""

    @abc.abstractmethod
    def _group(self, first: Number, end: Number, row_block: Number) -> None:
        """Lane blocks from `first` to `end` of a row block."""

    def _walk(self, begin: ir.Value, end: ir.Value) -> None:
        e, m = self.e, self.e.math
        counts = self._counts(e)
        lanes = counts.pop()

        def rows(q: Number, _: Values) -> Values:
            *outer, row_block = delinearize(e.math, q, counts)
            for c, i in zip(self.r.outer, outer):
                self.env[c] = Index(i)
            before = m.mul(q, lanes)
            first, end_ = m.maximum(m.sub(begin, before), 0), m.minimum(m.sub(end, before), lanes)

            def group(g: Number, _: Values) -> Values:
                self._group(g, m.minimum(m.add(g, self.s.group), end_), row_block)
                return []

            loop(e, first, end_, self.s.group, [], group)
            return []

        loop(e, m.floordiv(begin, lanes), m.floordiv(m.add(end, m.sub(lanes, 1)), lanes), 1, [], rows)
