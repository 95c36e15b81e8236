"""`mlirc::recurrent` and its gradient (see `frontend.recurrent`): all steps in time, one after the other, by the same kernels.

The loop is unrolled: a step is two kernels, the product with what is elementwise behind it, and the cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...dialects.mlir import arith, ir, math
from .. import recurrent as torch_ops
from ..dtypes import compute_dtype, scalar
from ..graph_builder import GraphBuilder, T, product
from ..registry import Unsupported, lowers
from . import scalars as s

Value = ir.Value
Body = Callable[..., Value]

LSTM = 2
"""The `mode` of oneDNN's layers."""


class _Steps:
    """What the steps of one layer have in common; `d` is what they compute in."""

    def __init__(self, b: GraphBuilder, pre: T, w_hh: T) -> None:
        self.b = b
        self.dtype, self.d = pre.dtype, compute_dtype(pre.dtype)
        self.steps, self.n, self.columns = pre.shape
        self.width = w_hh.shape[1]
        assert isinstance(self.steps, int)

    def order(self, reverse: bool) -> Sequence[int]:
        return range(self.steps)[:: -1 if reverse else 1]  # type: ignore[arg-type]

    def at(self, x: T, t: int) -> T:
        """Step t of a tensor [time, batch, ...]."""
        one = self.b.slice(x, [t, 0, 0], [1, *x.shape[1:]], [1, 1, 1])
        return self.b.reshape(one, x.shape[1:])

    def parts(self, g: T) -> list[T]:
        """The gates of a row."""
        count = g.shape[1] // self.width  # type: ignore[operator]
        return [self.b.slice(g, [0, k * self.width], [self.n, self.width], [1, 1]) for k in range(count)]

    def map(self, body: Body, *inputs: T, out: torch.dtype | None = None) -> T:
        return self.b.pointwise(inputs[0].shape, inputs, self.d, self.d, out or self.d, body)

    def product(self, h: T, w: T, maps: str = "gk") -> T:
        """h @ w' (or h @ w with "kg"), in d."""
        columns = w.shape[maps.index("g")]
        return self.b.contract(h, w, ("mk", maps, "mg"), (self.n, columns))

    def stack(self, rows: dict[int, T]) -> T:
        """The steps as one tensor again."""
        return self.b.concat([self.b.reshape(rows[t], [1, *rows[t].shape]) for t in sorted(rows)], 0)

    def sigmoid(self, v: Value) -> Value:
        return s.sigmoid(self.d, v)

    def slope(self, v: Value) -> Value:
        """v * (1 - v): the derivative of a sigmoid with the value v."""
        return arith.mulf(v, arith.subf(scalar(self.d, 1), v))

    def tanh_slope(self, v: Value) -> Value:
        return arith.subf(scalar(self.d, 1), arith.mulf(v, v))


def _used(node: Any, i: int) -> bool:
    return any(len(user.args) > 1 and user.args[1] == i for user in node.users)


@lowers(torch_ops.recurrent._opoverload)
def recurrent(b: GraphBuilder, node: Any, pre: T, w_hh: T, b_hh: T | None, h: T, c: T | None, kind: str, reverse: bool) -> list[T]:
    return _forward(b, pre, w_hh, b_hh, h, c, kind, reverse, kind == "lstm" and _used(node, 2), _used(node, 3))


