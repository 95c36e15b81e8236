"""Weights that change between calls, by every way there is; modules that share one compilation."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.runtime import weights
from mlirc.tests.semantics.agree import compiled

R = torch.randn


class Net(nn.Module):
    """Contractions whose weights are packed, a batch norm that is folded, and a scale that is neither."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(24, 40)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(40, 24, bias=False)
        self.scale = nn.Parameter(torch.ones(24))
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x):
        y = self.out(F.gelu(self.inner(x))) * self.scale
        return self.norm(self.conv(y.view(1, 3, -1, 24))).relu()


def agrees(f, module, x, **kwargs):
    expected = module(x)
    torch.testing.assert_close(f(x), expected, rtol=1e-4, atol=1e-5 * max(1.0, expected.abs().max().item()), **kwargs)


@pytest.fixture
def input():
    return R(12, 24)


def in_place(net):
    with torch.no_grad():
        net.inner.weight.mul_(1.3)
        net.conv.weight.copy_(R(8, 3, 3, 3))


def one_element(net):
    with torch.no_grad():
        net.inner.weight[17, 5] += 3
        net.conv.weight[3, 1, 1, 1] = -2


def through_data(net):
    """A merge of a low-rank update (LoRA), and its removal."""
    net.inner.weight.data += R(40, 2) @ R(2, 24)


def new_data(net):
    net.out.weight.data = R(24, 40)
    net.inner.bias.data = R(40)


def through_numpy(net):
    net.inner.weight.detach().numpy()[...] *= 0.5


def moving_average(net):
    other = Net()
    for p, q in zip(net.parameters(), other.parameters()):
        p.data.lerp_(q.data, 0.1)


def loaded(net):
    net.load_state_dict(Net().state_dict())


def loaded_by_assignment(net):
    net.load_state_dict(Net().state_dict(), assign=True)


def new_parameters(net):
    net.inner.weight = nn.Parameter(R(40, 24))
    net.norm.running_var = torch.rand(8) + 0.5


def new_submodule(net):
    net.inner = nn.Linear(24, 40)


def running_statistics(net):
    net.norm.running_mean.add_(1)


def copied_through_view(net):
    with torch.no_grad():
        net.out.weight.view(-1)[7::11].zero_()
        net.conv.weight.permute(1, 0, 2, 3)[0] += 1


def swapped(net):
    with torch.no_grad():
        net.out.weight.set_(R(24, 40))


def tied(net):
    net.out.weight = nn.Parameter(net.inner.weight.detach().t().contiguous())
    net.inner.weight = nn.Parameter(net.out.weight.detach().t())


def other_strides(net):
    net.inner.weight = nn.Parameter(R(24, 40).t())
    net.conv.to(memory_format=torch.channels_last)


def cast_and_back(net):
    net.bfloat16().float()


def trained(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, foreach=True)
    with torch.enable_grad():
        net(R(12, 24)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


CHANGES = [
    in_place, one_element, through_data, new_data, through_numpy, moving_average, loaded, loaded_by_assignment, new_parameters,
    new_submodule, running_statistics, copied_through_view, swapped, tied, other_strides, cast_and_back, trained,
]  # fmt: skip


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "frozen", "training"])
def test_weights_change(mode, input):
    torch.manual_seed(0)
    net = Net().eval()
    if mode == "frozen":
        net.requires_grad_(False)
    f = compiled(net)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(mode, torch.enable_grad)
    for change in [lambda net: None, *CHANGES]:
        if mode == "frozen" and change is trained:
            continue
        change(net)
        torch._dynamo.utils.counters.clear()
        with context():
            agrees(f, net, input)
            agrees(f, net, input)


def test_writes_that_torch_does_not_count_are_seen_with_invalidate(input):
    import mlirc

    net = Net().eval().requires_grad_(False)
    f = compiled(net)
    agrees(f, net, input)
    net.inner.weight.numpy()[20, 11] += 5
    mlirc.invalidate()
    agrees(f, net, input)


def by_hand(net):
    for p in net.parameters():
        p.data.sub_(p.grad.data * 0.5)
    net.zero_grad()


def fused(net):
    torch.optim.Adam(net.parameters(), lr=0.05, fused=True).step()
    net.zero_grad()


