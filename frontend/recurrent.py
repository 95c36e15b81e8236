"""Recurrent layers: `nn.LSTM`, `nn.GRU` and `nn.RNN` as ops that a graph holds one of for each layer and direction.

torch would take them apart into hundreds of ops while it traces, or call oneDNN. Instead `replace_layers` puts

    pre = x @ w_ih' + b_ih [+ b_hh]                 for all steps at once
    y, last, cells, g = mlirc::recurrent(pre, w_hh, b_hh, h0, c0, kind, reverse)

in their place, which `ops.recurrent` lowers, and whose gradient is an op as well:

    lstm   g = h @ w_hh' + pre, in parts i f z o:   c = sigmoid(f) * c + sigmoid(i) * tanh(z);  h = sigmoid(o) * tanh(c)
    gru    g = h @ w_hh' + b_hh, p = pre, in parts r z n:
                     n = tanh(p_n + sigmoid(p_r + g_r) * g_n);  h = n + sigmoid(p_z + g_z) * (h - n)
    tanh   g = h @ w_hh' + pre:                     h = tanh(g)
    relu                                            h = max(g, 0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._decomp import decompositions
from torch.nn import functional as F


@torch.library.custom_op("mlirc::recurrent", mutates_args=())
def recurrent(
    pre: Tensor, w_hh: Tensor, b_hh: Tensor | None, h0: Tensor, c0: Tensor | None, kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """pre [time, batch, gates * hidden], w_hh [gates * hidden, hidden], b_hh [gates * hidden] (gru only), h0 and c0
    [batch, hidden] -> y [time, batch, hidden], the last c [batch, hidden], all c like y, g like pre.

    The two with c are empty unless it is an lstm.
    """
    h, c = h0, pre.new_empty(0) if c0 is None else c0
    y = pre.new_empty([*pre.shape[:2], w_hh.shape[1]])
    cells, gates = pre.new_empty([0]) if c0 is None else torch.empty_like(y), torch.empty_like(pre)
    for t in _order(pre.shape[0], reverse):
        g = F.linear(h, w_hh, b_hh)
        if kind == "gru":
            h = _gru(pre[t], g, h)
        else:
            g = g + pre[t]
            h, c = _lstm(g, c) if kind == "lstm" else (g.tanh() if kind == "tanh" else g.relu(), c)
        y[t], gates[t] = h, g
        if kind == "lstm":
            cells[t] = c
    return y, c.clone(), cells, gates


def _order(steps: int, reverse: bool) -> Sequence[int]:
    return range(steps)[:: -1 if reverse else 1]


def _gru(p: Tensor, g: Tensor, h: Tensor) -> Tensor:
    (pr, pz, pn), (gr, gz, gn) = p.chunk(3, 1), g.chunk(3, 1)
    n = torch.tanh(pn + torch.sigmoid(pr + gr) * gn)
    return n + torch.sigmoid(pz + gz) * (h - n)


def _lstm(g: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, z, o = g.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
    return torch.sigmoid(o) * torch.tanh(c), c


@recurrent.register_fake
def _(pre, w_hh, b_hh, h0, c0, kind, reverse):  # type: ignore[no-untyped-def]
    y = pre.new_empty([*pre.shape[:2], w_hh.shape[1]])
    cell = kind == "lstm"
    return y, pre.new_empty(h0.shape if cell else [0]), pre.new_empty(y.shape if cell else [0]), pre.new_empty(pre.shape)


@torch.library.custom_op("mlirc::recurrent_backward", mutates_args=())
def recurrent_backward(
    dy: Tensor, dc: Tensor | None, pre: Tensor, g: Tensor, y: Tensor, cells: Tensor, w_hh: Tensor, h0: Tensor,
    c0: Tensor | None, kind: str, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dc is the gradient of the last c -> the gradients of pre, of h @ w_hh' at all steps (empty unless it is a gru, where it
    is another one than that of pre), of h0 and of c0 (empty unless it is an lstm)."""
    dh = torch.zeros_like(h0)
    dc = torch.zeros_like(h0) if dc is None else dc
    steps = list(_order(pre.shape[0], reverse))
    dpre, dg = torch.empty_like(pre), torch.empty_like(pre)
    for k in reversed(range(len(steps))):
        t = steps[k]
        h_old = y[steps[k - 1]] if k else h0
        dh = dh + dy[t]
        if c0 is not None:
            c_old = cells[steps[k - 1]] if k else c0
            i, f, z, o = g[t].chunk(4, 1)
            i, f, z, o, u = i.sigmoid(), f.sigmoid(), z.tanh(), o.sigmoid(), cells[t].tanh()
            dc = dc + dh * o * (1 - u * u)
            parts = dc * z * i * (1 - i), dc * c_old * f * (1 - f), dc * i * (1 - z * z), dh * u * o * (1 - o)
            dpre[t] = torch.cat(parts, 1)
            dc = dc * f
        elif kind == "gru":
            (pr, pz, pn), (gr, gz, gn) = pre[t].chunk(3, 1), g[t].chunk(3, 1)
            r, z = torch.sigmoid(pr + gr), torch.sigmoid(pz + gz)
            n = torch.tanh(pn + r * gn)
            dn = dh * (1 - z) * (1 - n * n)
            dr, dz = dn * gn * r * (1 - r), dh * (h_old - n) * z * (1 - z)
            dpre[t], dg[t] = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
        else:
            dpre[t] = dh * (1 - y[t] * y[t]) if kind == "tanh" else dh * (y[t] > 0)
        if kind == "gru":
            dh = dg[t] @ w_hh + dh * z
        else:
            dh = dpre[t] @ w_hh
    none = pre.new_empty(0)
    return dpre, dg if kind == "gru" else none, dh, dc if kind == "lstm" else none.clone()


