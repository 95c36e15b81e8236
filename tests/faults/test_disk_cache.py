"""Compiling with a cache that is damaged, shared, of another CPU, or not to be had."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

from mlirc.driver import kernel_cache
from mlirc.options import Options
from mlirc.runtime.cache import pack, unpack
from mlirc.tests.faults.harness import PRELUDE, Outcome

X = torch.randn(12, 9)


def f(x):
    return torch.sin(x).softmax(-1), x @ x.t()


def run(folder, **options):
    """One compilation with the cache in `folder`; the warnings."""
    got = Outcome(f, X, cache=True, cache_dir=str(folder), strict=True, **options)
    torch.testing.assert_close(got.result, f(X), rtol=1e-4, atol=1e-4)
    return got.warnings


def entries(folder):
    return sorted(folder.glob("*.kernel"))


@pytest.mark.parametrize("damage", ["a flipped bit", "half", "nothing left", "garbage"])
def test_damaged_entries_are_replaced(tmp_path, damage):
    assert run(tmp_path) == []
    whole = {p: p.read_bytes() for p in entries(tmp_path)}
    assert len(whole) >= 2
    for path, data in whole.items():
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"a flipped bit": flipped, "half": data[:middle], "nothing left": b"", "garbage": b"\x7fELF" * 500}[damage])
    assert run(tmp_path) == []
    assert {p: p.read_bytes() for p in entries(tmp_path)} == whole


@pytest.mark.parametrize("damage", ["truncated", "another symbol", "no object", "not packed"])
def test_entries_that_are_whole_and_wrong(tmp_path, damage):
    """The checksum is right, the object is not one, or not that of this kernel."""
    run(tmp_path)
    cache = kernel_cache(Options(cache_dir=str(tmp_path)))
    keys = [p.name.removesuffix(".kernel") for p in entries(tmp_path)]
    objects = [unpack(cache.get(k))[1] for k in keys]
    for n, key in enumerate(keys):
        wrong = {"truncated": objects[n][:-200], "another symbol": objects[n - 1], "no object": b"", "not packed": None}[damage]
        cache.put(key, b"\xff\xff" if wrong is None else pack({}, wrong))
    assert run(tmp_path) == []
    assert [unpack(cache.get(k))[1] for k in keys] == objects


def test_each_cpu_has_entries_of_its_own(tmp_path):
    """A home on a network drive: machines with other CPUs find nothing of each other's."""
    run(tmp_path)
    mine = set(entries(tmp_path))
    run(tmp_path, target="x86-64-v3")
    assert mine < set(entries(tmp_path)) and len(entries(tmp_path)) == 2 * len(mine)
    before = {p: p.stat().st_mtime_ns for p in entries(tmp_path)}
    run(tmp_path)
    assert set(before) == set(entries(tmp_path))


def test_no_cache_to_be_had():
    """One warning in a process, however many graphs there are."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(3):
            torch._dynamo.reset()
            options = {"cache_dir": "/proc/nowhere", "workers": 1, "strict": True}
            g = torch.compile(lambda x, n=n: x * n + 1, backend="mlirc", options=options)
            torch.testing.assert_close(g(X), X * n + 1)
    assert len([w for w in seen if "/proc/nowhere" in str(w.message)]) == 1


def test_processes_share_a_cache_that_is_being_cleared(tmp_path):
    body = f"""
for n in range(3):
    torch._dynamo.reset()
    check(cache=True, cache_dir={str(tmp_path / "cache")!r})
    check(other, cache=True, cache_dir={str(tmp_path / "cache")!r})
print("right")
"""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", PRELUDE + body]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    cache = kernel_cache(Options(cache_dir=str(tmp_path / "cache")))
    while any(p.poll() is None for p in running):
        try:
            running[0].wait(0.05)
        except subprocess.TimeoutExpired:
            cache.clear()
        else:
            running[1].wait(240)
    for p in running:
        out, err = p.communicate(timeout=240)
        assert out == "right\n", err