@lowers(torch.ops.aten.mkldnn_rnn_layer.default)
def lstm_layer(
    b: GraphBuilder, node: Any, x: T, w_ih: T, w_hh: T, b_ih: T, b_hh: T, h: T, c: T, reverse: bool, sizes: Any, mode: int,
    hidden: Any, layers: int, biases: bool, both: bool, batch_first: bool, train: bool,
) -> list[T | None]:  # fmt: skip
    """What torch makes of one direction of an LSTM where it takes it apart itself (exported programs)."""
    steps, n, _ = x.shape
    if not isinstance(steps, int):
        raise Unsupported("a recurrent layer over a number of steps known only at run time")
    if steps > torch_ops.MAX_STEPS:
        raise Unsupported(f"a recurrent layer of {steps} steps, each of them calls to compile, for which oneDNN has a loop")
    if not all(isinstance(n, int) for n in w_hh.shape):
        raise Unsupported("a recurrent layer of a number of units known only at run time")
    if mode != LSTM or layers != 1 or both or batch_first or train or sizes:
        raise Unsupported("a recurrent layer of another kind than torch makes of nn.LSTM")
    d = compute_dtype(x.dtype)
    rows = b.reshape(x, [product([steps, n]), x.shape[2]])
    pre = b.contract(rows, w_ih, ("mk", "nk", "mn"), (rows.shape[0], w_ih.shape[0]))
    if biases:
        pre = b.pointwise(pre.shape, [pre, b_ih, b_hh], d, d, d, lambda v, p, q: arith.addf(v, arith.addf(p, q)))
    pre = b.reshape(b.convert(pre, x.dtype), [steps, n, w_ih.shape[0]])
    shape = [n, w_hh.shape[1]]
    y, last, _, _ = _forward(b, pre, w_hh, None, b.reshape(h, shape), b.reshape(c, shape), "lstm", reverse, False, False)
    first = _Steps(b, y, w_hh).at(y, 0 if reverse else steps - 1)
    return [y, b.reshape(first, [1, *shape]), b.reshape(last, [1, *shape]), None]


def _forward(
    b: GraphBuilder, pre: T, w_hh: T, b_hh: T | None, h: T, c: T | None, kind: str, reverse: bool, keep_c: bool, keep_g: bool
) -> list[T]:
    at = _Steps(b, pre, w_hh)
    ys: dict[int, T] = {}
    cs: dict[int, T] = {}
    gs: dict[int, T] = {}
    if c is not None:
        c = b.convert(c, at.d)
    for t in at.order(reverse):
        g = at.product(h, w_hh)
        now = at.at(pre, t)
        if kind != "gru":
            g = at.map(arith.addf, g, now)
        elif b_hh is not None:
            g = at.map(arith.addf, g, b_hh)
        if kind == "lstm":
            i, f, z, o = at.parts(g)
            c = at.map(lambda *v: _cell(at, *v), i, f, z, c)  # type: ignore[arg-type]
            h = at.map(lambda v, u: arith.mulf(at.sigmoid(v), math.tanh(u)), o, c, out=at.dtype)
        elif kind == "gru":
            h = at.map(lambda *v: _gru(at, *v)[-1], *at.parts(now), *at.parts(g), h, out=at.dtype)
        else:
            act = math.tanh if kind == "tanh" else lambda v: s.maximum(at.d, v, scalar(at.d, 0))
            h = at.map(act, g, out=at.dtype)
        ys[t] = h
        if keep_c:
            cs[t] = b.convert(c, at.dtype)  # type: ignore[arg-type]
        if keep_g:
            gs[t] = b.convert(g, at.dtype)
    none = b.full((0,), at.dtype, 0)
    last = b.convert(c, at.dtype) if c is not None else none
    return [at.stack(ys), last, at.stack(cs) if keep_c else none, at.stack(gs) if keep_g else none]


def _cell(at: _Steps, i: Value, f: Value, z: Value, c: Value) -> Value:
    return arith.addf(arith.mulf(at.sigmoid(f), c), arith.mulf(at.sigmoid(i), math.tanh(z)))


def _gru(at: _Steps, pr: Value, pz: Value, pn: Value, gr: Value, gz: Value, gn: Value, h: Value) -> tuple[Value, ...]:
    """r, z, n and the new h."""
    r, z = at.sigmoid(arith.addf(pr, gr)), at.sigmoid(arith.addf(pz, gz))
    n = math.tanh(arith.addf(pn, arith.mulf(r, gn)))
    return r, z, n, arith.addf(n, arith.mulf(z, arith.subf(h, n)))


