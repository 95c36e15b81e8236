"""Kernel texts that no importer would write: a worker may die of them, this process may not."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time

import pytest
import torch

from mlirc import driver
from mlirc.lowering.target import Target
from mlirc.options import Options
from mlirc.runtime.pool import WorkerError, get_pool
from mlirc.tests.faults.harness import Outcome

OPTIONS = Options(workers=1, worker_timeout=10.0, worker_memory_mb=700, cache=False)
JOB = "mlirc.driver:compile_kernel_job"


def verdict(text):
    """What becomes of a kernel with this text: bytes, or the exception."""
    future = get_pool(OPTIONS).submit(JOB, text, Target.host(), "mlirc_hostile")
    return future.exception(60) or future.result()


def function(body, head="%x: tensor<4xf32>", result="tensor<4xf32>"):
    return f"module {{\nfunc.func @kernel({head}) -> {result} {{\n{body}\n}}\n}}"


HOSTILE = {
    "nothing": "",
    "no IR": "\0\xff garbage",
    "an empty module": "module {}",
    "a declaration": "func.func private @kernel(tensor<4xf32>) -> tensor<4xf32>",
    "no linalg": function("return %x : tensor<4xf32>"),
    "a call of itself": function("%y = func.call @kernel(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %y : tensor<4xf32>"),
    "a wrong type": function("return %x : tensor<4xf64>"),
    "an unknown dialect": function('%y = "nowhere.op"(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %y : tensor<4xf32>'),
    "no rank": function("return %x : tensor<*xf32>", "%x: tensor<*xf32>", "tensor<*xf32>"),
    "deep nesting": "module {" * 60_000,
    "deep types": function("return", f"%x: {'tuple<' * 100_000}", "()"),
    "a huge shape": function("return %x : tensor<99999999999999999999xf32>"),
    "llvm": "module { llvm.func @kernel() { llvm.unreachable } }",
    "endless branch": "func.func @kernel(%x: tensor<4xf32>) -> tensor<4xf32> {\ncf.br ^a\n^a:\ncf.br ^a\n}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_texts(kind):
    assert isinstance(verdict(HOSTILE[kind]), Exception)


def kernels():
    """Texts of kernels of several kinds, as the importer makes them."""
    found = []
    real = driver.compile_kernels

    def remember(kernels, *rest):
        found.extend(k.text for k in kernels)
        return real(kernels, *rest)

    def f(x, w, i):
        y = torch.nn.functional.layer_norm(x @ w, (w.shape[1],))
        return y.softmax(-1).amax(0), x[i].cumsum(0), torch.nn.functional.max_pool2d(x[None, None], 3)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(driver, "compile_kernels", remember)
        Outcome(f, torch.randn(9, 12), torch.randn(12, 7), torch.tensor([0, 5, 3]))
    assert len(found) >= 4
    return found


def mutate(text, rng):
    """A line, a token or a number of it is lost, doubled, moved or replaced."""
    lines = text.splitlines()
    at, other = rng.randrange(1, len(lines)), rng.randrange(1, len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            tokens = re.findall(r"%\w+|\d+|[a-z][\w.]*|.", lines[at]) or [""]
            words = re.findall(r"%\w+|\d+|[a-z][\w.]*", text)
            t = rng.randrange(len(tokens))
            number = tokens[t].isdigit()
            tokens[t] = rng.choice(["0", "1", "-1", "7", "65536", "9223372036854775807"]) if number else rng.choice([*words, "", "d3"])
            lines[at] = "".join(tokens)
    return "\n".join(lines)


def mutants(count, seed):
    rng = random.Random(seed)
    texts = kernels()
    died = []
    for n in range(count):
        text = mutate(rng.choice(texts), rng)
        for _ in range(rng.randrange(3)):
            text = mutate(text, rng)
        got = verdict(text)
        assert isinstance(got, (bytes, Exception)), text
        if isinstance(got, WorkerError):
            died.append((n, got.reason))
    assert isinstance(verdict(texts[0]), bytes)
    return died


def test_mutants():
    mutants(40, seed=0)


@pytest.mark.sweep
def test_many_mutants():
    died = mutants(3000, seed=1)
    print(f"{len(died)} of 3000 texts killed their worker")


def test_a_worker_is_killed_in_the_middle(monkeypatch):
    """By the system, for want of memory, or by somebody: the kernel is left to ATen, the next graph compiles."""
    pool = get_pool(OPTIONS)
    pool.submit("math:sqrt", 4).result(60)
    real = pool.submit

    def slow(path, text, *rest):
        # A kernel that takes long enough to be hit.
        return real("time:sleep", 1000) if "math.sin" in text else real(path, text, *rest)

    def kill():
        while not pool._running:
            time.sleep(0.01)
        for pid in pool.pids():
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(pool, "submit", slow)
    killer = threading.Thread(target=kill)
    killer.start()
    x = torch.randn(9, 9)
    got = Outcome(lambda x: torch.sin(x) + 1, x, worker_timeout=10.0, worker_memory_mb=700)
    killer.join()
    torch.testing.assert_close(got.result, torch.sin(x) + 1)
    assert len(got.warnings) == 1 and "killed by SIGKILL" in got.warnings[0] and "k00_sin_add" in got.warnings[0]
    monkeypatch.undo()
    assert not Outcome(lambda x: torch.sin(x) + 1, x, worker_timeout=10.0, worker_memory_mb=700).warnings
