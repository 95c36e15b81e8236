"""Elementwise ops: unary, binary, comparisons, selections, casts."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program, Value
from .rules import DTYPES, axis, floating, number, partner, rule

ANY_UNARY = ("neg", "abs", "sign", "square", "relu", "positive", "clone", "logical_not", "isnan", "isfinite", "isinf", "signbit", "sgn", "nan_to_num", "ceil", "floor", "round", "trunc")
FLOAT_UNARY = (
    "exp", "tanh", "sigmoid", "sin", "cos", "sqrt", "log", "rsqrt", "reciprocal", "erf", "expm1", "log1p", "atan", "tan", "sinh", "cosh",
    "asin", "acos", "asinh", "acosh", "atanh", "exp2", "log2", "log10", "erfc", "frac", "deg2rad", "lgamma", "digamma", "logit", "erfinv", "sinc", "i0",
)  # fmt: skip
ACTIVATIONS = (
    "F.relu({})", "F.gelu({})", "F.silu({})", "F.gelu({}, approximate='tanh')", "F.softplus({})", "F.elu({})", "F.leaky_relu({}, 0.1)",
    "F.hardtanh({})", "F.hardswish({})", "F.hardsigmoid({})", "F.relu6({})", "F.logsigmoid({})", "F.softsign({})", "F.tanhshrink({})",
    "F.celu({})", "F.selu({})", "F.mish({})", "F.softshrink({})", "F.hardshrink({})", "F.threshold({}, 0.1, 20.0)", "F.softplus({}, 2.0, 1.0)", "F.glu({})",
)  # fmt: skip


@rule(3)
def unary(p: Program, c: Choices) -> bool:
    v = p.value(c)
    return p.add(f"torch.{c.pick(ANY_UNARY)}({v})")


@rule(4)
def float_unary(p: Program, c: Choices) -> bool:
    v = p.value(c, floating)
    if v is None or c.chance(8):
        v = p.value(c)
    return p.add(f"torch.{c.pick(FLOAT_UNARY)}({v})")


@rule(3)
def activation(p: Program, c: Choices) -> bool:
    v = p.value(c, floating)
    return v is not None and p.add(c.pick(ACTIVATIONS).format(v))


@rule(8)
def binary(p: Program, c: Choices) -> bool:
    v = p.value(c)
    op = c.pick(("+", "*", "-", "/"))
    w = number(c, v) if c.chance(4) else partner(p, c, v)
    return p.add(f"{v} {op} {w}") if not c.chance(4) else p.add(f"{w} {op} {v}")


@rule(4)
def function_of_two(p: Program, c: Choices) -> bool:
    v = p.value(c)
    w = partner(p, c, v)
    name = c.pick(
        ("maximum", "minimum", "pow", "fmod", "remainder", "floor_divide", "atan2", "fmax", "fmin", "copysign", "hypot", "logaddexp", "xlogy", "nextafter", "heaviside", "ldexp", "logaddexp2", "true_divide")
    )
    return p.add(f"torch.{name}({v}, {w})")


@rule(3)
def with_number(p: Program, c: Choices) -> bool:
    v = p.value(c)
    n = number(c, v)
    return p.add(
        c.pick(
            (
                "torch.add({v}, {w}, alpha=2)", "{v} ** {n}", "torch.remainder({v}, {n})", "{v} // {n}", "{v} % {n}", "{n} % {v}", "{n} ** {v}",
                "torch.fmod({v}, {n})", "torch.div({v}, {n}, rounding_mode='floor')", "torch.div({v}, {w}, rounding_mode='trunc')",
                "torch.rsub({v}, {n})", "{n} // {v}", "torch.clamp({v}, -1, {n})", "torch.clamp({v}, min={n})", "torch.sub({v}, {w}, alpha=3)",
                "torch.clamp({v}, {w})", "torch.float_power({v}, {n})", "{v} << 1", "{v} >> 1", "{v} << {n}", "{v} >> {n}",
            )
        ).format(v=v, n=n, w=partner(p, c, v))
    )  # fmt: skip


@rule(2)
def ternary(p: Program, c: Choices) -> bool:
    v = p.value(c, floating)
    if v is None:
        return False
    a, b = partner(p, c, v, floating), partner(p, c, v, floating)
    return p.add(
        c.pick(
            ("torch.addcmul({v}, {a}, {b})", "torch.lerp({v}, {a}, 0.3)", "torch.addcdiv({v}, {a}, {b}, value=0.5)", "torch.lerp({v}, {a}, {b})", "torch.addcmul({v}, {a}, {b}, value=-2)", "torch.clamp({v}, {a}, {b})")
        ).format(v=v, a=a, b=b)
    )


@rule(3)
def comparison(p: Program, c: Choices) -> bool:
    v = p.value(c)
    w = number(c, v) if c.chance(2) else partner(p, c, v)
    return p.add(f"{v} {c.pick(('>', '<', '==', '>=', '<=', '!='))} {w}")


@rule(2)
def logic(p: Program, c: Choices) -> bool:
    v = p.value(c, lambda v: not v.floating)
    if v is not None and str(v.dtype) == "torch.bool":
        return p.add(c.pick(("{v} & {w}", "{v} | {w}", "{v} ^ {w}", "~{v}")).format(v=v, w=partner(p, c, v, lambda w: not w.floating)))
    if v is None:
        v = p.value(c)
        return p.add(f"torch.{c.pick(('logical_and', 'logical_or', 'logical_xor'))}({v}, {partner(p, c, v)})")
    w = partner(p, c, v, lambda w: not w.floating)
    return p.add(c.pick(("{v} & {w}", "{v} | {w}", "{v} ^ {w}", "~{v}", "torch.logical_and({v}, {w})", "{v} << ({w} & 3)", "{v} >> ({w} & 3)")).format(v=v, w=w))


@rule(3)
def selection(p: Program, c: Choices) -> bool:
    v = p.value(c)
    w = number(c, v) if c.chance(3) else partner(p, c, v)
    masks = [str(m) for m in p.values if str(m.dtype) == "torch.bool"]
    mask = masks[-1] if masks and not c.chance(3) else f"{v} > {c.pick(('0', '0.5', '1'))}"
    return p.add(c.pick(("torch.where({m}, {v}, {w})", "torch.where({m}, {w}, {v})", "{v}.masked_fill({m}, {n})")).format(m=mask, v=v, w=w, n=number(c, v)))


def _castable(v: Value, dtype: str) -> bool:
    """Out of range, casts to integers are anyone's: -1.5 to u8, say."""
    if not v.floating or "float" in dtype or dtype == "torch.bool":
        return True
    low, high = {"torch.uint8": (0, 255), "torch.int8": (-128, 127), "torch.int16": (-32768, 32767)}.get(dtype, (-(2**31), 2**31 - 129))
    return all(not t.numel() or (bool(t.isfinite().all()) and t.min() > low - 1 and t.max() < high + 1) for t in v.tensors)


@rule(4)
def cast(p: Program, c: Choices) -> bool:
    v = p.value(c)
    dtype = c.pick(DTYPES)
    return _castable(v, dtype) and p.add(f"{v}.to({dtype})")


@rule(1)
def creation(p: Program, c: Choices) -> bool:
    v = p.value(c)
    d = axis(c, v)
    return bool(v.dim) and p.add(
        c.pick(
            ("torch.full_like({v}, 2)", "torch.zeros_like({v})", "torch.arange({v}.shape[{d}])", "{v}.new_full(({v}.shape[{d}], 3), 1)", "torch.ones_like({v}, dtype=torch.float32)",
             "torch.arange(1, {v}.shape[{d}] + 1, dtype=torch.float32) / 3", "torch.eye({v}.shape[{d}], 3)", "torch.linspace(0, 1, {v}.shape[{d}])", "{v}.new_zeros({v}.shape[{d}])", "torch.tensor([1.5, 2.5, -0.5])", "{v}.shape[{d}] * {v}")
        ).format(v=v, d=d)
    )  # fmt: skip
