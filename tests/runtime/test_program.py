"""Plans run natively: arguments, memory, status, host steps, threads."""

import ctypes
import gc
import os
import random
import struct
import threading
import weakref

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.errors import CompileError
from mlirc.runtime.loader import assemble
from mlirc.runtime.memory import ArenaPool
from mlirc.runtime.plan import ArenaBuffer, Buffer, HostStep, KernelStep, Plan, Pointer
from mlirc.runtime.program import Program

S0, S1 = sympy.symbols("s0 s1", integer=True, positive=True)


def load_arguments(count):
    """IR that puts the status word's address into %status and ctx[1..count] into %a1, %a2, ..."""
    lines = ["%status = load ptr, ptr %c"]
    for i in range(1, count + 1):
        lines += [f"%slot{i} = getelementptr i64, ptr %c, i64 {i}", f"%a{i} = load i64, ptr %slot{i}"]
    return "\n".join(lines)


def kernel(name, arguments, body):
    return assemble(f"define void @{name}(ptr %c) {{\nentry:\n{load_arguments(arguments)}\n{body}\nout:\n  ret void\n}}")


def loop(begin, end, body, preheader="entry"):
    """IR that runs `body` for %i in [begin, end), then goes to %out; begin < end is checked."""
    return f"""
  %any = icmp slt i64 {begin}, {end}
  br i1 %any, label %loop, label %out
loop:
  %i = phi i64 [ {begin}, %{preheader} ], [ %j, %loop ]
  {body}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, {end}
  br i1 %more, label %loop, label %out"""


FILL = "%o = inttoptr i64 %a3 to ptr\n" + loop("0", "%a1", "%p = getelementptr i64, ptr %o, i64 %i\n store i64 %a2, ptr %p")
SUM = "%x = inttoptr i64 %a2 to ptr\n%o = inttoptr i64 %a3 to ptr\nstore i64 0, ptr %o\n" + loop(
    "0",
    "%a1",
    """%p = getelementptr i64, ptr %x, i64 %i
  %v = load i64, ptr %p
  %s = load i64, ptr %o
  %t = add i64 %s, %v
  store i64 %t, ptr %o""",
)
PARALLEL = f"""
declare i32 @torch_parallel_for(i64, i64, i64, ptr, ptr)
define internal void @body(i64 %begin, i64 %end, ptr %c) {{
entry:
{load_arguments(3)}
  %o = inttoptr i64 %a3 to ptr
  %has = icmp sle i64 %begin, %a2
  %had = icmp sgt i64 %end, %a2
  %bad = and i1 %has, %had
  br i1 %bad, label %raise, label %work
raise:
  store atomic i64 1, ptr %status monotonic, align 8
  br label %out
work:
{loop("%begin", "%end", "%p = getelementptr i64, ptr %o, i64 %i" + chr(10) + "store i64 %i, ptr %p", "work")}
out:
  ret void
}}
define void @parallel(ptr %c) {{
{load_arguments(1)}
  %r = call i32 @torch_parallel_for(i64 0, i64 %a1, i64 1, ptr @body, ptr %c)
  ret void
}}"""

OBJECTS = {
    # fill(n, value, result): result[0:n] = value
    "fill": kernel("fill", 3, FILL),
    # sum(n, x, result): result[0] = sum of x[0:n]
    "sum": kernel("sum", 3, SUM),
    # copy(bits, result): result[0] = bits
    "copy": kernel("copy", 2, "%o = inttoptr i64 %a2 to ptr\nstore i64 %a1, ptr %o\nbr label %out"),
    # fail(code): sets the status
    "fail": kernel("fail", 1, "store atomic i64 %a1, ptr %status monotonic, align 8\nbr label %out"),
    # parallel(n, bad, result): result[i] = i for i in [0, n) on several threads, status 1 from the one that has `bad`
    "parallel": assemble(PARALLEL),
    "nothing": kernel("nothing", 0, "br label %out"),
}


def inp(i, offset=0):
    return Pointer(Buffer("input", i), offset)


def out(i, offset=0):
    return Pointer(Buffer("output", i), offset)


def arena(i, offset=0):
    return Pointer(Buffer("arena", i), offset)


def constant(i, offset=0):
    return Pointer(Buffer("constant", i), offset)


def host(i, offset=0):
    return Pointer(Buffer("host", i), offset)


def words(*values):
    return (ctypes.c_int64 * len(values))(*values)


