"""Objects in and out of the process."""

import concurrent.futures
import ctypes
import gc
import os
import subprocess
import sys

import pytest

from mlirc.errors import CompileError
from mlirc.runtime import elf
from mlirc.runtime.loader import Library, assemble


def returns(value, name="k00_add"):
    return f"define i64 @{name}() {{ ret i64 {value} }}"


def call(library, symbol):
    return ctypes.CFUNCTYPE(ctypes.c_int64)(library.address(symbol))()


def resident_kb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def test_libraries_may_use_the_same_names():
    one, two = Library({"a": assemble(returns(1))}), Library({"a": assemble(returns(2))})
    assert (call(one, "k00_add"), call(two, "k00_add")) == (1, 2)


def test_objects_of_one_library_see_each_other():
    caller = "declare i64 @k00_add()\ndefine i64 @twice() { %x = call i64 @k00_add()\n %y = add i64 %x, %x\n ret i64 %y }"
    assert call(Library({"b": assemble(caller), "a": assemble(returns(21))}), "twice") == 42


def test_constants_and_the_c_library():
    text = """
    @table = private constant [2 x double] [double 0.0, double 1.0]
    declare double @erf(double)
    declare ptr @memcpy(ptr, ptr, i64)
    define i64 @f() {
      %p = alloca double
      %q = call ptr @memcpy(ptr %p, ptr getelementptr ([2 x double], ptr @table, i64 0, i64 1), i64 8)
      %x = load double, ptr %p
      %y = call double @erf(double %x)
      %z = fmul double %y, 1.0e6
      %i = fptosi double %z to i64
      ret i64 %i
    }"""
    assert call(Library({"f": assemble(text)}), "f") == 842700


def test_unresolved_symbols_are_named():
    text = "declare void @no_such_function()\ndefine void @k() { call void @no_such_function()\n ret void }"
    with pytest.raises(CompileError, match="unresolved symbol no_such_function") as caught:
        Library({"k": assemble(text)})
    assert caught.value.kernel == "k"


def test_unresolved_torch_symbols_are_named():
    text = "declare void @torch_no_such()\ndefine void @k() { call void @torch_no_such()\n ret void }"
    with pytest.raises(CompileError, match="torch_no_such"):
        Library({"k": assemble(text)})


def test_unknown_symbols_have_no_address():
    with pytest.raises(CompileError, match="nothing_here"):
        Library({"a": assemble(returns(1))}).address("nothing_here")


def test_two_definitions_of_one_name_are_an_error():
    with pytest.raises(CompileError, match="cannot link"):
        Library({"a": assemble(returns(1)), "b": assemble(returns(2))})
    assert call(Library({"a": assemble(returns(3))}), "k00_add") == 3


@pytest.mark.parametrize("data", [b"", b"garbage", assemble(returns(1))[:100]], ids=["empty", "garbage", "truncated"])
def test_damaged_objects_are_errors(data):
    with pytest.raises(CompileError):
        Library({"a": data})


def test_bad_ir_is_an_error():
    with pytest.raises(CompileError, match="LLVM rejects"):
        assemble("define i64 @f() { ret i32 0 }")


def test_no_objects():
    Library({}).close()


def test_a_closed_library_has_no_addresses():
    library = Library({"a": assemble(returns(1))})
    library.close()
    library.close()
    with pytest.raises(CompileError):
        library.address("k00_add")


def test_memory_of_dropped_libraries_comes_back():
    objects = {f"k{i}": assemble(returns(i, f"k{i}")) for i in range(3)}

    def cycles(count):
        for i in range(count):
            library = Library(objects)
            if i % 2:
                library.close()
        del library
        gc.collect()
        return resident_kb()

    before = cycles(200)
    assert cycles(1000) - before < 1500


def test_threads_load_at_once():
    objects = [assemble(returns(i)) for i in range(40)]

    def load(i):
        return call(Library({"a": objects[i]}), "k00_add")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(load, range(40))) == list(range(40))


def test_the_process_ends_well_with_libraries_alive():
    code = (
        "from mlirc.runtime.loader import Library, assemble\n"
        "a = Library({'a': assemble('define void @f() { ret void }')})\n"
        "def cycle():\n    b = Library({'a': assemble('define void @f() { ret void }')})\n    b.me = b\n"
        "cycle()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_perf_map_has_exported_and_local_functions():
    text = """
    define internal void @body(i64 %b, i64 %e, ptr %c) noinline { store volatile i64 %b, ptr %c ret void }
    define void @k(ptr %c) { call void @body(i64 1, i64 2, ptr %c) ret void }
    """
    path = f"/tmp/perf-{os.getpid()}.map"
    existed = os.path.exists(path)
    library = Library({"k": assemble(text)}, perf=True)
    with open(path) as file:
        lines = [line.split() for line in file]
    if not existed:
        os.unlink(path)
    found = {name: (int(start, 16), int(size, 16)) for start, size, name in lines}
    assert found["k"][0] == library.address("k") and found["k"][1] > 0
    start, size = found["body"]
    assert 0 < size and start != found["k"][0] and abs(start - found["k"][0]) < 4096


def test_elf_symbols():
    text = "declare void @out()\ndefine internal void @in() noinline { call void @out()\n ret void }\ndefine void @k() { call void @in()\n ret void }"
    table = {s.name: s for s in elf.symbols(assemble(text))}
    assert table["out"].section == 0 and not table["out"].is_local
    assert table["in"].is_local and table["in"].is_function and table["in"].size > 0
    assert table["k"].section and not table["k"].is_local