@pytest.mark.parametrize("step", [by_hand, fused])
def test_training_that_is_not_counted(step):
    """Neither changes versions. Pixels at the edges of digits are zero, and so are the gradients of their weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    x = F.pad(torch.rand(32, 22, 22), (3, 3, 3, 3)).flatten(1)
    f = compiled(net, dynamic=False)
    for n in (32, 32, 31):
        F.cross_entropy(net(x), torch.randint(0, 10, (32,))).backward()
        step(net)
        with torch.no_grad():
            agrees(f, net, x[:n])


def test_small_weights():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.one, self.three = nn.Parameter(R(24, 40)), nn.Parameter(R(1)), nn.Parameter(R(3))

        def forward(self, x):
            return x @ (self.weight.view(3, 8, 40) * self.one * self.three[:, None, None]).view(24, 40)

    net, x = Scaled(), R(5, 24)
    f = compiled(net)
    with torch.no_grad():
        agrees(f, net, x)
        net.one.data.fill_(3)
        agrees(f, net, x)
        net.three.data[2] = -2
        agrees(f, net, x)


def test_other_memory_at_the_same_address():
    net, x = nn.Linear(24, 40, bias=False), R(5, 24)
    memory = R(40, 24).numpy()
    net.weight.data = torch.from_numpy(memory)
    f = compiled(net)
    with torch.no_grad():
        agrees(f, net, x)
        net.weight.data = torch.empty(0)
        memory[17, 5] += 3
        net.weight.data = torch.from_numpy(memory)
        agrees(f, net, x)


@pytest.mark.parametrize("how", ["swap_tensors", "load_state_dict"])
def test_weights_that_are_swapped(input, how):
    """torch refuses to swap tensors that have weak references, or that anything else holds."""
    net, other = Net().eval(), Net().eval()
    f = compiled(net)
    with torch.no_grad():
        agrees(f, net, input)
        if how == "swap_tensors":
            torch.utils.swap_tensors(net.inner.weight, other.inner.weight)
            torch.utils.swap_tensors(net.norm.running_mean, other.norm.running_mean)
        else:
            torch.__future__.set_swap_module_params_on_conversion(True)
            try:
                net.load_state_dict(other.state_dict())
            finally:
                torch.__future__.set_swap_module_params_on_conversion(False)
        agrees(f, net, input)


def test_a_new_parameter_in_the_same_memory():
    """Neither its version nor the fingerprint says that one element was written to before; that it is another tensor does."""
    net, x = nn.Linear(24, 40, bias=False), R(5, 24)
    f = compiled(net)
    with torch.no_grad():
        agrees(f, net, x)
        data = net.weight.data
        data[17, 5] += 3
        net.weight = nn.Parameter(data)
        agrees(f, net, x)


def test_tied_weights(input):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(30, 24), nn.Linear(24, 30, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, i):
            return self.head(self.embed(i).tanh())

    net, i = Tied(), torch.randint(0, 30, (7,))
    f = compiled(net)
    for _ in range(2):
        with torch.no_grad():
            agrees(f, net, i)
            net.embed.weight.mul_(-0.5)
        agrees(f, net, i)
        f(i).sum().backward()
        got = net.head.weight.grad.clone()
        net.zero_grad()
        net(i).sum().backward()
        torch.testing.assert_close(got, net.embed.weight.grad)
        net.zero_grad()
    net.head.weight = nn.Parameter(R(30, 24))  # no longer tied
    with torch.no_grad():
        agrees(f, net, i)


def test_instances_share_a_compilation(input):
    nets = [Net().eval() for _ in range(4)]
    f = compiled(lambda net, x: net(x))
    with torch.no_grad():
        for _ in range(2):
            for net in nets:
                agrees(lambda x, net=net: f(net, x), net, input)
        in_place(nets[2])
        for net in nets:
            agrees(lambda x, net=net: f(net, x), net, input)
        dead = weakref.ref(nets[0].inner.weight)
        nets.pop(0)
        del net
        gc.collect()
        assert dead() is None, "the compilation keeps the weights of a module alive"
        nets += [Net().eval() for _ in range(2)]  # quite likely where the dead one's weights were
        for net in nets:
            agrees(lambda x, net=net: f(net, x), net, input)


def test_compilations_share_packed_weights(input):
    """One for each batch size, of the same weights."""
    net = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24)).eval()
    f = compiled(net, dynamic=False)
    with torch.no_grad():
        before = len(weights._kept)
        agrees(f, net, input)
        packed = len(weights._kept) - before
        agrees(f, net, input[:5])
    assert packed and len(weights._kept) - before == packed


def test_many_layers_of_one_class(input):
    """A stack of equal layers, compiled as one graph and layer by layer."""
    layers = nn.ModuleList([nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), nn.ReLU()) for _ in range(5)]).requires_grad_(False)

    def run(x):
        for layer in layers:
            x = layer(x) + x
        return x

    agrees(compiled(run), run, input)
    expected = run(input)
    for layer in layers:
        layer.compile(backend="mlirc", options={"strict": True})
    torch.testing.assert_close(run(input), expected, rtol=1e-4, atol=1e-4)
    layers[3][0].weight.zero_()
    torch.testing.assert_close(run(input), compiled(run)(input), rtol=1e-4, atol=1e-4)


def test_copies_of_a_compiled_module(input):
    net = Net().eval().requires_grad_(False)
    f = compiled(net)
    agrees(f, net, input)
    assert list(f.state_dict()) == ["_orig_mod." + k for k in net.state_dict()]
    clone = copy.deepcopy(f)
    clone.inner.weight.zero_()
    agrees(f, net, input)
    agrees(clone, clone._orig_mod, input)
    assert not torch.allclose(clone(input), f(input))
    buffer = io.BytesIO()
    torch.save(f.state_dict(), buffer)
    buffer.seek(0)
    f.load_state_dict(Net().state_dict(), strict=False)
    f.load_state_dict(torch.load(buffer))
    agrees(f, net, input)
    other = Net().eval().requires_grad_(False)
    other.load_state_dict(pickle.loads(pickle.dumps(net.state_dict())))
    torch.testing.assert_close(other(input), f(input), rtol=1e-4, atol=1e-5)


def test_parameters_written_in_forward():
    class Power(nn.Module):
        """One step of power iteration per call, as spectral norm does; a weight that is centred in place."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(R(16, 24))
            self.register_buffer("u", F.normalize(R(16), dim=0))

        def forward(self, x):
            with torch.no_grad():
                v = F.normalize(self.weight.t() @ self.u, dim=0)
                self.u.copy_(F.normalize(self.weight @ v, dim=0))
                self.weight.sub_(self.weight.mean(1, keepdim=True) * 0.1)
            return x @ (self.weight / (self.u @ self.weight @ v)).t()

    torch.manual_seed(0)
    eager, x = Power(), R(5, 24)
    ours = copy.deepcopy(eager)
    f = compiled(ours)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                torch.testing.assert_close(f(x), eager(x), rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))
                torch.testing.assert_close(ours.weight, eager.weight)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None), nn.BatchNorm1d(6, affine=False), nn.BatchNorm1d(6, track_running_stats=False)], ids=str)
