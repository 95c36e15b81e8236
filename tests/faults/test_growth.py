"""Many compilations and many calls take no more memory, files, threads or processes than a few."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from mlirc.tests.faults.harness import succeeds

STRICT = {"strict": True, "cache": False, "workers": 1}

USE = """
import gc, resource

def used():
    gc.collect()
    with open("/proc/self/statm") as statm:
        rss = int(statm.read().split()[1]) * resource.getpagesize() / 2**20
    with open("/proc/self/maps") as maps:
        mappings = len(maps.readlines())
    return rss, mappings, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(processes())

def compile_one(n):
    torch._dynamo.reset()
    w = torch.randn(9, 5)
    def f(x):
        return (x @ w + n % 7).softmax(-1), (x * (n + 0.5)).sort(0)[0], x.sum(0)
    x = torch.randn(6 + n % 3, 9)
    g = torch.compile(f, backend="mlirc", options={"strict": True, "cache": CACHE, "workers": 1}, dynamic=bool(n % 2))
    torch.testing.assert_close(g(x), f(x), rtol=1e-4, atol=1e-4)
"""


def compilations(warm, many, limit_mb, cache):
    """The growth from `warm` to `many` compilations: RSS in MiB, mappings, descriptors, threads, processes."""
    out = succeeds(
        USE.replace("CACHE", str(cache))
        + f"""
for n in range({many}):
    if n == {warm}:
        before = used()
    compile_one(n)
grown = [b - a for a, b in zip(before, used())]
print(*grown)
assert grown[0] < {limit_mb} and grown[1] < 40 and max(grown[2:]) <= 1, grown
""",
        timeout=5000.0,
    )
    print("growth (MiB, mappings, descriptors, threads, processes):", out)


def test_compilations():
    compilations(10, 30, 25, True)


@pytest.mark.sweep
@pytest.mark.parametrize("cache", [True, False])
def test_thousand_compilations(cache):
    compilations(100, 1100, 100, cache)


def calls(count):
    def f(x, w, i):
        y = (x @ w).softmax(-1)
        return y.sort(0)[0], y[i], x.cumsum(0)

    g = torch.compile(f, backend="mlirc", options=STRICT, dynamic=True)
    w, i = torch.randn(12, 8), torch.tensor([0, 3])
    inputs = [torch.randn(4 + n, 12) for n in range(20)]
    bad = torch.tensor([0, 99])

    def some(n):
        for k in range(n):
            g(inputs[k % 20], w, i)
            if k % 50 == 0:
                with pytest.raises(IndexError):
                    g(inputs[k % 20], w, bad)

    def used():
        gc.collect()
        with open("/proc/self/statm") as statm, open("/proc/self/maps") as maps:
            return int(statm.read().split()[1]) * 4096 / 2**20, len(maps.readlines()), len(os.listdir("/proc/self/fd"))

    some(500)
    before = used()
    some(count)
    grown = [b - a for a, b in zip(before, used())]
    print("growth (MiB, mappings, descriptors):", *grown)
    assert grown[0] < 8 and grown[1] < 10 and grown[2] <= 0, grown


def test_calls():
    calls(3000)


@pytest.mark.sweep
def test_hundred_thousand_calls():
    calls(100_000)