@recurrent_backward.register_fake
def _(dy, dc, pre, g, y, cells, w_hh, h0, c0, kind, reverse):  # type: ignore[no-untyped-def]
    none = [0]
    dg, dc0 = pre.shape if kind == "gru" else none, h0.shape if kind == "lstm" else none
    return pre.new_empty(pre.shape), pre.new_empty(dg), pre.new_empty(h0.shape), pre.new_empty(dc0)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    pre, w_hh, b_hh, h0, c0, ctx.kind, ctx.reverse = inputs
    y, _, cells, g = output
    ctx.set_materialize_grads(False)
    ctx.bias = b_hh is not None
    ctx.save_for_backward(pre, g, y, cells, w_hh, h0, c0)


def _gradient(ctx: Any, dy: Tensor | None, dc: Tensor | None, *_: Any) -> tuple[Any, ...]:
    pre, g, y, cells, w_hh, h0, c0 = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy
    dpre, dg, dh0, dc0 = recurrent_backward(dy, dc, pre, g, y, cells, w_hh, h0, c0, ctx.kind, ctx.reverse)
    dg = dg if ctx.kind == "gru" else dpre
    first = h0.unsqueeze(0)
    before = torch.cat([y[1:], first] if ctx.reverse else [first, y[:-1]])
    dw = dg.flatten(0, 1).t() @ before.flatten(0, 1)
    return dpre, dw, dg.sum((0, 1)) if ctx.bias else None, dh0, dc0 if ctx.kind == "lstm" else None, None, None


recurrent.register_autograd(_gradient, setup_context=_setup)


# The layers of torch.nn

_FUNCTIONS = {"lstm": torch.lstm, "gru": torch.gru, "tanh": torch.rnn_tanh, "relu": torch.rnn_relu}
_KINDS = {f: kind for kind, f in _FUNCTIONS.items()}
MAX_STEPS = 1024
"""A longer sequence is left to oneDNN where torch knows how: every step is a few calls in the compiled program, and time for the compiler."""


def replace_layers(gm: torch.fx.GraphModule) -> None:
    """Replace the recurrent layers of Dynamo's graph, in place, except where oneDNN walks over a number of steps known only at run time."""
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        changed = False
        for node in module.graph.nodes:
            kind = _KINDS.get(node.target) if node.op == "call_function" else None
            # With a second tensor instead of `hx`, the input is a PackedSequence.
            if kind and len(node.args) == 9 and isinstance(node.args[-1], bool) and isinstance(node.args[3], bool):
                node.args = (kind, *node.args)
                node.target = _layers
                changed = True
        if changed:
            module.recompile()


