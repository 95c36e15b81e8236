"""Many threads of Python at once: compiling, calling, changing the number of threads of torch."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

from mlirc.tests.faults.harness import succeeds

STRICT = {"strict": True, "cache": False}


def compiled(f, **kwargs):
    return torch.compile(f, backend="mlirc", options=STRICT, **kwargs)


def at_once(n, run):
    """`run(i)` in n threads that start together; raises what one of them raised."""
    errors = []
    gate = threading.Barrier(n)

    def body(i):
        try:
            gate.wait(60)
            run(i)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    assert not any(t.is_alive() for t in threads)
    if errors:
        raise errors[0]


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


FUNCTIONS = [
    lambda x: (x * 2).softmax(-1),
    lambda x: x @ x.t() + 1,
    lambda x: F.layer_norm(x, (x.shape[1],)).amax(0),
    lambda x: x.cumsum(0)[1:],
    lambda x: F.conv1d(x[None], x[:, :3].repeat(2, 1)[: x.shape[0], None], groups=x.shape[0], padding=1).relu(),
    lambda x: torch.cat([x, x.t().reshape(x.shape)]).exp().mean(1),
    lambda x: (x.sort(0)[0] * 2, x.argmax(1)),
    lambda x: F.max_pool2d(x[None], 3, 1, 1).tanh(),
]


def test_the_first_use_in_several_threads():
    """The backend is imported while all of them look it up."""
    succeeds("""
        gate, failed = threading.Barrier(4), []
        def run():
            gate.wait()
            try:
                check()
            except BaseException as e:
                failed.append(e)
        threads = [threading.Thread(target=run) for _ in range(4)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not failed, failed
        check(other)
        assert "mlirc" in torch.compiler.list_backends()
    """)


def test_eight_threads_compile_different_functions():
    def run(i):
        f, x = compiled(FUNCTIONS[i]), torch.randn(24, 40)
        with torch.no_grad():
            for _ in range(10):
                close(f(x), FUNCTIONS[i](x))

    at_once(8, run)


def test_eight_threads_compile_one_function():
    def g(x, w):
        return F.gelu(x @ w).softmax(-1), (x * 3).sum(0)

    f = compiled(g)
    w = torch.randn(40, 24)

    def run(i):
        x = torch.randn(32, 40)
        with torch.no_grad():
            for _ in range(5):
                close(f(x + i, w), g(x + i, w))

    at_once(8, run)


def test_eight_threads_and_sizes_of_their_own():
    """Each thread recompiles for its number of columns while the others call; rows are symbolic from the second size on."""

    def g(x):
        y = torch.exp(x - x.amax(1, keepdim=True))
        return y / y.sum(1, keepdim=True), y @ y.t()

    f = compiled(g)

    def run(i):
        with torch.no_grad():
            for k in range(6):
                x = torch.randn(3 + 5 * i + 11 * k, 20 + i % 3)
                close(f(x), g(x))

    at_once(8, run)


def test_training_in_threads():
    def run(i):
        torch.manual_seed(i)
        m = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3 + i))
        f, x = compiled(m), torch.randn(7, 12)
        for _ in range(3):
            m.zero_grad()
            f(x).square().sum().backward()
            got = [p.grad.clone() for p in m.parameters()]
            m.zero_grad()
            m(x).square().sum().backward()
            close(got, [p.grad for p in m.parameters()])

    at_once(4, run)


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_threads_that_start_after_set_num_threads(set_threads):
    """A thread that is new to OpenMP runs with the number that is set, and gets the right result with any."""

    def g(x):
        return (x * 2 + 1).softmax(-1), x.sum(0)

    x = torch.randn(3000, 64)
    expected = g(x)
    f = compiled(g)
    set_threads(3)
    close(f(x), expected)
    seen = []
    for n in (1, 2, 4):
        set_threads(n)

        def run(i):
            for _ in range(3):
                close(f(x), expected)
            seen.append(torch.get_num_threads())

        at_once(3, run)
    assert len(seen) == 9


def test_set_num_threads_while_others_call(set_threads):
    def g(x):
        return torch.tanh(x).softmax(-1), (x @ x[:64].t()).amax(0)

    x = torch.randn(2500, 64)
    expected = g(x)
    f = compiled(g)
    f(x)
    done = threading.Event()

    def change():
        n = 0
        while not done.is_set():
            n += 1
            set_threads(1 + n % 4)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        at_once(3, lambda i: [close(f(x), expected) for _ in range(20)])
    finally:
        done.set()
        changer.join()


def test_errors_and_results_in_calls_at_once():
    """Half of the calls in flight fail, with a status of their own."""
    f = compiled(lambda w, i: F.embedding(i, w).sum(1) * 2)
    w, good = torch.randn(50, 30), torch.randint(0, 50, (400,))
    bad = good.clone()
    bad[77] = 50
    expected = f(w, good)

    def run(i):
        for _ in range(20):
            if i % 2:
                with pytest.raises(IndexError):
                    f(w, bad)
            else:
                close(f(w, good), expected)

    at_once(6, run)


def test_small_stacks():
    """A thread with the least stack that Python allows compiles and calls."""
    before = threading.stack_size(256 * 1024)
    try:

        def run(i):
            x = torch.randn(30, 30)
            close(compiled(FUNCTIONS[i])(x), FUNCTIONS[i](x))

        calls = compiled(FUNCTIONS[2])
        x = torch.randn(300, 300)
        expected = calls(x)
        at_once(2, lambda i: close(calls(x), expected))
        threading.stack_size(2 << 20)
        at_once(2, run)
    finally:
        threading.stack_size(before)