def run(program, inputs, outputs, sizes=()):
    program.run([ctypes.addressof(x) for x in inputs], [ctypes.addressof(x) for x in outputs], sizes)


def test_every_kind_of_argument():
    values = words(1, 2, 3)
    result = words(*[0] * 7)
    plan = Plan(
        symbols=["s0", "s1"],
        n_inputs=1,
        n_outputs=1,
        constants=[struct.pack("3q", 10, 20, 30), b""],
        steps=[
            KernelStep("sum", [2, inp(0, 8), out(0)]),
            KernelStep("sum", [2, constant(0, 8), out(0, 8)]),
            KernelStep("copy", [1.5, out(0, 16)]),
            KernelStep("copy", [S0 * S1 - 1, out(0, 8 * S1)]),
            KernelStep("copy", [-7, out(0, 32)]),
            KernelStep("copy", [-0.0, out(0, 40)]),
            KernelStep("copy", [sympy.Float(2.5), out(0, 48)]),
            KernelStep("nothing", []),
        ],
    )
    run(Program(plan, OBJECTS), [values], [result], [5, 3])
    assert list(result)[:2] == [5, 50]
    assert list(result)[3:5] == [14, -7]
    floats = (ctypes.c_double * 7).from_buffer(result)
    assert floats[2] == 1.5 and str(floats[5]) == "-0.0" and floats[6] == 2.5


@st.composite
def arena_plans(draw):
    """Buffers filled at their first step and summed at their last one, with random lifetimes and sizes."""
    buffers = []
    for _ in range(draw(st.integers(1, 12))):
        first = draw(st.integers(0, 12))
        length = draw(st.sampled_from([0, 1, 5, 8, 40, S0, 3 * S0, 200 * S0, S0 + S1, 256 * S1]))
        buffers.append((length, first, first + draw(st.integers(1, 6))))
    return buffers


@settings(max_examples=60, deadline=None)
@given(arena_plans(), st.integers(0, 9), st.integers(0, 70))
def test_live_buffers_are_not_clobbered(buffers, s0, s1):
    # At equal times fills come before sums.
    events = sorted([(first, 0, i) for i, (_, first, _) in enumerate(buffers)] + [(last, 1, i) for i, (_, _, last) in enumerate(buffers)])
    position = {(kind, i): step for step, (_, kind, i) in enumerate(events)}
    plan = Plan(symbols=["s0", "s1"], n_outputs=1)
    plan.arena = [ArenaBuffer(8 * length, position[0, i], position[1, i]) for i, (length, _, _) in enumerate(buffers)]
    for _, kind, i in events:
        length = buffers[i][0]
        plan.steps.append(KernelStep("sum", [length, arena(i), out(0, 8 * i)]) if kind else KernelStep("fill", [length, i + 1, arena(i)]))
    program = Program(plan, OBJECTS)
    result = words(*[0] * len(buffers))
    run(program, [], [result], [s0, s1])
    lengths = [int(sympy.sympify(length).subs({S0: s0, S1: s1})) for length, _, _ in buffers]
    assert list(result) == [length * (i + 1) for i, length in enumerate(lengths)]
    assert program.arena_bytes([s0, s1]) <= sum(8 * length + 64 * 8 for length in lengths) * 2


def chain(length):
    """fill an arena buffer of `length` words with input 0's first word, sum it up into the output."""
    return Plan(
        symbols=["s0"],
        n_inputs=1,
        n_outputs=1,
        arena=[ArenaBuffer(8 * length, 0, 1)],
        steps=[KernelStep("fill", [length, 3, arena(0)]), KernelStep("sum", [length, arena(0), out(0)])],
    )


def test_the_arena_grows_and_shrinks_with_the_sizes():
    program = Program(chain(S0), OBJECTS)
    result = words(0)
    for s0 in (5, 100_000, 1, 0, 3_000_000):
        run(program, [words(3)], [result], [s0])
        assert result[0] == 3 * s0
    assert program.arena_bytes([0]) == 0


def test_an_arena_whose_size_does_not_fit_64_bits():
    plan = chain(S0 * S1)
    plan.symbols.append("s1")
    # Nothing is written: the length is another number than that of the buffer.
    plan.steps = [KernelStep("sum", [0, arena(0), out(0)]), KernelStep("sum", [0, arena(0), out(0)])]
    program = Program(plan, OBJECTS)
    for s0, s1 in ((1 << 31, 1 << 31), (1 << 30, 1 << 31), (1 << 62, 5), ((1 << 61) + 1, 1), (1 << 40, 1 << 20)):
        with pytest.raises(MemoryError):
            run(program, [words(3)], [words(0)], [s0, s1])
    run(program, [words(3)], [words(0)], [5, 7])


