"""Products of dequantised bytes become products of the bytes, with scales and zero points behind them.

    %x = generic: (f32 %a[m, k] - za) * sa                      %s = contraction i32 %a[m, k], %b[k, n]
    %w = generic: (f32 %b[k, n] - zb[n]) * sb[n]                %A = generic: [m] sum over k of %a;  %B = generic: [n] sum over k of %b
    %y = contraction %x[m, k], %w[k, n]                   ->    %y = generic: (f32 (%s - za * %B) - zb[n] * (%A - K za)) * sa * sb[n]

which are the same numbers, summed without rounding (Jacob et al., "Quantization and training of neural networks for efficient
integer-arithmetic-only inference", CVPR 2018, section 2.3). Zero points and scales are constants, or tensors along one dim that is not
summed. Views and padding between an operand and its bytes are repeated on these; what is padded has the zero point. A sum of bytes is
made where a zero point wants it: of a weight once. Depthwise convolutions, whose products no instruction sums, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..dialects import builders
from ..dialects.mlir import arith, ir
from . import structure as st
from .fit_integers import elementwise, multiplied_in_words
from .layouts import Layouts

PASS_NAME = "mlirc-integer-products"

LONGEST = 1 << 15
"""Products of bytes whose sum fits 32 bits, zero points included."""


@dataclass(frozen=True)
class Factor:
    """A scale or zero point in a tensor: its dim `position` runs along dim `dim` of what it belongs to (None: it is one number)."""

    value: ir.Value
    position: int | None
    dim: int | None


@dataclass(frozen=True)
class Quantised:
    """(bytes - zeros) * scales; `number` is the product of the scales that are constants, `zero` the sum of such zero points."""

    value: ir.Value
    unsigned: bool = False
    zero: int = 0
    zeros: tuple[Factor, ...] = ()
    number: float = 1.0
    scales: tuple[Factor, ...] = ()
    scaled: bool = False

    def moved(self, value: ir.Value, to: Callable[[int], int | None]) -> Quantised | None:
        """The same as another view of the bytes, where dim d has become `to(d)`; None if one with a factor is no dim any more."""

        def move(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
            return tuple(f if f.dim is None else replace(f, dim=to(f.dim)) for f in factors)

        lost = any(f.dim is not None and to(f.dim) is None for f in (*self.zeros, *self.scales))
        return None if lost else replace(self, value=value, zeros=move(self.zeros), scales=move(self.scales))


Known = dict[ir.Value, "Quantised | None"]
"""What has been found of the operands of a product and all that they are made of: a value may be read in many ways."""


def integer_products(function: ir.Operation) -> bool:
    """Rewrite the contractions and convolutions of f32 of a function whose operands are both made of bytes; returns whether there may be any."""
    block = function.regions[0].blocks[0]
    ops = [st.operation(o) for o in block.operations]
    if not any(_is_bytes(v) for v in (*block.arguments, *(v for op in ops for v in op.results))):
        return False
    layouts = Layouts(function)
    for op in ops:
        if st.kind(op) not in ("contraction", "convolution") or not all(_is_f32(v) for v in op.operands):
            continue
        if not multiplied_in_words(op) or not _starts_at_zero(op) or _length(op) is None:
            continue
        layouts.begin_again()
        with ir.InsertionPoint(op), op.location:
            known: Known = {}
            made = [_bytes_of(v, layouts, known) for v in list(op.operands)[:2]]
            if made[0] is not None and made[1] is not None and all(_along_results(op, n, q) for n, q in enumerate(made)):
                _rewrite(op, made[0], made[1], layouts)
    return True


def _is_bytes(value: ir.Value) -> bool:
    return st.is_tensor(value) and str(builders.element_type(value)) == "i8"


def _is_f32(value: ir.Value) -> bool:
    return isinstance(builders.element_type(value), ir.F32Type)


def _starts_at_zero(op: ir.Operation) -> bool:
    fill = st.owner(op.operands[2])
    return fill is not None and fill.name == "linalg.fill" and _number(fill.operands[0]) == 0


def _length(op: ir.Operation) -> int | None:
    """How many products a sum has; None if that is not known, or too many."""
    n, iterators = 1, st.iterators(op)
    for d, size in zip(st.map_dims(st.maps(op)[1]), st.shape(op.operands[1])):
        if d is None or size < 0 and iterators[d] == "reduction":
            return None
        n *= size if iterators[d] == "reduction" else 1
    return n if n <= LONGEST else None


def _number(value: ir.Value) -> float | int | None:
    op = st.owner(value)
    if op is None or op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    return ir.FloatAttr(attribute).value if isinstance(value.type, ir.FloatType) else ir.IntegerAttr(attribute).value


def _bytes_of(value: ir.Value, layouts: Layouts, known: Known) -> Quantised | None:
    """What a tensor is made of; the views of its bytes are built on the way. None if it is not dequantised."""
    if value not in known:
        known[value] = _found(value, layouts, known)
    return known[value]


def _found(value: ir.Value, layouts: Layouts, known: Known) -> Quantised | None:
    op = st.owner(value)
    if op is None:
        return None
    if st.kind(op) == "elementwise":
        return _Body(op, layouts, known).result()
    if op.name not in ("linalg.transpose", "tensor.expand_shape", "tensor.collapse_shape", "tensor.pad"):
        return None
    made = _bytes_of(op.operands[0], layouts, known)
    if made is None:
        return None
    sizes = layouts.values(value)
    if op.name == "linalg.transpose":
        order = list(st.integers(op.attributes["permutation"]))
        return made.moved(builders.transpose(made.value, order, sizes), order.index)
    if op.name == "tensor.pad":
        low, high = st.pads(op)
        yielded = _number(st.body_ops(op)[-1].operands[0])
        if yielded != 0 or made.zeros:
            return None
        return replace(made, value=builders.pad(made.value, low, high, sizes, made.zero))
    groups, expands = st.reassociation(op), op.name == "tensor.expand_shape"
    wide = st.shape(value if expands else op.operands[0])

    def to(d: int) -> int | None:
        """The only dim of its group that is not one."""
        at = d if expands else next(i for i, g in enumerate(groups) if d in g)
        real = [x for x in groups[at] if wide[x] != 1] or groups[at][:1]
        return None if len(real) != 1 else real[0] if expands else at

    build = builders.expand if expands else builders.collapse
    return made.moved(build(made.value, groups, sizes), to)


@dataclass
class _Body:
    """An elementwise op, whose body is read from its result back to the bytes."""

    op: ir.Operation
    layouts: Layouts
    known: Known
    arguments: list[ir.Value] = field(init=False)

    def __post_init__(self) -> None:
        self.arguments = list(self.op.regions[0].blocks[0].arguments)

    def result(self) -> Quantised | None:
        maps = st.maps(self.op)
        if len(self.op.results) != 1 or maps[-1] != builders.identity(maps[-1].n_dims):
            return None
        return self._read(st.body_ops(self.op)[-1].operands[0])

    def _read(self, value: ir.Value) -> Quantised | None:
        if value in self.arguments:
            n = self.arguments.index(value)
            if st.maps(self.op)[n] != builders.identity(st.maps(self.op)[n].n_dims):
                return None
            source = self.op.operands[n]
            if str(value.type) == "i8":
                return Quantised(source)
            return _bytes_of(source, self.layouts, self.known)
        made_by = st.owner(value)
        if made_by is None:
            return None
        match made_by.name:
            case "arith.extui" | "arith.uitofp" | "arith.extsi" | "arith.sitofp":
                made = self._read(made_by.operands[0])
                narrow = str(made_by.operands[0].type) == "i8"
                return replace(made, unsigned=made_by.name in ("arith.extui", "arith.uitofp")) if made and narrow else made
            case "arith.subf" | "arith.subi" if str(value.type) != "i8":  # which would wrap
                return self._less(self._read(made_by.operands[0]), made_by.operands[1])
            case "arith.mulf":
                for data, other in (made_by.operands, list(made_by.operands)[::-1]):
                    if (made := self._read(data)) is not None:
                        return self._times(made, other)
        return None

    def _less(self, made: Quantised | None, zero: ir.Value) -> Quantised | None:
        """With a zero point, which comes before any scale: a byte as the others, or in a tensor."""
        if made is None or made.scaled or made.zero or made.zeros:
            return None
        number = _number(zero)
        if number is not None:
            low = 0 if made.unsigned else -128
            return replace(made, zero=int(number)) if low <= number < low + 256 and number == int(number) else None
        factor = self._factor(zero)
        return None if factor is None else replace(made, zeros=(factor,))

    def _times(self, made: Quantised, scale: ir.Value) -> Quantised | None:
        number = _number(scale)
        if number is not None:
            return replace(made, number=made.number * number, scaled=True)
        factor = self._factor(scale)
        return None if factor is None else replace(made, scales=(*made.scales, factor), scaled=True)

    def _factor(self, value: ir.Value) -> Factor | None:
        """An argument of the body that is the same along all dims but one."""
        if value not in self.arguments[:-1]:
            return None
        n = self.arguments.index(value)
        dims, tensor = st.map_dims(st.maps(self.op)[n]), self.op.operands[n]
        if any(d is None and size != 1 for d, size in zip(dims, st.shape(tensor))):
            return None
        along = [(position, d) for position, d in enumerate(dims) if d is not None and st.shape(tensor)[position] != 1]
        return None if len(along) > 1 else Factor(tensor, *(along[0] if along else (None, None)))


def _along_results(op: ir.Operation, side: int, made: Quantised) -> bool:
    """Whether all factors run along dims that the product does not sum."""
    loops, stored = st.map_dims(st.maps(op)[side]), st.map_dims(st.maps(op)[2])
    return all(f.dim is None or loops[f.dim] in stored and loops[f.dim] is not None for f in (*made.zeros, *made.scales))


def _rewrite(op: ir.Operation, a: Quantised, b: Quantised, layouts: Layouts) -> None:
    i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
    maps, sizes, iterators = st.maps(op), layouts.values(op.results[0]), st.iterators(op)
    extend = [arith.extui if q.unsigned else arith.extsi for q in (a, b)]

    def product(x: ir.Value, y: ir.Value, total: ir.Value) -> list[ir.Value]:
        return [arith.addi(total, arith.muli(extend[0](i32, x), extend[1](i32, y)))]

    init, letters = builders.fill(sizes, builders.constant(i32, 0)), "".join(kind[0] for kind in iterators)
    (total,) = builders.generic([a.value, b.value], [init], maps, letters, product, st.kind(op))
    stored, length = st.map_dims(maps[2]), _length(op)
    rank, both = len(stored), (a, b)
    inputs, read = [total], [builders.identity(rank)]

    def argument(value: ir.Value, m: ir.AffineMap) -> int:
        inputs.append(value)
        read.append(m)
        return len(inputs) - 1

    def of(side: int, f: Factor) -> int:
        """The input of the last op that a factor of an operand is."""
        exprs: list[int | None] = [None] * len(st.shape(f.value))
        if f.position is not None:
            exprs[f.position] = stored.index(st.map_dims(maps[side])[f.dim])  # type: ignore[index]
        return argument(f.value, builders.projection(rank, exprs))

    sums: dict[int, int] = {}
    for side in (0, 1):
        if both[1 - side].zero or both[1 - side].zeros:
            value, loops = _sum(op, side, both[side], layouts)
            sums[side] = argument(value, builders.projection(rank, [stored.index(d) for d in loops]))
    zeros = [[of(side, replace(f, value=_in_f32(f.value, layouts))) for f in both[side].zeros] for side in (0, 1)]
    scales = [of(side, f) for side in (0, 1) for f in both[side].scales]

    def number(value: float) -> ir.Value:
        return builders.constant(f32, value)

    def whole(value: int) -> ir.Value:
        return builders.constant(i32, value)

    def last(*values: ir.Value) -> list[ir.Value]:
        out = values[0]
        for side in (0, 1):
            if both[side].zero:
                out = arith.subi(out, arith.muli(values[sums[1 - side]], whole(both[side].zero)))
        if a.zero and b.zero:
            out = arith.addi(out, whole(length * a.zero * b.zero))  # type: ignore[operator]
        out = arith.sitofp(f32, out)
        for side in (0, 1):
            for z in zeros[side]:
                other = arith.subi(values[sums[1 - side]], whole(length * both[1 - side].zero))  # type: ignore[operator]
                out = arith.subf(out, arith.mulf(values[z], arith.sitofp(f32, other)))
        for za in zeros[0]:
            for zb in zeros[1]:
                out = arith.addf(out, arith.mulf(arith.mulf(values[za], values[zb]), number(length)))  # type: ignore[arg-type]
        if a.number * b.number != 1:
            out = arith.mulf(out, number(a.number * b.number))
        for s in scales:
            out = arith.mulf(out, values[s])
        return [out]

    (y,) = builders.generic(inputs, [builders.empty(sizes, f32)], [*read, builders.identity(rank)], "p" * rank, last)
    op.results[0].replace_all_uses_with(y)
    op.erase()


def _in_f32(value: ir.Value, layouts: Layouts) -> ir.Value:
    """Zero points are integers as a rule, of 64 bits; their conversion, an op of its own, is done once."""
    f32 = ir.F32Type.get()
    return value if _is_f32(value) else elementwise(value, f32, layouts, lambda x: arith.sitofp(f32, x))


def _sum(op: ir.Operation, side: int, made: Quantised, layouts: Layouts) -> tuple[ir.Value, list[int]]:
    """The sums of an operand's bytes over what the product sums, and its loops that the result has as dims.

    First along the dims that are summed whole (channels), then, of an image, over the taps.
    """
    i32, iterators, m = ir.IntegerType.get_signless(32), st.iterators(op), st.maps(op)[side]
    loops, sizes = st.map_dims(m), layouts.values(made.value)
    extend = arith.extui if made.unsigned else arith.extsi
    kept = [i for i, d in enumerate(loops) if d is None or iterators[d] == "parallel"]
    init = builders.fill([sizes[i] for i in kept], builders.constant(i32, 0))
    letters = "".join("p" if i in kept else "r" for i in range(len(loops)))
    (sums,) = builders.generic(
        [made.value], [init], [builders.identity(len(loops)), builders.projection(len(loops), kept)], letters,
        lambda x, total: [arith.addi(total, extend(i32, x))],
    )  # fmt: skip
    if None not in loops:
        return sums, [loops[i] for i in kept]  # type: ignore[misc]
    exprs = [m.results[i] for i in kept]
    used = sorted({d for e in exprs for d in st.loops_in(e)})
    stored = [d for d in st.map_dims(st.maps(op)[2]) if d in used]
    taps = [d for d in used if iterators[d] == "reduction"]
    order = [*stored, *taps]
    new = [ir.AffineDimExpr.get(order.index(d)) if d in order else ir.AffineConstantExpr.get(0) for d in range(m.n_dims)]
    rename = ir.AffineMap.get(len(order), 0, new)
    weight = dict(zip(st.map_dims(st.maps(op)[1]), st.shape(op.operands[1])))
    results = dict(zip(st.map_dims(st.maps(op)[2]), layouts.values(op.results[0])))
    ones = builders.fill([weight[d] for d in taps], builders.constant(i32, 1))
    windows = [
        ir.AffineMap.get(len(order), 0, [e.compose(rename) for e in exprs]),
        builders.projection(len(order), [order.index(d) for d in taps]),
        builders.projection(len(order), list(range(len(stored)))),
    ]
    init = builders.fill([results[d] for d in stored], builders.constant(i32, 0))
    (sums,) = builders.generic(
        [sums, ones], [init], windows, "p" * len(stored) + "r" * len(taps),
        lambda x, one, total: [arith.addi(total, arith.muli(x, one))], "convolution",
    )  # fmt: skip
    return sums, stored  # type: ignore[return-value]
