"""Guard pages by themselves: blocks, faults, programs whose kernels are written by hand."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import threading

import pytest
import torch

from mlirc.errors import GuardPageError
from mlirc.runtime import guards
from mlirc.runtime.faults import PAGE, available, watch
from mlirc.runtime.guarded import GuardedProgram
from mlirc.runtime.guards import GuardedBlock
from mlirc.runtime.loader import assemble
from mlirc.runtime.plan import ArenaBuffer, Buffer, HostStep, KernelStep, Plan, Pointer

pytestmark = pytest.mark.skipif(not available(), reason="guard pages need Linux on x86-64")

# peek(from, to) copies a byte, poke(at) writes one; both take addresses.
OBJECTS = {
    "peek": assemble(
        """define void @peek(ptr %c) {
  %from.at = getelementptr ptr, ptr %c, i64 1
  %from = load ptr, ptr %from.at
  %to.at = getelementptr ptr, ptr %c, i64 2
  %to = load ptr, ptr %to.at
  %byte = load volatile i8, ptr %from
  store volatile i8 %byte, ptr %to
  ret void
}"""
    ),
    "poke": assemble(
        """define void @poke(ptr %c) {
  %at.at = getelementptr ptr, ptr %c, i64 1
  %at = load ptr, ptr %at.at
  store volatile i8 7, ptr %at
  ret void
}"""
    ),
}


def at(kind, index, offset=0):
    return Pointer(Buffer(kind, index), offset)


def byte(address):
    return ctypes.c_uint8.from_address(address).value


@pytest.mark.parametrize("nbytes", [0, 1, 3, 64, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_the_exact_side_lies_at_a_page(nbytes):
    end, start = (GuardedBlock(nbytes, "x", placement) for placement in ("end", "start"))
    assert (end.address + nbytes) % PAGE == 0 and start.address % PAGE == 0
    for block in (end, start):
        assert ctypes.string_at(block.address, nbytes) == b"\xff" * nbytes
        ctypes.memset(block.address, 1, nbytes)
        block.check()


def test_alignment_is_kept():
    for n in range(1, 40):
        assert GuardedBlock(n, "x", "end", 8).address % 8 == 0


def peek(address):
    """A read by native code, as kernels do it; the title is "peek"."""
    watch().install()
    result = GuardedBlock(1, "the result")
    program = GuardedProgram(Plan([], 1, 1, steps=[KernelStep("peek", [at("input", 0), at("output", 0)])]), OBJECTS)
    program.run([address], [result.address])
    return byte(result.address)


@pytest.mark.parametrize("placement", ["end", "start"])
def test_a_read_outside_is_named_and_survived(placement):
    block = GuardedBlock(10, "the block", placement)
    offset = 10 if placement == "end" else -1
    for _ in range(2):  # the page that the first one opened belongs to no one else
        assert peek(block.address) == 0xFF
    with pytest.raises(GuardPageError, match=rf"kernel peek \(step 0\) reads the block \(10 bytes\) at byte {offset}, outside of it"):
        peek(block.address + offset)


def test_a_handler_that_came_later_is_replaced_and_called_for_the_rest():
    faulthandler.disable()
    faulthandler.enable()
    test_a_read_outside_is_named_and_survived("end")


def test_frozen_and_closed_blocks():
    block = GuardedBlock(10, "the block")
    poke = GuardedProgram(Plan([], 1, 0, steps=[KernelStep("poke", [at("input", 0)])]), OBJECTS)
    poke.run([block.address], [])
    assert byte(block.address) == 7
    block.freeze()
    with pytest.raises(GuardPageError, match="writes the block .* at byte 0, which it may only read"):
        poke.run([block.address], [])
    block.close()
    with pytest.raises(GuardPageError, match="reads the block .* at byte 3, before its first or after its last use"):
        peek(block.address + 3)


def test_a_write_into_the_slack_is_found():
    block = GuardedBlock(10, "the block")
    poke = GuardedProgram(Plan([], 1, 0, steps=[KernelStep("poke", [at("input", 0, -1)])]), OBJECTS)
    with pytest.raises(GuardPageError, match=r"kernel poke \(step 0\) writes before the start of the block \(10 bytes\), at byte -1"):
        poke.run([block.address], [])


def test_a_buffer_of_the_arena_is_closed_outside_of_its_lifetime():
    def plan(last):
        steps = [KernelStep("poke", [at("arena", 0)]), KernelStep("nothing", []), KernelStep("peek", [at("arena", 0), at("output", 0)])]
        return Plan([], 0, 1, arena=[ArenaBuffer(5, 0, last)], steps=steps)

    objects = {**OBJECTS, "nothing": assemble("define void @nothing(ptr %c) {\n  ret void\n}")}
    out = GuardedBlock(1, "the output")
    GuardedProgram(plan(2), objects).run([], [out.address])
    assert byte(out.address) == 7
    with pytest.raises(GuardPageError, match=r"step 2\) reads buffer 0 of the arena \(in use from step 0 to 1\) \(5 bytes\) at byte 0, before"):
        GuardedProgram(plan(1), objects).run([], [out.address])


def test_constants_and_what_host_steps_make():
    plan = Plan(
        [],
        0,
        1,
        steps=[
            KernelStep("peek", [at("constant", 0, 2), at("output", 0)]),
            HostStep(0),
            KernelStep("peek", [at("host", 0, 2), at("output", 0, 1)]),
            KernelStep("peek", [at("host", 0, 3), at("output", 0, 2)]),
        ],
        constants=[bytes([1, 2, 3])],
    )
    memory = (ctypes.c_uint8 * 3)(4, 5, 6)
    out = GuardedBlock(3, "the output")
    program = GuardedProgram(plan, OBJECTS, [lambda frame: frame.give(0, ctypes.addressof(memory), 3, memory)])
    with pytest.raises(GuardPageError, match=r"kernel peek \(step 3\) reads result 0 of the calls of ATen \(3 bytes\) at byte 3"):
        program.run([], [out.address])
    assert [byte(out.address), byte(out.address + 1)] == [3, 6]


def test_tensors_that_share_bytes_share_a_copy():
    x = torch.arange(100, dtype=torch.uint8)
    tensors = [x[:60], x[50:50], x[55:70], x[70:], torch.empty(0), x[10:50:7].view(torch.uint8)]
    found = guards.copies(tensors, [f"t{i}" for i in range(6)], {2}, "end")
    assert [block.name for _, block, _ in found] == ["t0 = t5 = t2", "t1", "t0 = t5 = t2", "t3", "t4", "t0 = t5 = t2"]
    assert [block.state for _, block, _ in found] == ["open", "frozen", "open", "frozen", "frozen", "open"]
    assert [block.nbytes for _, block, _ in found] == [70, 0, 70, 30, 0, 70]
    assert ctypes.string_at(found[2][0], 15) == bytes(range(55, 70)) and found[5][0] == found[0][0] + 10


def test_faults_in_other_threads_and_memory_that_is_given_back():
    before = len(guards._live)
    failures = []

    def work(n):
        for _ in range(20):
            block = GuardedBlock(n, f"block {n}")
            try:
                peek(block.address + n)
            except GuardPageError as error:
                failures.append(f"block {n} " in str(error))
            assert peek(block.address) == 0xFF

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    gc.collect()
    assert failures == [True] * 60
    assert len(guards._live) <= before
