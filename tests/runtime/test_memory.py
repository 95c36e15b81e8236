"""Planning the arena, and the blocks it is made of."""

import ctypes
import threading

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.runtime.expr import evaluate
from mlirc.runtime.memory import ArenaPool, Block, RoundUp, plan_offsets
from mlirc.runtime.plan import ArenaBuffer

S0, S1 = sympy.symbols("s0 s1", integer=True, positive=True)

lifetimes = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)
static_sizes = st.integers(0, 5000)
symbolic_sizes = st.builds(
    lambda c, f: c * f,
    st.sampled_from([1, 4, 60, 64, 1000, 1024, 3072, 3076]),
    st.sampled_from([S0, S1, S0 * S1, S0 + 1, S0**2, sympy.Max(S0, S1), 2 * S0 + 4 * S1]),
)


def check(buffers, values):
    """Nothing overlaps in memory while it does in time; offsets are aligned; the total covers everything."""
    offsets, total = plan_offsets(buffers)
    total = evaluate(total, values)
    spans = []
    for buffer, offset in zip(buffers, offsets, strict=True):
        start = evaluate(offset, values)
        size = evaluate(buffer.nbytes, values)
        assert start % 64 == 0
        assert 0 <= start <= start + size <= total
        spans.append((start, start + size, buffer))
    for i, (start, end, a) in enumerate(spans):
        for other_start, other_end, b in spans[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert end <= other_start or other_end <= start or start == end or other_start == other_end
    return total


@given(st.lists(st.tuples(static_sizes, lifetimes), max_size=30))
def test_static_buffers_never_overlap(items):
    check([ArenaBuffer(size, first, last) for size, (first, last) in items], {})


@settings(max_examples=50)
@given(
    st.lists(st.tuples(static_sizes | symbolic_sizes, lifetimes), max_size=15),
    st.sampled_from([0, 1, 2, 7, 64, 1000]),
    st.sampled_from([0, 1, 5, 63, 128]),
)
def test_symbolic_buffers_never_overlap(items, s0, s1):
    check([ArenaBuffer(size, first, last) for size, (first, last) in items], {"s0": s0, "s1": s1})


def test_a_chain_needs_two_buffers():
    assert check([ArenaBuffer(1000, i, i + 1) for i in range(10)], {}) == 2 * 1024


def test_small_buffers_fill_the_gap_of_a_large_one():
    buffers = [ArenaBuffer(4096, 0, 1), ArenaBuffer(2048, 2, 3), ArenaBuffer(2048, 2, 3)]
    assert check(buffers, {}) == 4096


def test_the_tightest_gap_is_taken():
    # Between the two that live throughout, gaps of 1024 and 512 open; 512 must not spoil the larger one.
    buffers = [
        ArenaBuffer(8192, 0, 9),
        ArenaBuffer(1024, 0, 1),
        ArenaBuffer(4096, 0, 9),
        ArenaBuffer(512, 0, 1),
        ArenaBuffer(1024, 2, 3),
        ArenaBuffer(512, 2, 3),
    ]
    assert check(buffers, {}) == 8192 + 4096 + 1024 + 512


def test_equal_symbolic_sizes_share():
    offsets, total = plan_offsets([ArenaBuffer(4 * S0, i, i + 1) for i in range(10)])
    assert len(set(offsets)) == 2
    assert total.subs({S0: 10}) == 128


def test_multiples_of_one_symbolic_factor_share():
    wide, narrow = 3072 * S0, 1024 * S0
    total = plan_offsets([ArenaBuffer(wide, 0, 1), ArenaBuffer(narrow, 2, 3), ArenaBuffer(narrow, 2, 3)])[1]
    assert total == wide


def test_no_buffers():
    assert plan_offsets([]) == ([], 0)


def test_round_up():
    assert RoundUp(65, 64) == 128
    assert RoundUp(0, 64) == 0
    assert RoundUp(S0, 64).subs(S0, 64) == 64


@pytest.mark.parametrize("nbytes", [0, 1, 64, 5000, 8 << 20])
def test_blocks_are_aligned_and_writable(nbytes):
    block = Block(nbytes)
    assert block.address and block.address % 64 == 0 and block.nbytes >= nbytes
    ctypes.memset(block.address, 1, nbytes)


def test_too_large_is_a_memory_error():
    with pytest.raises(MemoryError, match="intermediates"):
        Block(1 << 60)


def test_pool_lends_again_what_came_back():
    pool = ArenaPool()
    block = pool.take(5000)
    assert pool.take(5000) is not block
    pool.give(block)
    assert pool.take(100) is block


def test_pool_grows_without_keeping_what_is_too_small():
    pool = ArenaPool()
    for size in range(1, 20):
        pool.give(pool.take(size << 16))
    assert [b.nbytes for b in pool._free] == [19 << 16]


def test_pool_never_lends_a_block_twice():
    pool, held, errors = ArenaPool(), set(), []

    def work():
        for _ in range(2000):
            block = pool.take(100)
            if block.address in held:
                errors.append(block.address)
            held.add(block.address)
            held.discard(block.address)
            pool.give(block)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert len(pool._free) <= 4
