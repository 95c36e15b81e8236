"""Memory of large results: used again when nobody can see it any more, and never before."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mlirc.runtime.results import LARGE, MOST, ResultMemory

N = LARGE // 4
HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda t: t,
    "view": lambda t: t[5:7],
    "detached": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "storage": lambda t: t.untyped_storage(),
    "weak reference to the storage": lambda t: weakref.ref(t.untyped_storage()),
    "memory of another process": lambda t: t.share_memory_().untyped_storage()._share_fd_cpu_(),
    "autograd": lambda t: t * torch.ones((), requires_grad=True),
}


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compiled(**settings: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(add_one, backend="mlirc", **settings)


def test_what_was_dropped_is_used_again() -> None:
    f = compiled()
    y = f(torch.zeros(N))
    place = y.data_ptr()
    del y
    y = f(torch.ones(N))
    assert y.data_ptr() == place and bool((y == 2).all())


def test_a_loop_that_keeps_the_last_result_takes_turns() -> None:
    f, places = compiled(), set()
    for i in range(6):
        y = f(torch.full((N,), float(i)))
        assert bool((y == i + 1).all())
        places.add(y.data_ptr())
    assert len(places) == 2 == MOST


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_has_is_left_alone(holder: str) -> None:
    f = compiled()
    y = f(torch.zeros(N))
    held = HOLDERS[holder](y)
    place = y.data_ptr()  # sharing with another process moved it, and what it left may be anybody's
    del y
    again = [f(torch.full((N,), float(i))) for i in range(1, 5)]
    assert place not in [y.data_ptr() for y in again] and len({y.data_ptr() for y in again}) == 4
    if isinstance(held, torch.Tensor):
        assert bool((held == 1).all())
    assert all(bool((y == i + 2).all()) for i, y in enumerate(again))


def test_a_storage_that_was_resized_is_let_go() -> None:
    f = compiled()
    y = f(torch.zeros(N))
    y.untyped_storage().resize_(16)
    del y
    assert bool((f(torch.ones(N)) == 2).all())


def test_it_keeps_no_more_than_two() -> None:
    memory = ResultMemory()
    made = [memory.make((N,), (1,), torch.float32) for _ in range(5)]
    owners = [weakref.ref(t) for t in made]
    del made
    assert all(owner() is None for owner in owners) and len(memory._kept) == MOST


def test_results_of_other_sizes_and_strides() -> None:
    f = compiled(dynamic=True)
    for shape in [(N,), (N + 7,), (N,), (3,), (0,), (2 * N,)]:
        assert torch.equal(f(torch.ones(shape)), torch.full(shape, 2.0))
    memory = ResultMemory()
    for shape, strides in [((1024, 1024), (1, 1024)), ((1024, 1024), (1024, 1)), ((512, 2048), (2048, 1))]:
        t = memory.make(shape, strides, torch.float32)
        assert t.shape == shape and t.stride() == strides and t.untyped_storage().nbytes() == LARGE
        place = t.data_ptr()
        del t
    assert memory.make((LARGE // 2,), (1,), torch.bfloat16).data_ptr() == place


def test_small_results_are_not_kept() -> None:
    memory = ResultMemory()
    memory.make((N - 1,), (1,), torch.float32)
    assert not memory._kept


def storages_of_a_step() -> list[weakref.ref]:
    """Of the result, which is saved, and of the gradient, both dropped."""
    x = torch.zeros(N, requires_grad=True)
    y = torch.compile(torch.exp, backend="mlirc")(x)
    y.sum().backward()
    assert x.grad is not None
    return [weakref.ref(y.untyped_storage()), weakref.ref(x.grad.untyped_storage())]


def test_steps_of_training_use_their_memory_again() -> None:
    """What the forward graph saves, and the gradients, as soon as those of the step before are dropped."""
    f = torch.compile(lambda x: x.exp(), backend="mlirc")
    x = torch.zeros(N // 8, requires_grad=True)
    places = []
    for _ in range(4):
        x.grad = None
        y = f(x)
        y.sum().backward()
        assert x.grad is not None and bool((x.grad == 1).all())
        places.append((y.data_ptr(), x.grad.data_ptr()))
        del y
    assert places[2] == places[1] == places[3]


def test_memory_of_a_step_is_kept() -> None:
    """Not given back and, by chance, got again."""
    assert all(owner() is not None for owner in storages_of_a_step())


def test_gradients_that_are_kept_are_not_written_to() -> None:
    f = torch.compile(lambda x: x * x, backend="mlirc")
    kept = []
    for i in range(6):
        x = torch.full((N,), float(i), requires_grad=True)
        (g,) = torch.autograd.grad(f(x).sum(), x)
        kept.append(g)
    assert all(bool((g == 2 * i).all()) for i, g in enumerate(kept))
    x = torch.full((N,), 3.0, requires_grad=True)
    for _ in range(5):
        f(x).sum().backward()
    assert x.grad is not None and bool((x.grad == 30).all())


def test_what_takes_too_much_of_the_machine_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlirc.frontend.runner.most_kept", lambda: 1 << 20)
    assert all(owner() is None for owner in storages_of_a_step())


def test_inference_mode_and_fake_tensors() -> None:
    f = compiled()
    for _ in range(3):
        with torch.inference_mode():
            y = f(torch.ones(N))
            assert y.is_inference() and bool((y == 2).all())
        del y
        assert not f(torch.ones(N)).is_inference()
    memory = ResultMemory()
    memory.make((N,), (1,), torch.float32)
    with FakeTensorMode():
        assert type(memory.make((N,), (1,), torch.float32)).__name__ == "FakeTensor"


def test_threads_never_share_a_result() -> None:
    f = compiled()
    f(torch.zeros(N))
    wrong: list[tuple[int, int]] = []

    def call(me: int) -> None:
        for i in range(30):
            y = f(torch.full((N,), float(100 * me + i)))
            if not bool((y == 100 * me + i + 1).all()):
                wrong.append((me, i))

    threads = [threading.Thread(target=call, args=(me,)) for me in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
