"""How many steps of a reduction an iteration of a register tile has, and how many sets of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dialects import builders
from ...dialects.mlir import ir
from .. import structure as st

if TYPE_CHECKING:
    from ..vectorize.kernel import KernelFunction

FEW_REGISTERS = 16
"""Of vectors, as AVX2 has them: few sums, and so a short step."""
STEPS_OF_FEW = 4
"""In an iteration then."""
FEW_SUMS = 12
"""Of a register tile with so few registers."""
MOST_STEPS = 8
"""That can be chosen."""


def adds_integers(kernel: KernelFunction) -> bool:
    """Whether products of integers are added by an instruction of its own."""
    op = kernel.domain.anchor
    return op is not None and isinstance(builders.element_type(op.results[0]), ir.IntegerType) and (st.WORDS not in op.attributes or st.word(op) < 4)


def steps_together(fetch: bool, sums: int, registers: int, integers: bool = False) -> tuple[int, str]:
    """Steps of the reduction in an iteration, and why so many.

    An iteration of 6 x 2 sums in AVX2 is 20 instructions and a dozen more, for addresses, a branch, and to fetch. Alone on its core it is hardly
    slower for these; on one whose other thread works for somebody else, 512 x 768 x 768 in f32 reaches on a Zen 3 (of 103 GF/s, median and
    tenth percentile) 88 and 60 with a step, 92 and 79 with two, 93 and 83 with four. Sums of `integers` LLVM would add in another order, for
    which there are not registers enough.

    With 32 registers, two want four for the packed operand and two for the rows. For 128 x 768 x 3072 in f32 one is 2% slower, and four are
    1% faster, for which LLVM takes three times as long (60 instead of 18 ms).
    """
    if registers <= FEW_REGISTERS and integers:
        return 1, "integers of more steps would be added in another order"
    if registers <= FEW_REGISTERS:
        return STEPS_OF_FEW, f"a branch and addresses would take half as long as the products of {sums} sums"
    if not fetch:
        return 1, "nothing is fetched between them"
    return (2, f"{sums} sums leave registers for the operands of two") if sums <= registers - 6 else (1, f"{sums} sums leave too few registers for the operands of two")


def most_apart(steps: int, registers: int) -> int:
    """Up to how many sums, in all, the steps of an iteration have sets of their own.

    Two units that take four cycles for a sum have eight under way. From the second level of a Zen 5, 1 x 3072 x 768 takes 42 instead of 55 us
    in bf16 (`vdpbf16ps` takes longer), 4 x 3072 x 768 46 instead of 59; 1 x 768 x 768 in AVX2 22 instead of 37 in f32. With 16 registers, those
    that a large tile has are none too many: 3 x 768 x 768 reaches on a Zen 3 71 instead of 65 GF/s.
    """
    if steps == 1:
        return 0
    return FEW_SUMS if registers <= FEW_REGISTERS else registers // 2


def divisor(size: int, most: int) -> int:
    """Steps in an iteration, of a reduction of so many: at most `most`, fewer where they divide all and are more than half of that."""
    most = min(most, max(size, 1))
    return next((n for n in range(most, most // 2, -1) if size % n == 0), most)


def sets_of_sums(steps: int, sums: int, most: int) -> int:
    """Into how many sets of `sums` each the steps of an iteration add in turns: as many as divide them and have at most so many sums in all."""
    return next((n for n in range(steps, 1, -1) if steps % n == 0 and n * sums <= most), 1)
