"""Processes that are not as one would like: limits, closed files, foreign modules, other libraries."""

from __future__ import annotations

import importlib.util

import pytest

from mlirc.tests.faults.harness import PRELUDE, script, succeeds

IMPORTS = {
    "torch": "import torch",
    "torch_mlir": "import torch_mlir.ir, torch_mlir.passmanager, torch_mlir.execution_engine",
    "llvmlite": "import llvmlite.binding as llvm; llvm.initialize_native_target(); llvm.initialize_native_asmprinter()",
    "numba": "import numba; assert numba.njit(lambda x: x + 1)(2) == 3",
    "transformers": "from mlirc.benchmarks.vision import prepare_torchvision as p; p(); from transformers import BertModel",
    "mlirc": "import mlirc.frontend.backend",
}
ORDERS = [
    ["torch_mlir", "llvmlite", "torch", "mlirc"],
    ["numba", "torch_mlir", "torch", "mlirc", "llvmlite"],
    ["llvmlite", "mlirc", "transformers", "torch_mlir", "numba"],
    ["transformers", "numba", "torch", "torch_mlir"],
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_import_orders(order):
    there = [name for name in order if importlib.util.find_spec(name) is not None]
    if "numba" in order and "numba" not in there and order != ORDERS[2]:
        pytest.skip("numba is not installed")
    lines = [IMPORTS[name] for name in there]
    out = succeeds("check()\n" + "\n".join(lines) + "\ncheck(other)\nprint('right')", prelude="\n".join(lines) + PRELUDE)
    assert out == "right\n"


def test_files_that_shadow_modules(tmp_path):
    """The working directory has files named like what workers import, a script's folder too; and `python -I`."""
    for name in ("torch_mlir", "llvmlite", "sympy", "platformdirs", "random", "struct", "socket", "signal", "pickle", "json"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong file')\n")
    # What this process itself imports comes from where it should, and then the folder goes to the front as `-c` has it.
    late = "import sys\nfront = sys.path.pop(0)\n" + PRELUDE + "check()\nsys.path.insert(0, front)\n"
    assert succeeds("check(other, workers=2)\nprint('right')", cwd=tmp_path, prelude=late) == "right\n"
    import mlirc

    isolated = f"import sys\nsys.path.append({str(mlirc.__path__[0])[: -len('/mlirc')]!r})\nimport mlirc.frontend.backend\n" + PRELUDE
    assert succeeds("check()\nprint('right')", "-I", cwd=tmp_path, prelude=isolated) == "right\n"


def test_a_working_directory_that_is_gone(tmp_path):
    """It went after torch had been imported, which wants one."""
    gone = tmp_path / "gone"
    gone.mkdir()
    succeeds(f"""
        import torch._dynamo.config
        os.chdir({str(gone)!r})
        os.rmdir({str(gone)!r})
        sys.path.insert(0, "")
        check()
        check(other)
    """)


def test_few_files_little_stack_no_home(tmp_path):
    """One process with a limit of 64 open files, 1 MiB of stack, files of at most a byte, no home and nowhere for temporary files."""
    done = script(
        """
        import resource
        check()
        check(other, workers=2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # as on a full disk
        for _ in range(2):
            torch._dynamo.reset()
            check(cache=True)
        check(cache=True, cache_dir=sys.argv[-1])
        print("right")
        """,
        shell="ulimit -n 64; ulimit -s 1024; ulimit -c 0",
        env={"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere", "TMPDIR": "/proc/nowhere", "PATH": ":%:/nowhere"},
    )
    assert done.returncode == 0 and done.stdout == "right\n", done.stderr
    assert done.stderr.count("is not used") <= 1 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("closed", ["0<&- 1>&- 2>&-", "0<&-"])
def test_closed_standard_files(tmp_path, closed):
    """The descriptors 0 to 2 are taken by whatever is opened first: sockets and logs of workers, say."""
    path = tmp_path / "out"
    script(f"check(workers=2)\ncheck(other)\nopen({str(path)!r}, 'w').write('right')", shell=f"exec {closed}")
    assert path.read_text() == "right"


def test_bad_options_in_the_environment():
    done = script(
        """
        for text in ("nonsense", "bad=1", "worker_memory_mb=x", "worker_timeout=nan", "perf=maybe", "target=8086", "mode=fast"):
            os.environ["MLIRC_OPTIONS"] = text
            try:
                check()
            except Exception as e:
                error = e.inner_exception
                assert type(error) is ValueError and str(error).startswith("mlirc: "), error
                assert text.partition("=")[0 if text == "bad=1" else 2] in str(error), error
            else:
                raise AssertionError(text)
        os.environ["MLIRC_OPTIONS"] = " strict = 1 ,, workers=1,"
        check()
        print("right")
        """
    )
    assert done.stdout == "right\n", done.stderr