def test_batch_norm_in_training(norm):
    eager, ours = copy.deepcopy(norm), copy.deepcopy(norm)
    f = compiled(ours)
    for step in range(5):
        for m in (eager, ours):
            m.train(step != 3)
        x = R(4, 6, 5) * (step + 1) + 2
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.testing.assert_close(f(a), eager(b))
        f(a).square().sum().backward()
        eager(b).square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))
        with torch.no_grad():
            torch.testing.assert_close(f(x), eager(x))
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))


def test_optimizer_steps_compiled(input):
    torch.manual_seed(0)
    eager = nn.Linear(24, 5)
    ours = copy.deepcopy(eager)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (eager, ours)]
    step = compiled(optimizers[1].step)
    for _ in range(4):
        for m in (eager, ours):
            m.zero_grad()
            m(input).square().mean().backward()
        optimizers[0].step()
        step()
        torch.testing.assert_close(ours.weight, eager.weight, rtol=1e-4, atol=1e-5)


class Cache(nn.Module):
    def __init__(self, kind):
        super().__init__()
        keys = torch.zeros(64, 32)
        self.keys = nn.Buffer(keys) if kind == "buffer" else [keys] if kind == "list" else keys

    def set(self, x):
        if isinstance(self.keys, list):
            self.keys[0] = x
        else:
            self.keys = x

    def rows(self):
        return self.keys[0] if isinstance(self.keys, list) else self.keys

    def forward(self, q):
        return q @ self.rows().t()


@pytest.mark.parametrize("kind", ["attribute", "buffer", "list"])
@pytest.mark.parametrize("before", [False, True], ids=["", "compiled for a counted one"])
def test_inference_tensors_have_no_versions(kind, before):
    """A cache made under inference_mode and filled there row by row."""
    net = Cache(kind)
    f = compiled(net)
    if before:
        agrees(f, net, R(2, 32))
    with torch.inference_mode():
        net.set(torch.zeros(64, 32))
        q = R(2, 32)
        for row in range(8):
            agrees(f, net, q)
            net.rows()[row].fill_(row + 1)
            agrees(f, net, q)
