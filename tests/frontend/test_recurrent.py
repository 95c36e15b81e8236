"""nn.LSTM, nn.GRU and nn.RNN: whole in the graph, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mlirc.frontend import recurrent as layers_of_torch
from mlirc.frontend.recurrent import recurrent, recurrent_backward
from mlirc.frontend.report import recorded
from mlirc.tests.frontend.compare import kernels, left_to_aten, replica

R = torch.randn
KINDS = [("LSTM", {}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"})]


class Net(nn.Module):
    def __init__(self, kind="LSTM", **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(nn, kind)(8, 20, **options)

    def forward(self, x, *state):
        return self.layer(x, *state)


def gradients(net, compiled, *args):
    """Outputs, and gradients of everything, after `compiled`."""
    args = replica(args)
    leaves = [t for t in torch.utils._pytree.tree_leaves(args) if t.requires_grad] + list(net.parameters())
    out = torch.utils._pytree.tree_leaves(compiled(*args))
    loss = sum((v.double() * torch.arange(v.numel()).view(v.shape).sin()).sum() for v in out)
    return out, torch.autograd.grad(loss, leaves)


def infer(net, *args, compiled=None, **tolerance):
    """Without gradients; nothing is left to ATen."""
    if compiled is None:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(net, backend="mlirc", fullgraph=True, options={"strict": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), net(*args), **tolerance)
    assert not left_to_aten()


def train(net, *args, **kwargs):
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="mlirc", fullgraph=True, options={"strict": True}, **kwargs)
    torch.testing.assert_close(gradients(net, compiled, *args), gradients(net, net, *args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind,options", KINDS)
def test_inference(kind, options):
    net = Net(kind, num_layers=2, bidirectional=True, batch_first=True, **options).eval()
    infer(net, R(3, 7, 8))


@pytest.mark.parametrize("kind,options", KINDS)
def test_training(kind, options):
    train(Net(kind, bidirectional=True, **options), R(4, 3, 8))
    state = R(1, 3, 20).requires_grad_()
    state = (state, R(1, 3, 20).requires_grad_()) if kind == "LSTM" else state
    train(Net(kind, bias=False, **options), R(4, 3, 8).requires_grad_(), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    for kind in ("LSTM", "GRU"):
        infer(Net(kind).to(dtype), R(5, 3, 8).to(dtype), **({"rtol": 0.01, "atol": 0.01} if dtype == torch.bfloat16 else {}))


def test_unbatched_and_projected():
    infer(Net(), R(5, 8))
    infer(Net(proj_size=6), R(5, 3, 8))
    train(Net(proj_size=6), R(4, 3, 8))


def test_packed_sequences():
    class Packed(Net):
        def forward(self, x, lengths):
            y, _ = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
            return pad_packed_sequence(y)[0]

    net = Packed().eval()
    x, lengths = R(7, 3, 8), torch.tensor([7, 2, 5])
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(net, backend="mlirc")(x, lengths), net(x, lengths))


def test_steps_share_their_kernels():
    """The compiler's work does not grow with the number of steps."""
    counts = []
    for steps in (3, 12):
        infer(Net("GRU"), R(steps, 3, 8))
        counts.append(len(kernels()))
    assert counts[1] <= counts[0] + 1, counts


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(40, 12)
        self.layer = nn.LSTM(12, 16, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(32, 9)

    def forward(self, x):
        return self.tags(self.layer(self.words(x))[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_tagger(dynamic):
    net = Tagger().eval()
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(net, backend="mlirc", dynamic=dynamic, fullgraph=True, options={"strict": True})
    with torch.no_grad():
        for shape in ((2, 9), (3, 9), (2, 5)):
            x = torch.randint(0, 40, shape)
            torch.testing.assert_close(compiled(x), net(x))
    if dynamic:  # one graph, in which oneDNN walks over the steps
        assert left_to_aten() == ["aten.mkldnn_rnn_layer.default"] and counters["stats"]["unique_graphs"] == 1
    else:
        assert not left_to_aten()


@pytest.mark.parametrize("units", [(3, 5), (1,)], ids=["several", "one"])
@pytest.mark.parametrize("kind,gates", [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
def test_units_known_only_at_run_time(kind, gates, units):
    """Weights that are arguments have symbolic sizes, except where they are 1."""

    def f(x, h, *w):
        return getattr(torch, kind)(x[None], (h, h) if kind == "lstm" else h, w, False, 1, 0.0, False, False, True)[0]

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    for n in units:
        args = [t.requires_grad_() for t in (R(2, 7), R(1, 1, n), R(gates * n, 7), R(gates * n, n))]
        ours, eager = compiled(*args), f(*args)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(torch.autograd.grad(ours.sum(), args), torch.autograd.grad(eager.sum(), args), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("kind,gates", [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
@pytest.mark.parametrize("positions", [(5, 6, 9), (2, 1)], ids=["several", "one"])
def test_steps_that_an_expression_counts(kind, gates, positions):
    """A convolution of 5 or 6 positions leaves 3 steps."""

    def f(x, kernel, h, w_ih, w_hh):
        x = F.conv1d(x, kernel, stride=2, padding=1).mT
        return getattr(torch, kind)(x, (h, h) if kind == "lstm" else h, [w_ih, w_hh], False, 1, 0.0, False, False, True)[0]

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    for n in positions:
        args = [t.requires_grad_() for t in (R(2, 4, n), R(8, 4, 3), R(1, 2, 5), R(gates * 5, 8), R(gates * 5, 5))]
        ours, eager = compiled(*args), f(*args)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(torch.autograd.grad(ours.sum(), args), torch.autograd.grad(eager.sum(), args), rtol=1e-4, atol=1e-5)


def test_training_a_tagger():
    nets = [Tagger(), Tagger()]
    compiled = torch.compile(nets[1], backend="mlirc", options={"strict": True})
    steps = [torch.optim.SGD(n.parameters(), 0.5) for n in nets]
    x, y = torch.randint(0, 40, (4, 10)), torch.randint(0, 9, (4, 10))
    for _ in range(5):
        losses = []
        for net, step in zip((nets[0], compiled), steps):
            step.zero_grad()
            loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
            loss.backward()
            step.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_other_backends_can_train_too():
    """They see recurrent layers once ours has been imported."""
    net = Net()
    compiled = torch.compile(net, backend="aot_eager")
    x = R(5, 3, 8)
    torch.testing.assert_close(gradients(net, compiled, x), gradients(net, net, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
def test_ops_in_eager_mode(kind):
    """What runs if a graph is left to ATen: the ops' own gradients, by finite differences."""
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    d = torch.float64
    inputs = [R(3, 2, gates * 5, dtype=d), R(gates * 5, 5, dtype=d), R(gates * 5, dtype=d) if kind == "gru" else None, R(2, 5, dtype=d)]
    inputs.append(R(2, 5, dtype=d) if kind == "lstm" else None)
    inputs = [None if t is None else t.requires_grad_() for t in inputs]
    for reverse in (False, True):
        assert torch.autograd.gradcheck(lambda *a, r=reverse: recurrent(*a, kind, r)[: 2 if kind == "lstm" else 1], inputs)
    torch.library.opcheck(recurrent, (*inputs, kind, True), test_utils=("test_schema", "test_faketensor"))
    with torch.no_grad():
        y, c, cells, g = recurrent(*inputs, kind, False)
        args = (R(y.shape, dtype=d), R(c.shape, dtype=d) if kind == "lstm" else None, inputs[0], g, y, cells, inputs[1], inputs[3])
        torch.library.opcheck(recurrent_backward, (*args, inputs[4], kind, False), test_utils=("test_schema", "test_faketensor"))


def test_a_layer_that_torch_took_apart():
    """oneDNN's op, of which exported programs hold one for each direction."""
    w = [R(64, 8), R(64, 16), R(64), R(64)]
    rest = ([], 2, 16, 1, True, False, False, False)

    def f(x, w, h, c):
        return [torch.ops.aten.mkldnn_rnn_layer.default(x, *w, h, c, reverse, *rest)[:3] for reverse in (False, True)]

    infer(f, R(5, 3, 8), w, R(1, 3, 16), R(1, 3, 16))


def test_one_step_of_a_number_of_units_known_only_at_run_time():
    """Weights that are arguments, and steps that another graph was compiled for."""

    def f(x, w, u):
        h = torch.zeros(1, 1, u.shape[1])
        return torch.lstm(x[None] * 2, (h, h), [w, u], False, 1, 0.0, False, False, True)

    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    w, u = torch.randn(32, 9), torch.randn(32, 8)
    with torch.no_grad():
        for steps in (4, 132, 1):
            x = torch.randn(steps, 9)
            torch.testing.assert_close(compiled(x, w, u), f(x, w, u))


@pytest.mark.parametrize("kind,gates", [("lstm", 4), ("gru", 3)])
def test_symbolic_sizes_in_training(kind, gates):
    """Steps and units become numbers where torch would unroll the layer: it is one op of the graph, and not ten for a step."""

    def f(x, w, u):
        h = torch.zeros(1, 1, 3)
        return getattr(torch, kind)(x[None] * 2, (h, h) if kind == "lstm" else h, [w, u], False, 1, 0.0, False, False, True)[0]

    counters.clear()
    compiled = torch.compile(f, backend="mlirc", dynamic=True, options={"strict": True})
    for steps in (12, 7):
        args = [R(steps, 5), R(3 * gates, 5).requires_grad_(), R(3 * gates, 3).requires_grad_()]
        ours, eager = compiled(*args), f(*args)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(torch.autograd.grad(ours.sum(), args[1:]), torch.autograd.grad(eager.sum(), args[1:]), rtol=1e-4, atol=1e-5)
        assert not left_to_aten() and recorded()[-2].nodes < 30


@pytest.mark.parametrize("f,gates", [(torch.rnn_tanh, 1), (torch.gru, 3), (torch.lstm, 4)])
@pytest.mark.parametrize("both", [False, True])
def test_initial_states_have_to_fit(f, gates, both):
    """Those of one batch element, or for more layers than there are, were taken: eager mode refuses them, or crashes."""
    n = 2 if both else 1
    params = [R(*shape) for _ in range(n) for shape in ((6 * gates, 5), (6 * gates, 6), (6 * gates,), (6 * gates,))]

    def layer(x, h, c):
        return f(x, [h, c] if f is torch.lstm else h, params, True, 1, 0.0, False, both, True)

    def run(*shapes):
        torch._dynamo.reset()
        return torch.compile(layer, backend="mlirc")(R(3, 4, 5), *(R(*s) for s in shapes))

    right = (n, 3, 6)
    run(right, right)
    size = "Expected hidden size|to broadcast"
    for wrong, message in {(n, 1, 6): size, (n + 1, 3, 6): size, (n, 4, 6): size, (n, 3, 7): rf"size=\({n}, 3, 7\)"}.items():
        with pytest.raises(RuntimeError, match=message):
            run(wrong, right)
        if f is torch.lstm:
            with pytest.raises(RuntimeError, match=message):
                run(right, wrong)


@pytest.mark.parametrize("f,gates", [(torch.rnn_tanh, 1), (torch.gru, 3), (torch.lstm, 4)])
@pytest.mark.parametrize("both", [False, True])
def test_the_result_is_changed_in_place_before_the_gradient(f, gates, both):
    """The gradient needs what the layer returned, not what became of it."""
    n = 2 if both else 1
    shapes = [shape for _ in range(n) for shape in ((3 * gates, 5), (3 * gates, 3), (3 * gates,), (3 * gates,))]

    torch.manual_seed(0)
    x, *params = [(R(*s) / 2).requires_grad_() for s in ((4, 2, 5), *shapes)]
    h = torch.zeros(n, 2, 3)

    def layer(x):
        return f(x, [h, h] if f is torch.lstm else h, params, True, 1, 0.0, True, both, False)[0]

    y = torch.compile(lambda x: layer(x).mul_(3), backend="mlirc")(x)
    y.detach().add_(1)  # the user's, too
    expected = layer(x) * 3 + 1
    torch.testing.assert_close(y, expected)
    ours, eager = (torch.autograd.grad(v.sin().sum(), [x, *params]) for v in (y, expected))
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind,gates,aten", [("gru", 3, []), ("rnn_tanh", 1, []), ("lstm", 4, ["aten.mkldnn_rnn_layer.default"])])
def test_many_steps(kind, gates, aten, monkeypatch):
    """oneDNN's loop where torch has it; else one op, however many steps: its own trace of a thousand takes very long to compile."""
    monkeypatch.setattr(layers_of_torch, "MAX_STEPS", 5)
    h = torch.zeros(1, 1, 3)

    def f(x, w, u):
        return getattr(torch, kind)(x[None], (h, h) if kind == "lstm" else h, [w, u], False, 1, 0.0, False, False, True)[0]

    counters.clear()
    args = R(8, 2), R(3 * gates, 2), R(3 * gates, 3)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, backend="mlirc", options={"strict": True})(*args), f(*args))
    assert left_to_aten() == aten and recorded()[-1].nodes < 30


def checkpointed(layer, x):
    return torch.utils.checkpoint.checkpoint(lambda x: layer(x)[0], x, use_reentrant=False) * 2


def either(layer, x):
    return torch.cond(x.sum() > 0, lambda x: layer(-x)[0].clone(), lambda x: layer(x)[0] * 2, (x,))


def region(layer, x):
    return torch.compiler.nested_compile_region(lambda x: layer(x)[0] * 1)(x) * 2


@pytest.mark.sampled
@pytest.mark.parametrize("part", [checkpointed, either, region])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_in_a_graph_within_the_graph(kind, part):
    torch.manual_seed(0)
    layer = getattr(nn, kind)(6, 8, batch_first=True)
    x = R(2, 5, 6)
    x = (x - x.mean() - 0.1).requires_grad_()
    leaves = [x, *layer.parameters()]
    ours, eager = torch.compile(part, backend="mlirc")(layer, x), layer(x)[0] * 2
    torch.testing.assert_close(ours, eager)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), leaves) for y in (ours, eager)), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(part, backend="mlirc")(layer, x), eager)
