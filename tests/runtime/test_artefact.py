"""What an exported model consists of: archives, data as objects, loops on OpenMP's threads, the C functions around a plan."""

import ctypes
import shutil
import subprocess

import llvmlite.binding as llvm
import numpy as np
import pytest
import sympy

from mlirc.errors import CompileError
from mlirc.runtime import elf
from mlirc.runtime.archive import Member, write_archive
from mlirc.runtime.artefact import BAD_SIZE, Interface, Size, TensorArgument, error_texts, program_ir
from mlirc.runtime.cpuid import check_ir
from mlirc.runtime.header import header_text, row_major
from mlirc.runtime.loader import Library, assemble
from mlirc.runtime.openmp import LOOP_IR, OWN, without_torch
from mlirc.runtime.plan import ArenaBuffer, Buffer, KernelStep, Plan, Pointer
from mlirc.tests.exported import members

S = sympy.Symbol("s0", integer=True, positive=True)


@pytest.mark.parametrize("nbytes", [1, 37, 64, 4096])
def test_data_as_object(nbytes):
    data = np.arange(nbytes, dtype=np.uint8).tobytes()
    before, after = elf.data_object("some_data", nbytes)
    assert len(before) % 64 == 0 and elf.defines(before + data + after, "some_data")
    use = assemble("@some_data = external hidden constant i8\ndefine ptr @get() {\n  ret ptr @some_data\n}")
    library = Library({"data": before + data + after, "use": use})
    address = ctypes.CFUNCTYPE(ctypes.c_void_p)(library.address("get"))()
    assert ctypes.string_at(address, nbytes) == data


@pytest.mark.parametrize("count", [0, 1, 3])
def test_archive(tmp_path, count):
    objects = {f"{n}.o": assemble(f"define i32 @f{n}() {{\n  ret i32 {n}\n}}\n@g{n} = constant [{n + 1} x i8] zeroinitializer") for n in range(count)}
    write_archive(tmp_path / "all.a", [Member.of(name, obj) for name, obj in objects.items()])
    assert members(tmp_path / "all.a") == (objects, {f"{kind}{n}": f"{n}.o" for n in range(count) for kind in "fg"})
    if shutil.which("ar"):
        listed = subprocess.run(["ar", "t", tmp_path / "all.a"], capture_output=True, text=True, check=True).stdout.split()
        assert listed == list(objects)


def test_archive_of_too_much(tmp_path):
    with pytest.raises(ValueError, match="too long"):
        write_archive(tmp_path / "all.a", [Member("sixteen_letters.", [], [b""])])


@pytest.mark.parametrize("team", [None, 1, 2, 5])
@pytest.mark.parametrize(("begin", "end", "grain"), [(0, 100, 1), (3, 10, 4), (0, 1, 1), (5, 5, 1), (0, 7, 100), (0, 9, 0)])
def test_loops_cover_their_range(team, begin, end, grain):
    """Whatever the size of the team that OpenMP gives: none at all, or smaller than what was asked for."""
    openmp = f"""
@number = internal global i32 0
define i32 @omp_get_max_threads() {{
  ret i32 4
}}
define i32 @omp_in_parallel() {{
  ret i32 0
}}
define i32 @omp_get_thread_num() {{
  %n = load i32, ptr @number
  ret i32 %n
}}
define i32 @omp_get_num_threads() {{
  ret i32 {team}
}}
define void @GOMP_parallel(ptr %body, ptr %data, i32 %wanted, i32 %flags) {{
start:
  br label %loop
loop:
  %i = phi i32 [ 0, %start ], [ %j, %loop ]
  store i32 %i, ptr @number
  call void %body(ptr %data)
  %j = add i32 %i, 1
  %more = icmp slt i32 %j, {team}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    objects = {"loop": assemble(LOOP_IR.replace("define hidden", "define"))}
    if team is not None:
        objects["openmp"] = assemble(openmp)
    library = Library(objects)
    ranges = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(lambda a, b, c: ranges.append((a, b, c)))
    run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(library.address(OWN))
    assert run(begin, end, grain, ctypes.cast(body, ctypes.c_void_p), 77) == 0
    assert sorted(i for a, b, _ in ranges for i in range(a, b)) == list(range(begin, end))
    assert all(a < b and c == 77 for a, b, c in ranges)
    wanted = min(4, -(-(end - begin) // max(grain, 1)))
    if team is not None and begin < end:  # this process may have OpenMP by itself
        assert len(ranges) == -(-(end - begin) // -(-(end - begin) // wanted))


def test_kernels_without_torch():
    text = "declare i32 @torch_parallel_for(i64, i64, i64, ptr, ptr)\ndefine i32 @k(ptr %c) {\n"
    obj = assemble(text + "  %r = call i32 @torch_parallel_for(i64 0, i64 1, i64 1, ptr %c, ptr %c)\n  ret i32 %r\n}")
    needed = [s.name for s in elf.symbols(without_torch(obj)) if not s.section]
    assert OWN in needed and not any("torch" in name for name in needed)


def test_cpu_without_something():
    def has(*features):
        text = check_ir(features).replace("define internal i1", "define i1")
        library = Library({"check": assemble(text)})
        check = ctypes.CFUNCTYPE(ctypes.c_bool)(library.address("mlirc_cpu"))
        assert check() == check()
        return check()

    here = llvm.get_host_cpu_features()
    assert has() and has("sse3", "sse4.2", "popcnt")
    for feature in ("avx2", "fma", "avx512f", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16", "lzcnt", "bmi2", "avxvnni"):
        assert has("sse3", feature) == here[feature], feature


def fill(symbol):
    """A kernel: n, x -> the first n of x, each plus one."""
    return assemble(f"""
