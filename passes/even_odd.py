"""Vectors of bf16 are widened and narrowed without moving lanes: in between, even lanes come first.

    %b = vector.load : vector<32xbf16>              %w = bits of %b, two lanes a word : vector<16xi32>
    %x = arith.extf %b : vector<32xf32>     ->      %x = [%w << 16, %w & 0xffff0000] : vector<32xf32>, lanes 0 2 4 ... 1 3 5 ...
    ...                                             ...
    %o = upper half of %r : vector<32xbf16>         %o = %r[0:16] >> 16 | %r[16:32] & 0xffff0000
    vector.store %o                                 vector.store %o

Elementwise ops do not mind the order of the lanes, if it is the same for all, and neither do reductions. Two words of 16 lanes take
three instructions to widen and two to narrow; in order they take four (`vpmovzxwd`, `vpslld`) and four (`vpsrld`, `vpmovdw`), of
which the moves across the register are slow. What else comes from memory in order is shuffled. A function with an op whose lanes have
to be in order stays as it is.

Runs after `round_in_place`, on functions whose vectors of bf16 fill a register.
"""

from __future__ import annotations

from ..dialects import builders
from ..dialects.math_expansions.num import Num, constants_at_start_of, element_type
from ..dialects.mlir import arith, ir, llvm, vector
from .round_in_place import NARROWED

PASS_NAME = "mlirc-even-odd"

_LOADS = {"vector.load", "vector.maskedload"}
_STORES = {"vector.store": 0, "vector.maskedstore": -1}
"""Ops that write memory in order: which operand is the vector."""
_MASKS = {"vector.constant_mask", "vector.create_mask"}
REGISTER = 16
"""Words of a register of 512 bits."""
ANY_ORDER = "mlirc.any_order"
"""On memory of a function's own: it is written and read in the same whole vectors, which do not overlap. On an op that makes halves of
vectors, or adds pairs of lanes up (`sum_pairs`): it does not matter which lanes are in which."""
_CONTROL = {"scf.if", "scf.for", "scf.yield", "func.return"}
_OF_LANES = {"vector.broadcast", "vector.gather", "vector.reduction", *_CONTROL}
"""Ops that do not mind the order, besides elementwise arithmetic."""


def even_odd(module: ir.Module, lanes: int) -> None:
    """Rewrite the functions whose vectors have `lanes` lanes, those of a register of bf16."""
    with module.context:
        for function in module.body.operations:
            ops = _Ops(function.operation, lanes)
            if ops.worthwhile and ops.possible:
                with constants_at_start_of(function.regions[0].blocks[0]):
                    _Rewriting(ops).run()


def _lanes(value: ir.Value) -> int:
    kind = value.type
    return kind.shape[0] if isinstance(kind, ir.VectorType) and kind.rank == 1 else 0


def _is(value: ir.Value, kind: type) -> bool:
    return isinstance(element_type(value.type), kind)


class _Ops:
    """The ops of a function by what they do to the order of lanes."""

    def __init__(self, function: ir.Operation, lanes: int) -> None:
        self.lanes = lanes
        self.loads: list[ir.Operation] = []
        self.stores: list[ir.Operation] = []
        self.sources: list[ir.Operation] = []
        """What else makes lanes in order: constants and lane numbers."""
        self.ordered: set[ir.Value] = set()
        """Masks in order, computed of nothing but such."""
        self.possible = True
        self.worthwhile = False
        found: list[ir.Operation] = []

        def collect(op: ir.Operation) -> ir.WalkResult:
            found.append(op)
            return ir.WalkResult.ADVANCE

        function.walk(collect)
        if not any(op.name == "arith.extf" and _lanes(op.operands[0]) == lanes for op in found):
            return
        for op in found:
            vectors = [v for v in (*op.operands, *op.results) if _lanes(v)]
            if NARROWED in op.attributes and _lanes(op.results[0]) == lanes:
                self.loads.append(op)
                continue
            if _is_of_halves(op) or ANY_ORDER in op.attributes or all(_lanes(v) != lanes for v in vectors):
                continue
            if any(_lanes(v) != lanes for v in vectors) and op.name not in _CONTROL:
                self.possible = False
            elif vectors:
                self._sort(op)
            if not self.possible:
                return
        loaded = [op.results[0] for op in self.loads if _is(op.results[0], ir.BF16Type)]
        self.worthwhile = any(use.owner.operation.name == "arith.extf" for value in loaded for use in value.uses)

    def _sort(self, op: ir.Operation) -> None:
        name, vectors = op.name, [v for v in op.operands if _lanes(v)]
        if name in (*_LOADS, *_STORES):
            if _in_any_order(op):
                return
            (self.loads if name in _LOADS else self.stores).append(op)
            mask = _mask_of(op)
            self.possible &= mask is None or mask in self.ordered
            self.possible &= name not in _LOADS or all(v == mask or _is_splat(v) for v in vectors)
        elif name in _MASKS or _is_mask(op) and any(v in self.ordered for v in vectors) and all(v in self.ordered or _is_splat(v) for v in vectors):
            self.ordered.add(op.results[0])
        elif name == "vector.step" or name == "arith.constant" and not _is_splat(op.results[0]):
            self.sources.append(op)
        elif name == "vector.extract":
            self.possible &= [*ir.DenseI64ArrayAttr(op.attributes["static_position"])] == [0]
        else:
            self.possible &= name in _OF_LANES or name.startswith(("arith.", "math."))