@lowers(torch_ops.recurrent_backward._opoverload)
def recurrent_backward(
    b: GraphBuilder, node: Any, dy: T, dc: T | None, pre: T, g: T, y: T, cells: T, w_hh: T, h0: T, c0: T | None, kind: str,
    reverse: bool,
) -> list[T]:  # fmt: skip
    at = _Steps(b, pre, w_hh)
    steps = list(at.order(reverse))
    dpre: dict[int, T] = {}
    dg: dict[int, T] = {}
    dh: T | None = None
    slope = at.tanh_slope if kind == "tanh" else lambda v: s.sign(at.d, v)
    if kind == "lstm":
        dc = b.convert(dc, at.d) if dc is not None else b.full(h0.shape, at.d, 0)
    for k in reversed(range(len(steps))):
        t = steps[k]
        own = at.at(dy, t)
        dh = b.convert(own, at.d) if dh is None else at.map(arith.addf, dh, own)
        if kind == "lstm":
            c_old = at.at(cells, steps[k - 1]) if k else c0
            rows, dc = _lstm_step(at, at.parts(at.at(g, t)), at.at(cells, t), c_old, dh, dc)  # type: ignore[arg-type]
            dpre[t] = b.concat(rows, 1)
            dh = at.product(dpre[t], w_hh, "kg")
        elif kind == "gru":
            h_old = at.at(y, steps[k - 1]) if k else h0
            inputs = [*at.parts(at.at(pre, t)), *at.parts(at.at(g, t)), h_old, dh]
            dr, dz, dn, dm, through = (at.map(lambda *v, f=f: f(at, *v), *inputs) for f in _GRU_GRADIENTS)
            dr, dz, dn, dm = (b.convert(v, at.dtype) for v in (dr, dz, dn, dm))
            dpre[t], dg[t] = b.concat([dr, dz, dn], 1), b.concat([dr, dz, dm], 1)
            dh = at.map(arith.addf, at.product(dg[t], w_hh, "kg"), through)
        else:
            dpre[t] = at.map(lambda u, v: arith.mulf(u, slope(v)), dh, at.at(y, t), out=at.dtype)
            dh = at.product(dpre[t], w_hh, "kg")
    assert dh is not None
    none = b.full((0,), at.dtype, 0)
    dc0 = b.convert(dc, at.dtype) if kind == "lstm" else none  # type: ignore[arg-type]
    return [at.stack(dpre), at.stack(dg) if dg else none, b.convert(dh, at.dtype), dc0]


def _lstm_step(at: _Steps, gates: Sequence[T], c: T, c_old: T, dh: T, dc: T) -> tuple[list[T], T]:
    """The gradients of the gates, and that of the old c."""
    i, f, z, o = gates
    dc = at.map(
        lambda d, v, u, e: arith.addf(e, arith.mulf(arith.mulf(d, at.sigmoid(v)), at.tanh_slope(math.tanh(u)))), dh, o, c, dc
    )
    rows = [
        at.map(lambda e, u, v: arith.mulf(arith.mulf(e, math.tanh(v)), at.slope(at.sigmoid(u))), dc, i, z, out=at.dtype),
        at.map(lambda e, u, v: arith.mulf(arith.mulf(e, v), at.slope(at.sigmoid(u))), dc, f, c_old, out=at.dtype),
        at.map(lambda e, u, v: arith.mulf(arith.mulf(e, at.sigmoid(v)), at.tanh_slope(math.tanh(u))), dc, z, i, out=at.dtype),
        at.map(lambda d, u, v: arith.mulf(arith.mulf(d, math.tanh(v)), at.slope(at.sigmoid(u))), dh, o, c, out=at.dtype),
    ]
    return rows, at.map(lambda e, v: arith.mulf(e, at.sigmoid(v)), dc, f)


def _gru_n(at: _Steps, *v: Value) -> tuple[Value, Value, Value, Value]:
    """r, z, n and the gradient of what n is the tanh of."""
    *gates, dh = v
    r, z, n, _ = _gru(at, *gates)
    return r, z, n, arith.mulf(arith.mulf(dh, arith.subf(scalar(at.d, 1), z)), at.tanh_slope(n))


def _gru_r(at: _Steps, *v: Value) -> Value:
    r, _, _, dn = _gru_n(at, *v)
    return arith.mulf(arith.mulf(dn, v[5]), at.slope(r))


def _gru_z(at: _Steps, *v: Value) -> Value:
    _, z, n, _ = _gru_n(at, *v)
    return arith.mulf(arith.mulf(v[7], arith.subf(v[6], n)), at.slope(z))


_GRU_GRADIENTS: tuple[Body, ...] = (
    _gru_r,
    _gru_z,
    lambda at, *v: _gru_n(at, *v)[3],
    lambda at, *v: arith.mulf(_gru_n(at, *v)[3], _gru_n(at, *v)[0]),
    lambda at, *v: arith.mulf(v[7], _gru_n(at, *v)[1]),
)
"""Of r, z, n (in pre), n (in g), and of the old h past the cell."""