def test_zero_sizes():
    plan = Plan(n_outputs=1, arena=[ArenaBuffer(0, 0, 1)], steps=[KernelStep("sum", [0, arena(0), out(0)])])
    result = words(9)
    run(Program(plan, OBJECTS), [], [result])
    assert result[0] == 0


def test_a_plan_without_steps():
    Program(Plan(), {}).run([], [])


def test_several_threads_call_at_once():
    program = Program(chain(S0), OBJECTS)
    failures = []

    def work(seed):
        rng = random.Random(seed)
        result = words(0)
        for _ in range(300):
            s0 = rng.randrange(20_000)
            run(program, [words(3)], [result], [s0])
            if result[0] != 3 * s0:
                failures.append(s0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_programs_may_share_a_pool():
    pool = ArenaPool()
    one, two = Program(chain(S0), OBJECTS, pool=pool), Program(chain(2 * S0), OBJECTS, pool=pool)
    result = words(0)
    run(one, [words(3)], [result], [1000])
    run(two, [words(3)], [result], [500])
    assert result[0] == 3000 and len(pool._free) == 1


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (1, IndexError, "index out of range in self"),
        (2, RuntimeError, "ZeroDivisionError"),
        (3, RuntimeError, "assertion failed in compiled graph"),
        (99, RuntimeError, "status 99"),
    ],
)
def test_a_status_stops_the_program_and_raises(code, kind, text):
    steps = [KernelStep("fail", [S0]), KernelStep("copy", [1, out(0)])]
    program = Program(Plan(symbols=["s0"], n_outputs=1, steps=steps), OBJECTS)
    result = words(0)
    with pytest.raises(kind, match=text):
        run(program, [], [result], [code])
    assert result[0] == 0
    # The next call starts afresh.
    run(program, [], [result], [0])
    assert result[0] == 1