def _is_of_halves(op: ir.Operation) -> bool:
    """Whether an op is one of those that round both halves of a vector by an instruction for one (see `round_in_place`)."""
    match op.name:
        case "llvm.call_intrinsic":
            return "vpdpwssd" in ir.StringAttr(op.attributes["intrin"]).value
        case "vector.bitcast" | "vector.extract_strided_slice":
            return all(_is_of_halves(use.owner.operation) for use in op.results[0].uses)
        case "vector.shuffle":
            return [*ir.DenseI64ArrayAttr(op.attributes["mask"])] == list(range(_lanes(op.results[0])))
    return False


def _is_mask(op: ir.Operation) -> bool:
    """Logic of masks."""
    return op.name in ("arith.andi", "arith.ori", "arith.xori") and _is(op.results[0], ir.IntegerType) and element_type(op.results[0].type).width == 1


def _mask_of(op: ir.Operation) -> ir.Value | None:
    """The mask of a masked load or store."""
    at = {"vector.maskedload": -2, "vector.maskedstore": -2}.get(op.name)
    return None if at is None else op.operands[len(op.operands) + at]


def _in_any_order(op: ir.Operation) -> bool:
    """Whether a load or store goes to memory that is marked so."""
    buffer = op.operands[1 if op.name == "vector.store" else 0]
    while not isinstance(buffer.owner, ir.Block) and buffer.owner.operation.name == "memref.cast":
        buffer = buffer.owner.operation.operands[0]
    return not isinstance(buffer.owner, ir.Block) and ANY_ORDER in buffer.owner.operation.attributes


