"""Kernels alone on random data: times by a clock that is not one, results that agree or do not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlirc.runtime import bench
from mlirc.runtime.bench import Bench, Buffer, Operands, best_of, measure, rounds
from mlirc.runtime.loader import assemble

N = 100
ADD = Operands((Buffer("f32", N), Buffer("f32", N)), (Buffer("f32", N),), 1)


def kernel(name: str, op: str = "fadd", last: int = N, status: int = 0) -> bytes:
    """result[i] = a[i] op b[i] for i below `last`."""
    return assemble(f"""
define void @{name}(ptr %context) {{
entry:
  %status = load ptr, ptr %context
  store i64 {status}, ptr %status
  %p1 = getelementptr ptr, ptr %context, i64 1
  %a = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %context, i64 2
  %b = load ptr, ptr %p2
  %p3 = getelementptr ptr, ptr %context, i64 3
  %r = load ptr, ptr %p3
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %ai = getelementptr float, ptr %a, i64 %i
  %bi = getelementptr float, ptr %b, i64 %i
  %ri = getelementptr float, ptr %r, i64 %i
  %x = load float, ptr %ai
  %y = load float, ptr %bi
  %z = {op} float %x, %y
  store float %z, ptr %ri
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {last}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
""")


@pytest.fixture
def timed(monkeypatch):
    """Whoever is named is as fast as it says; the calls that were compared."""

    def set_times(*times):
        seen = []

        def fake(calls):
            seen.append(len(calls))
            for call in calls:
                call()
            return [[t * 1e-6] * 5 for t, _ in zip(times, calls)]

        monkeypatch.setattr(bench, "rounds", fake)
        return seen

    return set_times


def test_the_fastest_wins(timed):
    timed(10, 12, 8, 9)
    winner, times = measure(ADD, {f"k{n}": kernel(f"k{n}") for n in range(4)})
    assert winner == 2 and times == pytest.approx([10e-6, 12e-6, 8e-6, 9e-6])


def test_a_little_faster_is_not_enough(timed):
    timed(10, 9.9)
    assert measure(ADD, {f"k{n}": kernel(f"k{n}") for n in range(2)})[0] == 0


@pytest.mark.parametrize("wrong", [{"op": "fsub"}, {"last": N - 1}, {"status": 1}])
def test_a_wrong_candidate_never_wins(timed, wrong, caplog):
    seen = timed(10, 8, 1)
    objects = {"k0": kernel("k0"), "k1": kernel("k1", **wrong), "k2": kernel("k2")}
    winner, times = measure(ADD, objects)
    assert winner == 2 and seen == [2] and times[1] == float("inf")
    assert "k1" in caplog.text


def test_what_fails_on_random_data_is_not_measured(timed):
    timed(1, 1)
    with pytest.raises(ValueError, match="status 2"):
        measure(ADD, {"k0": kernel("k0", status=2), "k1": kernel("k1")})
    with pytest.raises(ValueError, match="not finite"):
        measure(Operands(ADD.arguments, (Buffer("f32", N),)), {"k0": nan(), "k1": kernel("k1")})


def nan() -> bytes:
    return assemble("""
define void @k0(ptr %context) {
  %p3 = getelementptr ptr, ptr %context, i64 3
  %r = load ptr, ptr %p3
  call void @llvm.memset.p0.i64(ptr %r, i8 -1, i64 400, i1 false)
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
""")


def test_rounds_take_turns_and_give_everybody_the_same_number():
    order = []
    ticks = itertools.count()
    times = rounds([lambda n=n: order.append(n) for n in range(3)], clock=lambda: next(ticks) * 1e-3, seconds=0.05)
    assert len({len(t) for t in times}) == 1 and len(times[0]) >= bench.LEAST_ROUNDS
    assert all(t == pytest.approx(1e-3) for t in times[0])
    timed_order = order[6:]
    assert timed_order[:9] == [0, 1, 2, 1, 2, 0, 2, 0, 1]


def test_short_calls_are_repeated_and_long_ones_are_not():
    for tick, calls in ((1e-6, 50), (1.0, 1)):
        count = 0

        def call() -> None:
            nonlocal count
            count += 1

        ticks = itertools.count()
        times = rounds([call], clock=lambda ticks=ticks, tick=tick: next(ticks) * tick, seconds=0.0)
        assert count == 2 + calls * len(times[0]) and len(times[0]) == bench.LEAST_ROUNDS


def test_a_noisy_phase_that_hits_all_decides_nothing():
    slow = [1.0, 1.0, 9.0, 9.0, 1.0]
    assert best_of([slow, [t * 0.9 for t in slow]]) == 1
    assert best_of([slow, [1.0, 1.0, 1.0, 9.0, 1.0]]) == 0


def test_the_packed_operand_is_another_copy_each_time():
    b = Bench(ADD)
    places = []
    for _ in range(3):
        b.run(lambda context: places.append((context[1], context[2], context[3])))
    assert len({p[1] for p in places}) == 3 and len({(p[0], p[2]) for p in places}) == 1
    assert all(p % 64 == 0 for place in places for p in place)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16", "i64", "i32", "i16", "i8", "i1"])
def test_random_data_of_every_dtype(dtype):
    buffer = Buffer(dtype, 1000)
    data = bench._random(buffer, np.random.default_rng(0))
    numbers = bench._numbers(buffer, data)
    assert len(numbers) == 1000 and (np.abs(numbers) <= 8).all()
    assert len(np.unique(numbers)) > 1 or dtype in ("i64", "i32")
    assert bench._same(numbers, numbers.copy(), 0.0)
    assert len(bench._random(Buffer(dtype, 0), np.random.default_rng(0))) == 8