def test_status_is_per_call():
    program = Program(Plan(symbols=["s0"], steps=[KernelStep("fail", [S0])] * 20), OBJECTS)
    wrong = []

    def work(code):
        for _ in range(500):
            try:
                program.run([], [], [code])
                raised = 0
            except IndexError:
                raised = 1
            if raised != code:
                wrong.append(code)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_kernels_run_on_torchs_threads(two_threads):
    n = 10_000
    plan = Plan(symbols=["bad"], n_outputs=1, steps=[KernelStep("parallel", [n, sympy.Symbol("bad"), out(0)])])
    program = Program(plan, OBJECTS)
    result = torch.zeros(n, dtype=torch.int64)
    program.run([], [result.data_ptr()], [-1])
    assert torch.equal(result, torch.arange(n))
    for bad in (0, n // 2, n - 1):
        with pytest.raises(IndexError):
            program.run([], [result.data_ptr()], [bad])
    program.run([], [result.data_ptr()], [-1])


def test_host_steps_run_between_kernels():
    # fill -> host (doubles the arena buffer into a tensor of its own) -> sum of that -> host -> host (no kernel between)
    seen = []

    def double(frame):
        source = frame.address(arena(0))
        n = frame.sizes[0]
        data = (ctypes.c_int64 * n).from_address(source)
        doubled = words(*[2 * v for v in data])
        frame.keep.append(doubled)
        frame.values["doubled"] = weakref.ref(doubled)
        frame.hosts[1] = ctypes.addressof(doubled)

    def look(frame):
        assert frame.values["doubled"]() is not None
        assert frame.address(inp(0)) == frame.inputs[0] and frame.address(out(0, S0)) == frame.outputs[0] + frame.sizes[0]
        assert frame.arena_base % 64 == 0 and frame.address(host(1, 8)) == frame.hosts[1] + 8
        assert frame.size(3 * S0 + 1) == 3 * frame.sizes[0] + 1
        seen.append(ctypes.c_int64.from_address(frame.outputs[0]).value)

    plan = chain(S0)
    plan.arena[0].last = 3
    plan.steps = [
        plan.steps[0],
        HostStep(0),
        KernelStep("sum", [S0, host(1), out(0)]),
        HostStep(1),
        HostStep(1),
    ]
    program = Program(plan, OBJECTS, [double, look])
    result = words(0)
    for s0 in (4, 10):
        run(program, [words(3)], [result], [s0])
        assert result[0] == 6 * s0
    assert seen == [24, 24, 60, 60]
    assert program._frames[0].values == {} and program._frames[0].keep == []


def test_a_host_step_that_raises_leaves_a_working_program():
    def maybe(frame):
        if frame.sizes[0] == 1:
            raise KeyError("asked for")

    plan = Plan(symbols=["s0"], n_outputs=1, steps=[HostStep(0), KernelStep("copy", [S0, out(0)])])
    program = Program(plan, OBJECTS, [maybe])
    result = words(0)
    with pytest.raises(KeyError):
        run(program, [], [result], [1])
    run(program, [], [result], [2])
    assert result[0] == 2


def test_a_status_before_a_host_step_keeps_it_from_running():
    plan = Plan(steps=[KernelStep("fail", [1]), HostStep(0)])
    with pytest.raises(IndexError):
        Program(plan, OBJECTS, [lambda frame: pytest.fail("ran")]).run([], [])


def test_a_host_step_may_run_the_program_again():
    def again(frame):
        if frame.sizes[0]:
            program.run(frame.inputs, frame.outputs, [frame.sizes[0] - 1])

    plan = Plan(symbols=["s0"], n_outputs=1, arena=[ArenaBuffer(8, 0, 2)])
    plan.steps = [KernelStep("copy", [S0, arena(0)]), HostStep(0), KernelStep("sum", [1, arena(0), out(0)])]
    program = Program(plan, OBJECTS, [again])
    result = words(0)
    run(program, [], [result], [5])
    assert result[0] == 5


@pytest.mark.parametrize(
    "plan",
    [
        Plan(steps=[KernelStep("no_such_kernel", [])]),
        Plan(n_inputs=1, steps=[KernelStep("copy", [1, inp(1)])]),
        Plan(steps=[KernelStep("copy", [1, arena(0)])]),
        Plan(steps=[KernelStep("copy", [1, constant(0)])]),
        Plan(steps=[KernelStep("copy", [S0, constant(0)])]),
        Plan(symbols=["s0"], n_outputs=1, steps=[KernelStep("copy", [sympy.sqrt(S0), out(0)])]),
        Plan(symbols=["s0"], arena=[ArenaBuffer(S0 * S1, 0, 0)]),
        Plan(n_outputs=1, steps=[KernelStep("copy", [1 << 64, out(0)])]),
        Plan(steps=[HostStep(0)]),
    ],
)
def test_inconsistent_plans_are_compile_errors(plan):
    with pytest.raises(CompileError):
        Program(plan, OBJECTS)


def test_wrong_numbers_of_arguments():
    program = Program(chain(S0), OBJECTS)
    for arguments in ([], [1], [3]), ([1, 1], [], [3]), ([1], [1], []):
        with pytest.raises(TypeError, match="1 inputs, 1 outputs and 1 sizes"):
            program.run(*arguments)


def test_a_closed_program_does_not_run():
    program = Program(chain(S0), OBJECTS)
    run(program, [words(3)], [words(0)], [4])
    program.close()
    with pytest.raises(RuntimeError, match="closed"):
        run(program, [words(3)], [words(0)], [4])


def test_closing_waits_for_the_calls_in_flight():
    # The host step closes the program; the kernel after it must still be there.
    plan = Plan(n_outputs=1, steps=[HostStep(0), KernelStep("copy", [5, out(0)])])
    program = Program(plan, OBJECTS, [lambda frame: program.close()])
    result = words(0)
    run(program, [], [result])
    gc.collect()
    assert result[0] == 5


def test_dropping_a_program_needs_no_garbage_collector():
    program = Program(chain(S0), OBJECTS)
    run(program, [words(3)], [words(0)], [4])
    reference = weakref.ref(program._library)
    gc.disable()
    try:
        del program
        assert reference() is None
    finally:
        gc.enable()


def test_memory_of_dropped_programs_comes_back():
    result = words(0)

    def cycles(count):
        for _ in range(count):
            run(Program(chain(S0), OBJECTS), [words(3)], [result], [10_000])
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024

    before = cycles(100)
    assert cycles(300) - before < 1500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_programs_work_after_fork():
    program = Program(chain(S0), OBJECTS)
    result = words(0)
    run(program, [words(3)], [result], [1000])
    child = os.fork()
    if child == 0:
        run(program, [words(3)], [result], [2000])
        os._exit(0 if result[0] == 6000 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