def _is_splat(value: ir.Value, number: int | None = None) -> bool:
    """Whether all lanes of a value are the same constant, `number` if one is given."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.constant":
        return False
    constant = ir.DenseElementsAttr(value.owner.operation.attributes["value"])
    return constant.is_splat and (number is None or ir.IntegerAttr(constant.get_splat_value()).value == number)


class _Rewriting:
    def __init__(self, ops: _Ops) -> None:
        self.ops = ops
        n = self.n = ops.lanes
        self.apart = [*range(0, n, 2), *range(1, n, 2)]
        """In order -> even lanes first."""
        self.together = [i // 2 + (n // 2 if i % 2 else 0) for i in range(n)]
        """And back."""
        self.masks: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        for value in list(self.ops.ordered):
            for use in list(value.uses):
                user = use.owner.operation
                in_order = user.name in (*_LOADS, *_STORES) and not _in_any_order(user) and _mask_of(user) == value
                if not in_order and not (user.results and user.results[0] in self.ops.ordered):
                    user.operands[use.operand_number] = self._mask(value)
        for op in self.ops.sources:
            self._shuffle(op, list(op.results[0].uses))
        for op in self.ops.loads:
            self._load(op)
        for op in self.ops.stores:
            self._store(op)

    def _shuffle(self, op: ir.Operation, uses: list[ir.OpOperand]) -> None:
        """Give users of an op its lanes in the other order."""
        if uses:
            with ir.InsertionPoint.after(op), op.location:
                other = vector.shuffle(op.results[0], op.results[0], self.apart)
            for use in uses:
                use.owner.operands[use.operand_number] = other

    def _mask(self, value: ir.Value) -> ir.Value:
        """A mask in the other order."""
        if value not in self.masks:
            op = value.owner.operation
            with ir.InsertionPoint.after(op), op.location:
                self.masks[value] = self._build_mask(op)
        return self.masks[value]

    def _build_mask(self, op: ir.Operation) -> ir.Value:
        kind = op.results[0].type
        if op.name == "vector.constant_mask":
            (first,) = ir.DenseI64ArrayAttr(op.attributes["mask_dim_sizes"])
            i1 = ir.IntegerType.get_signless(1)
            return arith.constant(kind, ir.DenseElementsAttr.get([ir.IntegerAttr.get(i1, int(i < first)) for i in self.apart], type=kind))
        if op.name == "vector.create_mask":
            half = ir.VectorType.get([self.n // 2], kind.element_type)
            count, one = op.operands[0], builders.index(1)
            even = vector.create_mask(half, [arith.shrsi(arith.addi(count, one), one)])
            odd = vector.create_mask(half, [arith.shrsi(count, one)])
            return vector.shuffle(even, odd, list(range(self.n)))
        operands = [self._mask(v) if v in self.ops.ordered else v for v in op.operands]
        return ir.Operation.create(op.name, results=[kind], operands=operands).results[0]

    def _load(self, op: ir.Operation) -> None:
        value = op.results[0]
        uses = list(value.uses)
        widened = [use for use in uses if use.owner.operation.name == "arith.extf" and _is(value, ir.BF16Type) and _is(use.owner.operation.results[0], ir.F32Type)]
        self._shuffle(op, [use for use in uses if use not in widened and ANY_ORDER not in use.owner.operation.attributes])
        if not widened:
            return
        with ir.InsertionPoint.after(op), op.location:
            words_type = ir.VectorType.get([self.n // 2], ir.IntegerType.get_signless(32))
            words = Num(vector.bitcast(words_type, value))
            even, odd = (words << 16).as_float().value, (words & 0xFFFF0000).as_float().value
            both = vector.shuffle(even, odd, list(range(self.n)))
        for use in widened:
            wide = use.owner.operation
            wide.results[0].replace_all_uses_with(both)
            wide.erase()

    def _store(self, op: ir.Operation) -> None:
        place = _STORES[op.name] % len(op.operands)
        value, half = op.operands[place], self.n // 2
        with ir.InsertionPoint(op), op.location:
            words = _upper_halves(value)
            if words is None:
                op.operands[place] = vector.shuffle(value, value, self.together)
                return
            kind = ir.VectorType.get([half], ir.IntegerType.get_signless(32))
            even, odd = (Num(vector.extract_strided_slice(kind, words, [at], [half], [1])) for at in (0, half))
            op.operands[place] = vector.bitcast(value.type, _together(even.shift_right_unsigned(16), odd).value)


def _together(low: Num, high: Num) -> Num:
    """Words with the lower halves of `low`, whose upper ones are zero, and the upper halves of `high`."""
    if low.type.shape[0] < REGISTER:
        return low | (high & 0xFFFF0000)
    # Of the same as a formula LLVM makes one instruction (vpermt2w), which is three for the CPU. Bits of 0xf8: low | (high & mask).
    operands = [low.value, high.value, low.like(0xFFFF0000).value, builders.constant(ir.IntegerType.get_signless(32), 0xF8)]
    return Num(llvm.call_intrinsic(low.type, f"llvm.x86.avx512.pternlog.d.{32 * REGISTER}", operands, [], []))


def _upper_halves(value: ir.Value) -> ir.Value | None:
    """The words of which a vector of bf16 is the upper halves."""
    for name in ("arith.bitcast", "arith.trunci", "arith.shrui"):
        if isinstance(value.owner, ir.Block) or value.owner.operation.name != name:
            return None
        op = value.owner.operation
        if name == "arith.shrui" and not (element_type(value.type).width == 32 and _is_splat(op.operands[1], 16)):
            return None
        value = op.operands[0]
    return value
