"""Writes into inputs: whole, through views of every kind, into inputs that lie in memory in any way or share it."""

from __future__ import annotations

import pytest
import torch

from mlirc.tests.semantics.agree import agree, compiled

R = torch.randn
MODES = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def lying(n: int, m: int) -> list[torch.Tensor]:
    """Matrices n x m of all layouts that can be written to."""
    return [
        R(n, m),
        R(m, n).t(),
        R(2 * n, 3 * m)[1::2, 1::3],
        R(n * m + 1)[1:].view(n, m),
        R(n, m + 3)[:, 2:-1],
        R(n, 4, m)[:, 1],
        R(m, 2, n)[:, 0].t(),
        R(5 * n * m).as_strided((n, m), (2, 2 * n + 1), 3),
    ]


def through_steps(x):
    v = x[::2, 1:]
    v.mul_(2)
    v[1:, :2] = 1.5
    return v.sum(), x.amax(0)


def through_transposed(x):
    v = x.t()
    v[0].add_(10)
    v[1:3, 1:] -= v[2:4, :-1].clone()
    return v


def through_overlapping(x):
    a, b = x[:-1], x[1:]
    a.add_(1)
    b.mul_(a.sum())
    return a - b


def through_as_strided(x):
    v = torch.as_strided(x.contiguous(), (x.shape[0], 2), (x.shape[1], 1))
    v.add_(3)
    return v


def through_reshaped(x):
    x.unsqueeze(1).squeeze(1).permute(1, 0).unflatten(0, (-1, 1)).flatten(1)[2:].exp_()


def through_diagonal(x):
    x.diagonal().fill_(7)
    torch.diagonal(x, 1).mul_(x.diagonal().sum())
    return x.diagonal()


def through_parts(x):
    a, b = x.split([2, x.shape[0] - 2])
    a.copy_(b[:2] * 2)
    c, d = x.chunk(2, 1)
    d.zero_()
    for row in x.unbind(0)[:2]:
        row.add_(1)
    return c


def by_index(x):
    i = torch.tensor([2, 0, 2])
    x[i] = x[i] * 2
    x[i, i] += 5
    x.index_add_(0, i, x[:3].clone())
    x.index_fill_(1, torch.tensor([1]), -3)
    x.masked_fill_(x > 4, 4)
    x[x < -2] = 0
    x.scatter_(0, torch.zeros(1, x.shape[1], dtype=torch.long), 9.0)
    x.put_(torch.tensor([1, 3]), torch.tensor([0.5, 0.25]))
    return x.sum()


def old_values(x):
    before, part = x.clone(), x[1:].clone()
    y = x * 2
    x.add_(1)
    z = x * 2
    x[0] = 0
    return before, part, y, z


def out_variants(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    torch.mul(x, y, out=x)
    return y


def chain(x):
    for _ in range(4):
        x[1:].add_(x[:-1].clone())
        x.t()[1:].sub_(x.t()[:-1].clone())


def accumulates(x):
    x += x.t()[: x.shape[0], :1].clone()
    x -= x[:1].clone()
    x /= 3
    x **= 2
    return x


def both_ways(x):
    flipped = x.flip(0).clone()
    x.copy_(flipped)
    x.t().copy_(x.t().roll(1, 0))


def other_types(x):
    i = (x * 4).long()
    i //= 3
    b = x > 0
    b &= x < 1
    b.logical_not_()
    x.copy_(i)
    x.add_(b)
    return i, b


WRITERS = [
    through_steps, through_transposed, through_overlapping, through_as_strided, through_reshaped, through_diagonal, through_parts,
    by_index, old_values, out_variants, chain, accumulates, both_ways, other_types,
]  # fmt: skip


# With symbolic sizes, those that have found something; the others in the sweep.
SYMBOLIC = (through_as_strided, through_diagonal)
CASES = [(write, dynamic) for dynamic in (False, True) for write in WRITERS]


@pytest.mark.parametrize(
    "write, dynamic",
    [
        pytest.param(w, d, marks=pytest.mark.sweep if d and w not in SYMBOLIC else (), id=f"{w.__name__}-{'dynamic' if d else 'static'}")
        for w, d in CASES
    ],
)
def test_inputs_of_every_layout(write, dynamic):
    agree(lambda *xs: [write(x) for x in xs], *lying(5, 7), dynamic=dynamic)


@MODES
def test_views_made_outside(dynamic):
    """The base and views of it as arguments: a write to one shows in the others."""
    base = R(6, 8)
    views = [base, base[1:4], base.t(), base[:, ::2], base.view(-1)[5:], base.as_strided((4, 3), (5, 2), 2)]
    for writer in range(len(views)):
        for reader in {0, (writer + 1) % len(views)} - {writer}:

            def f(w, r):
                before = r.sum()
                w.mul_(2)
                w[0] = 1
                return before, r + 1, w.sum(), r

            agree(f, views[writer], views[reader], dynamic=dynamic)


@MODES
def test_both_of_two_overlapping_inputs_are_written(dynamic):
    base = R(40)

    def f(x, y, z):
        x.add_(1)
        y.mul_(z.sum())
        x.sub_(y.clone())
        return x * 1, z * 1

    for args in ((base[:10], base[5:15], base[12:20]), (base[:20:2], base[1:20:2], base[:20]), (base[:10], base[10:20], base[20:25])):
        agree(f, *args, dynamic=dynamic)


def test_windows_of_a_matrix_that_torch_takes_for_separate():
    m = R(4, 6)

    def f(x, y):
        x.add_(1)
        return x + y

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="'l_x_' .* and 'l_y_' .* share elements.*clone"):
        compiled(f, dynamic=False)(m[:3, :3], m[1:, 2:5])
    for x, y in ((m[:3, :3], m[1:, 3:6]), (m[:, :3], m[:, 3:]), (m[:3, :3], m[1:, 2:5].clone()), (m[:3], m[1:])):
        agree(f, x, y, dynamic=False)
    agree(lambda x, y, z: (z.add_(1), x + y), m[:3, :3], m[1:, 2:5], R(3), dynamic=False)