def _layers(
    kind: str, x: Tensor, hx: Any, params: Sequence[Tensor], biases: bool, layers: int, dropout: float,
    train: bool, both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What `torch.lstm` and its like return for an input that is not packed."""
    steps = x.shape[1 if batch_first else 0]
    directions = 2 if both else 1
    each = 4 if biases else 2
    sizes = [steps, *(w.shape[0] for w in params[::each]), *(n for w in params[1::each] for n in w.shape)]
    h0, c0 = hx if kind == "lstm" else (hx, None)
    most: float = MAX_STEPS
    if kind != "lstm" or decompositions.select_one_layer_lstm_function(x, hx, [params]) is decompositions.one_layer_lstm:
        # torch would unroll it, which is good for this number of steps alone, too, and takes many times as long.
        steps, *sizes = map(int, sizes)
        most = math.inf
    if not all(isinstance(n, int) for n in (steps, *sizes)) or not 0 < steps <= most or len(params) != layers * directions * each:
        return _FUNCTIONS[kind](x, hx, params, biases, layers, dropout, train, both, batch_first)
    expected = (layers * directions, x.shape[0 if batch_first else 1], params[1].shape[1])
    for state in (h0, *([] if c0 is None else [c0])):
        # In the words of the modules. ATen's own message would be another one for each fault, and oneDNN reads what is not there.
        if tuple(state.shape) != expected:
            raise RuntimeError(f"Expected hidden size {expected}, got {list(state.shape)}")
    x = x.transpose(0, 1) if batch_first else x
    if not isinstance(x.shape[0], int):
        # A guard says that there are so many steps; the size itself stays an expression, if it is not a symbol alone.
        x = x.narrow(0, 0, steps)
    hs, cs = [], []
    for layer in range(layers):
        outs = []
        for direction in range(directions):
            n = layer * directions + direction
            w_ih, w_hh = params[n * each : n * each + 2]
            b_ih, b_hh = params[n * each + 2 : n * each + 4] if biases else (None, None)
            pre = F.linear(x, w_ih, b_ih)
            inner = None
            if b_hh is not None and kind == "gru":
                inner = b_hh.to(pre.dtype)
            elif b_hh is not None:
                pre = pre + b_hh.to(pre.dtype)
            c = c0[n].to(pre.dtype) if c0 is not None else None
            y, last, _, _ = recurrent(pre, w_hh.to(pre.dtype), inner, h0[n].to(pre.dtype), c, kind, direction == 1)
            outs.append(y)
            hs.append(y[0 if direction else -1])
            cs.append(last)
        x = torch.cat(outs, 2) if both else outs[0]
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout, True)
    if x is y and x.requires_grad:  # The gradient needs it, and whoever gets it may change it.
        x = x.clone()
    x = x.transpose(0, 1) if batch_first else x
    return (x, torch.stack(hs), torch.stack(cs)) if kind == "lstm" else (x, torch.stack(hs))


# Dynamo


def let_dynamo_trace_layers() -> None:
    """Without this, Dynamo runs a module that holds a recurrent layer in eager mode, whatever the backend.

    It has to be set before a graph is traced, so it cannot be confined to one backend. With it, torch's decomposition
    of an LSTM would send one whose parameters need a gradient to an inference op of oneDNN if its input needs none, and
    fail in the backward pass: that is made right here too, for everybody.
    """
    torch._dynamo.config.allow_rnn = True
    select = decompositions.select_one_layer_lstm_function
    if not hasattr(select, "mlirc_original"):

        def with_gradients(x: Tensor, hx: Sequence[Tensor], params: Sequence[Sequence[Tensor]]) -> Any:
            needed = torch.is_grad_enabled() and any(t.requires_grad for t in (*hx, *(p for ps in params for p in ps)))
            return decompositions.one_layer_lstm if needed else select(x, hx, params)

        with_gradients.mlirc_original = select  # type: ignore[attr-defined]
        decompositions.select_one_layer_lstm_function = with_gradients
