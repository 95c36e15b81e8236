"""Contexts are used again, by one thread, and not for ever."""

from concurrent.futures import ThreadPoolExecutor

from mlirc.dialects.context import USES, kernel_context
from mlirc.dialects.mlir import ir


def test_a_context_serves_some_kernels_of_one_thread():
    seen = [kernel_context() for _ in range(2 * USES)]
    assert 2 <= len({id(c) for c in seen}) <= 3
    with ThreadPoolExecutor(1) as other:
        assert other.submit(kernel_context).result() is not kernel_context()


def test_what_fails_leaves_nothing_behind():
    for text in ("func.func @f() { return }", "func.func @f() { oops }", "func.func @f() { return }"):
        with kernel_context() as context, ir.Location.unknown():
            try:
                ir.Module.parse(text)
            except ir.MLIRError:
                assert "oops" in text
            assert ir.Context.current is context