def test_one_tensor_given_twice_and_then_two():
    def f(x, y):
        x.add_(1)
        return x * y, y + 1

    x, y = R(3, 4), R(3, 4)
    ours = agree(f, x, x)
    agree(f, x, y, ours=ours)
    agree(f, x, x.view(3, 4), ours=ours)
    agree(f, x, x, ours=ours)


def test_arguments_begin_to_overlap():
    """A compilation for separate arguments must not serve overlapping ones."""

    def f(x, y):
        x.add_(1)
        return x * y

    base = R(30)
    ours = agree(f, base[:10], base[15:25])
    agree(f, base[:10], base[5:15], ours=ours)
    agree(f, base[5:15], base[:10], ours=ours)
    agree(f, R(10), R(10), ours=ours)


@pytest.mark.parametrize("dynamic", [False, None], ids=["static", "by themselves"])
def test_overlapping_arguments_move(dynamic):
    """As far apart as before, but elsewhere in a tensor that they are views of, or in one of another size."""

    def f(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    base = R(30)
    ours = agree(f, base[:4], base[2:6], dynamic=dynamic)
    for some in (base[1:], base[7:], R(6), R(8)[1:], R(5, 6).flatten()[3:], R(60)[::2].as_strided((7,), (1,), 3), base):
        agree(f, some[:4], some[2:6], ours=ours)
    with torch.inference_mode():
        agree(f, base[3:7], base[5:9], ours=ours)


@pytest.mark.parametrize("first", [0, 1], ids=["apart first", "views first"])
def test_arguments_that_are_views_of_a_buffer(first):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.arange(12.0))

        def forward(self, x):
            self.state.mul_(2)
            return x + 1, self.state.sum()

    class Reader(Counter):
        def forward(self, x):
            x.add_(1)
            return self.state * 2

    for kind in (Counter, Reader):
        torch._dynamo.reset()
        theirs, mine = kind(), kind()
        _views_of_a_buffer(theirs, mine, compiled(mine), first)


def _views_of_a_buffer(theirs, mine, ours, first):
    for n in range(4):
        args = [m.state[n : n + 3] if n % 2 == first else torch.ones(3) for m in (theirs, mine)]
        torch.testing.assert_close(ours(args[1]), theirs(args[0]))


@MODES
def test_expanded_inputs(dynamic):
    def f(x, y, z):
        return x * 2, y + z, (x @ y.t()).sum(0), z.sum(1), y.clone(), torch.cat([x, y])

    agree(f, R(1, 7).expand(5, 7), R(5, 1).expand(5, 7), R(1).expand(5, 7), dynamic=dynamic)

    def writes(x):  # eager refuses: several elements lie at one place
        x.add_(1)
        return x

    agree(writes, R(1, 7).expand(5, 7), dynamic=dynamic)