define void @{symbol}(ptr %c) {{
start:
  %n.at = getelementptr i64, ptr %c, i64 1
  %n = load i64, ptr %n.at
  %x.at = getelementptr i64, ptr %c, i64 2
  %x = load ptr, ptr %x.at
  %y.at = getelementptr i64, ptr %c, i64 3
  %y = load ptr, ptr %y.at
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %j, %loop ]
  %from = getelementptr i64, ptr %x, i64 %i
  %v = load i64, ptr %from
  %w = add i64 %v, 1
  %to = getelementptr i64, ptr %y, i64 %i
  store i64 %w, ptr %to
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}""")


def model(conditions=()):
    """Two steps: the first n of what is kept, plus one, into the arena, and once more into the output."""
    plan = Plan(["s0"], n_inputs=1, n_outputs=1, arena=[ArenaBuffer(8 * S, 0, 1)])
    plan.steps = [
        KernelStep("add_one", [S, Pointer(Buffer("input", 0), 8), Pointer(Buffer("arena", 0))]),
        KernelStep("add_one", [S, Pointer(Buffer("arena", 0)), Pointer(Buffer("output", 0))]),
    ]
    output = TensorArgument("y", "int64", 8, (S,), (1,))
    interface = Interface("m", [], [output], [], [Size("s0", 1, 8)], conditions=conditions)
    data = np.arange(100, 116, dtype=np.int64).tobytes()
    before, after = elf.data_object("m_data", 64 + len(data))
    objects = {
        "program": assemble(program_ir(plan, interface, {0: 64}, ["sse3"])),
        "kernel": fill("add_one"),
        "data": before + bytes(64) + data + after,
    }
    return Library(objects), interface


def call(library, n, give=True):
    out = np.zeros(8, dtype=np.int64)
    run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(library.address("m_run"))
    outputs = (ctypes.c_void_p * 1)(out.ctypes.data)
    return run(None, outputs, (ctypes.c_int64 * 1)(n), None), out


def test_functions_around_a_plan():
    library, interface = model()
    for n in (1, 5, 8):
        status, out = call(library, n)
        assert status == 0
        assert out.tolist() == [103 + i for i in range(n)] + [0] * (8 - n)
    assert call(library, 0)[0] == call(library, 9)[0] == call(library, -1)[0] == BAD_SIZE
    workspace = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(library.address("m_workspace"))
    assert workspace((ctypes.c_int64 * 1)(8)) - workspace((ctypes.c_int64 * 1)(0)) == 64
    assert workspace((ctypes.c_int64 * 1)(1 << 61)) >= 1 << 62  # more than there is, not a small number
    error = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)(library.address("m_error"))
    assert {status: error(status).decode() for status in error_texts()} == error_texts()
    assert error(1234) == b"unknown status"
    assert "int64_t  [sizes[0]]" in header_text(interface, "a CPU")


@pytest.mark.parametrize(
    ("condition", "good"),
    [
        (sympy.Eq(sympy.Mod(S, 2), 0), (2, 4, 6, 8)),
        (sympy.Ne(S, 3), (1, 2, 4, 5, 6, 7, 8)),
        (sympy.And(S > 2, S <= 5), (3, 4, 5)),
        (sympy.Or(S < 2, S >= 7), (1, 7, 8)),
        (sympy.Not(sympy.And(S > 1, sympy.Eq(sympy.Mod(S, 3), 0)), evaluate=False), (1, 2, 4, 5, 7, 8)),
    ],
)
def test_conditions(condition, good):
    library, _ = model([condition])
    assert tuple(n for n in range(10) if call(library, n)[0] == 0) == good


def test_condition_that_is_none():
    with pytest.raises(CompileError, match="cannot"):
        model([sympy.Function("f", boolean=True)(S)])


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((2, 1, 3), (3, 77, 1), True), ((S, 3), (3, 1), True), ((3, S), (S, 1), True), ((), (), True)],
)
def test_row_major(shape, strides, expected):
    assert row_major(shape, strides) == expected