@MODES
def test_writes_between_the_elements_of_an_input(dynamic):
    """The values that were written are seen again, also those at places that the input does not have."""

    def f(x):
        v = x.as_strided((1, 3), (3, 1), 0)
        v.abs_()
        return v + 1

    x = R(4, 14)[..., ::2]
    agree(f, x, dynamic=dynamic)


@MODES
def test_inputs_that_overlap_themselves(dynamic):
    """Windows over a signal, as `unfold` makes them."""
    signal = R(40)
    agree(lambda x: (x * 2, x.sum(0), x.t() @ x), signal.unfold(0, 8, 3), dynamic=dynamic)
    agree(lambda x: x.as_strided((5, 4), (2, 3)) * 2, signal, dynamic=dynamic)


WRITES_TO_WINDOWS = {
    "one": lambda x: x[0].add_(1),
    "a part of one": lambda x: x[1, :3].add_(1),
    "an element of each": lambda x: x[:, 1].add_(1),
    "those of the transposed": lambda x: x.t()[0].fill_(1),
    "a diagonal": lambda x: x.diagonal().fill_(1),
    "windows of one": lambda x: x[1].unfold(0, 2, 2).fill_(1),
    "indexed": lambda x: x[1].index_fill_(0, torch.tensor([0, 2]), 5),
}


@MODES
@pytest.mark.parametrize("write", WRITES_TO_WINDOWS)
def test_writes_to_inputs_that_overlap_themselves(write, dynamic):
    """The other elements in the same memory change too, before they are read, and stay so."""

    def f(x, w):
        WRITES_TO_WINDOWS[write](x)
        return x * w

    for w in (R(4), R(4, requires_grad=True)):
        agree(f, R(12).unfold(0, 4, 1), w, dynamic=dynamic)


def test_metadata_changes():
    def f(x, y, z):
        x.t_()
        y.squeeze_(1).add_(1)
        z.unsqueeze_(0)
        return x + 1, y * 2, z.sum()

    agree(f, R(3, 4), R(3, 1, 2), R(4), calls=1)
    agree(lambda x: x.resize_(2, 3).fill_(1), R(6), calls=1)

    def sets(x, y):
        x.set_(y)
        return x + 1

    agree(sets, R(3), R(4), calls=1)


def test_a_write_of_one_shape_over_another():
    agree(lambda x, y: x.copy_(y), R(5, 4), R(4))
    agree(lambda x, y: x.copy_(y), torch.zeros(5, 4, dtype=torch.int32), R(5, 1) * 10)
    agree(lambda x, y: x[1:].copy_(y.t()), R(5, 4), R(4, 4).double())
    agree(lambda x: x.fill_(x[0, 1]), R(5, 4))
    agree(lambda x, y: x.add_(y, alpha=2), R(5, 4), torch.arange(4))
    agree(lambda x, y: x.add_(y), torch.arange(4), R(4))  # eager refuses


@MODES
def test_the_written_input_is_also_the_result(dynamic):
    agree(lambda x: x.add_(1), R(5, 4), dynamic=dynamic)
    agree(lambda x: x[:, ::2].add_(1), R(5, 4), dynamic=dynamic)
    agree(lambda x: (x.add_(1), x[:, ::2], x.t()[1:], x.view(-1)), R(5, 4), dynamic=dynamic)
    agree(lambda x: (x.add_(1)[1:3], x[:, 1:].mul_(2)), R(8, 8).t()[::2], dynamic=dynamic)
    agree(lambda x, y: (x.add_(y), y[::2], y.mul_(2)[1:]), R(9), R(9), dynamic=dynamic)


def test_writes_to_inference_tensors():
    """Errors outside of inference mode, as in eager mode, before anything is written."""

    def f(x, y):
        y.mul_(2)
        x.add_(y)
        return x * 2

    ours = compiled(f)
    with torch.inference_mode():
        x, y = torch.ones(3, 4), torch.ones(4)
        torch.testing.assert_close(ours(x, y), torch.full((3, 4), 6.0))
    for arguments in ((x, torch.ones(4)), (torch.ones(3, 4), y)):
        before = [t.clone() for t in arguments]
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            ours(*arguments)
        torch.testing.assert_close(list(arguments), before)
    torch.testing.assert_close(ours(torch.ones(3, 4), torch.ones(4)), torch.full((3, 4), 6.0))
