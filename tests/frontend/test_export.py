"""`mlirc.export`: models as libraries that run without torch, called as C does."""

import ctypes
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import same

import mlirc
from mlirc.errors import CompileError
from mlirc.lowering.target import Target
from mlirc.runtime import elf
from mlirc.runtime.artefact import BAD_SIZE, NULL_POINTER, OTHER_CPU
from mlirc.tests.exported import export, members, tensors

AUTO = torch.export.Dim.AUTO
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


class Net(nn.Module):
    """A bit of everything: lookups, a norm, attention, an LSTM, a buffer, results that are views and arguments."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(100, 64)
        self.linear = nn.Linear(64, 96)
        self.norm = nn.LayerNorm(96)
        self.lstm = nn.LSTM(96, 32, batch_first=True)
        self.register_buffer("counts", torch.randn(5))

    def forward(self, tokens):
        x = self.norm(torch.nn.functional.gelu(self.linear(self.embedding(tokens))))
        q = x.unflatten(2, (4, 24)).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        y, _ = self.lstm(y)
        return {"y": y, "rest": (y.transpose(1, 2), self.counts[:3].sum(), tokens)}


def check(got, expected, reference=None):
    for g, e, r in zip(got, expected, reference or expected, strict=True):
        assert same(e, g, r.double() if r.is_floating_point() else r, tol=1e-4 if e.dtype == torch.float32 else 2e-2), (g, e)


def test_model_right(tmp_path):
    net = Net().eval()
    model = export(net, (torch.randint(0, 100, (3, 10)),), tmp_path / "net.a")
    tokens = torch.randint(0, 100, (3, 10))
    expected = tensors(net(tokens))
    check(model([tokens], expected), expected, tensors(net.double()(tokens)))
    assert model.run([torch.full((3, 10), 100)], expected) == 1
    assert "index out of range" in model.error(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_sizes_open(tmp_path, dtype):
    net = nn.Sequential(nn.Linear(33, 64), nn.ReLU(), nn.Linear(64, 17), nn.Softmax(-1)).to(dtype).eval()
    model = export(net, (torch.randn(4, 33, dtype=dtype),), tmp_path / "net.a", ({0: AUTO},))
    for n in (2, 3, 17, 130):
        x = torch.randn(n, 33, dtype=dtype)
        expected = [net(x)]
        check(model([x], expected, [n]), expected)
    assert model.run([x], expected, [1]) == BAD_SIZE
    assert model.workspace([1000]) > model.workspace([10]) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_lengths_that_are_open(tmp_path, dtype):
    class Attention(nn.Module):
        def forward(self, q, k, v):
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def heads(n):
        return [torch.randn(1, 3, n, 32, dtype=dtype) for _ in range(3)]

    model = export(Attention(), tuple(heads(100)), tmp_path / "net.a", ({2: torch.export.Dim("n", min=2, max=4000)},) * 3)
    for n in (2, 33, 300, 700):
        x = heads(n)
        expected = [Attention()(*x)]
        check(model(x, expected, [n]), expected)


def test_derived_sizes_and_conditions(tmp_path):
    class Pairs(nn.Module):
        def forward(self, x, y):
            return x.view(x.shape[0] // 2, 2, -1).sum(1) + 1, x[:-1] * y

    model = export(Pairs(), (torch.randn(8, 6), torch.randn(7, 6)), tmp_path / "pairs.a", ({0: AUTO}, {0: AUTO}))
    header = (tmp_path / "pairs.h").read_text()
    assert "sizes[0] + 1, 6]" in header and "such that" in header
    x, y = torch.randn(12, 6), torch.randn(11, 6)
    expected = list(Pairs()(x, y))
    check(model([x, y], expected, [11]), expected)
    assert model.run([x, y], expected, [10]) == BAD_SIZE  # 11 rows are no pairs


def test_sizes_that_are_parts_of_others_alone(tmp_path):
    """A batch of pairs: no dim is as long as there are pairs."""
    net = nn.Linear(3, 4).eval()
    model = export(net, (torch.randn(6, 3),), tmp_path / "net.a", ({0: 2 * torch.export.Dim("pairs")},))
    assert "0  what dim 0 of input is computed from: " in (tmp_path / "net.h").read_text()
    for pairs in (2, 5):
        x = torch.randn(2 * pairs, 3)
        check(model([x], [net(x)], [pairs]), [net(x)])


def test_condition_that_divides_by_a_size(tmp_path):
    class Rows(nn.Module):
        def forward(self, x, y):
            torch._check(x.shape[0] % y.shape[0] == 0)
            return x + 1, y.sum()

    dims = {0: torch.export.Dim("a", min=0)}, {0: torch.export.Dim("b", min=0)}
    model = export(Rows(), (torch.randn(6), torch.randn(3)), tmp_path / "rows.a", dims)
    assert "such that sizes[0] % sizes[1] == 0" in (tmp_path / "rows.h").read_text()
    x, y = torch.randn(8), torch.randn(4)
    check(model([x, y], [x, y.sum()], [8, 4]), [x + 1, y.sum()])
    for sizes in ([8, 3], [8, 0]):
        assert model.run([x, y], [x, y], sizes) == BAD_SIZE


def test_number_as_argument(tmp_path):
    class Rows(nn.Module):
        def forward(self, x, n):
            return x[:n] * 2

    model = export(Rows(), (torch.randn(9, 4), 5), tmp_path / "rows.a", (None, torch.export.Dim.DYNAMIC))
    assert "0  n: " in (tmp_path / "rows.h").read_text()
    x = torch.randn(9, 4)
    for n in (2, 7):
        check(model([x], [x[:n]], [n]), [x[:n] * 2])


def test_nothing_but_an_argument_written_to(tmp_path):
    class Add(nn.Module):
        def forward(self, x):
            x.add_(1)

    model = export(Add(), (torch.zeros(4),), tmp_path / "mlirc.a")  # whose functions begin as internal ones do
    x = torch.zeros(4)
    model([x], [])
    assert torch.equal(x, torch.ones(4))


def test_argument_written_to(tmp_path):
    class Cache(nn.Module):
        def forward(self, x, cache):
            cache[1:3] = x
            return cache.sum(0)

    model = export(Cache(), (torch.randn(2, 8), torch.randn(5, 8)), tmp_path / "cache.a")
    x, cache = torch.randn(2, 8), torch.randn(5, 8)
    mine, expected_cache = cache.clone(), cache.clone()
    expected = [Cache()(x, expected_cache)]
    check(model([x, mine], expected), expected)
    assert torch.equal(mine, expected_cache)
    assert "is written to" in (tmp_path / "cache.h").read_text()


def test_layout_of_arguments(tmp_path):
    net = nn.Conv2d(3, 8, 3, padding=1).eval()
    x = torch.randn(1, 3, 9, 9).to(memory_format=torch.channels_last)
    model = export(net, (x,), tmp_path / "conv.a")
    assert "strides [243, 1, 27, 3]" in (tmp_path / "conv.h").read_text()
    check(model([x], [torch.empty(1, 8, 9, 9)]), [net(x).contiguous()])


def test_without_packing_and_empty_arguments(tmp_path):
    net = nn.Linear(8, 4).eval()
    model = export(net, (torch.randn(2, 8),), tmp_path / "net.a", ({0: torch.export.Dim("n", min=0, max=64)},), {"prepack": False})
    for n in (0, 1, 5):
        x = torch.randn(n, 8)
        check(model([x], [net(x)], [n]), [net(x)])
    assert model.run([None], [None], [0]) == 0
    assert model.run([None], [torch.empty(4)], [1]) == model.run([torch.empty(8)], [None], [1]) == NULL_POINTER


def test_shared_weights_are_there_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(1000, 64)
            self.first, self.second = nn.LSTM(64, 64), nn.Linear(64, 1000, bias=False)
            self.second.weight = self.table.weight

        def forward(self, tokens):
            return self.second(self.first(self.table(tokens))[0])

    net = Tied().eval()
    tokens = torch.randint(0, 1000, (20, 2))
    model = export(net, (tokens,), tmp_path / "tied.a")
    check(model([tokens], [net(tokens)]), [net(tokens)])
    weights = sum(p.nbytes for p in net.parameters())
    assert (tmp_path / "tied.a").stat().st_size < 2.5 * weights  # a lookup reads the table as it is, the product packed


def test_two_models_in_one_process_and_many_threads(tmp_path):
    nets = [nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, n)).eval() for n in (5, 7)]
    models = [export(net, (torch.randn(3, 16),), tmp_path / f"net{i}.a") for i, net in enumerate(nets)]
    wrong = []

    def work(seed):
        x = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for _ in range(50):
                for net, model in zip(nets, models):
                    if not torch.allclose(model([x], [net(x)])[0], net(x), atol=1e-5):
                        wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_workspace_of_the_callers_and_null_pointers(tmp_path):
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5)).eval()
    model = export(net, (torch.randn(3, 16),), tmp_path / "net.a")
    x, out = torch.randn(3, 16), torch.empty(3, 5)
    space = torch.full((model.workspace() + 8,), 0x5A, dtype=torch.uint8)
    assert model.run([x], [out], workspace=ctypes.c_void_p(space.data_ptr() + 1)) == 0  # at any address
    assert (space[-7:] == 0x5A).all() and space[0] == 0x5A
    check([out], [net(x)])
    assert model.run([None], [out]) == model.run([x], [None]) == NULL_POINTER
    dynamic = export(net, (torch.randn(3, 16),), tmp_path / "open.a", ({0: AUTO},))
    assert dynamic.run([x], [out]) == NULL_POINTER  # no sizes


def test_other_cpus(tmp_path):
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32)).to(torch.bfloat16).eval()
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    if not Target.parse("x86-64-v3").missing():
        model = export(net, (x,), tmp_path / "v3.a", options={"target": "x86-64-v3"})
        check(model([x], [net(x)]), [net(x)], [net.double()(x.double())])
        net.to(torch.bfloat16)
    model = export(net, (x,), tmp_path / "amx.a", options={"target": "sapphirerapids"})  # weights are packed here, too
    assert any(name.startswith("mlirc_bf16_") for name in members(tmp_path / "amx.a")[1])  # the table of GELU
    if Target.parse("sapphirerapids").missing():
        assert model.run([x], [net(x)]) == OTHER_CPU
        assert "lacks instructions" in model.error(OTHER_CPU)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda x: x.sort()[0], "sort"),
        (lambda x: torch.rand_like(x) + x, "random numbers"),
        (lambda x: (x, 3), "the number 3"),
        (lambda x: torch.fft.rfft(x), "complex64"),
    ],
)
def test_what_cannot_be_exported(tmp_path, module, message):
    class Function(nn.Module):
        def forward(self, x):
            return module(x)

    with pytest.raises(CompileError, match=message):
        export(Function(), (torch.randn(3, 4),), tmp_path / "f.a")
    assert not list(tmp_path.iterdir())


def test_source_line_of_what_cannot_be_exported(tmp_path):
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.sort(x + 1)[0]

    with pytest.raises(CompileError, match=r"aten\.sort.*test_export\.py:\d+"):
        export(Sorted(), (torch.randn(3, 4),), tmp_path / "f.a")

    class Positive(nn.Module):
        def forward(self, x):
            return x[x > 0] * 2

    with pytest.raises(CompileError, match=r"(?s)depends on data.*aten.index.*test_export\.py:\d+"):
        export(Positive(), (torch.randn(3, 4),), tmp_path / "f.a")


def test_state_and_wrong_arguments(tmp_path):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x + self.calls

    with pytest.raises(CompileError, match="changes calls.*argument"):
        export(Counter(), (torch.randn(3),), tmp_path / "f.a")
    with pytest.raises(CompileError, match=r"running_mean.*eval\(\)"):
        export(nn.BatchNorm1d(4), (torch.randn(3, 4),), tmp_path / "f.a")
    program = torch.export.export(nn.ReLU(), (torch.randn(3),))
    with pytest.raises(ValueError, match=r"\.a"):
        mlirc.export(program, tmp_path / "f.o")
    with pytest.raises(ValueError, match="letter"):
        mlirc.export(program, tmp_path / "3.a")
    with pytest.raises(FileNotFoundError):
        mlirc.export(program, tmp_path / "none" / "f.a")
    with pytest.raises(TypeError, match=r"torch\.export\.export"):
        mlirc.export(nn.ReLU(), tmp_path / "f.a")
    with pytest.raises(ValueError, match="unknown option"):
        mlirc.export(program, tmp_path / "f.a", options={"no_such": 1})


MAIN = """
#include "net.h"
#include <dirent.h>
#include <stdio.h>
int main(int argc, char **argv) {
    static float x[64 * 512], y[64 * 1024];
    const void *inputs[] = {x};
    void *outputs[] = {y};
    FILE *file = fopen(argv[1], "rb");
    if (fread(x, sizeof x, 1, file) != 1 || net_output_bytes(0, NULL) != sizeof y) return 2;
#ifdef PRAGMA
    #pragma omp parallel
    x[0] = x[0];
#endif
    int status = net_run(inputs, outputs, NULL, NULL);
    if (status) { fprintf(stderr, "%s\\n", net_error(status)); return 1; }
    fwrite(y, sizeof y, 1, stdout);
    int tasks = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(folder));) tasks += task->d_name[0] != '.';
    fprintf(stderr, "%d threads\\n", tasks);
    return 0;
}
"""


def built(folder, command):
    """Run a compiler; the test is skipped where it has no OpenMP or no static libraries."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode and any(text in done.stderr for text in ("lgomp", "omp.h", "libomp", "cannot find -lc", "cannot find -lm")):
        pytest.skip("the C compiler has no OpenMP here, or no static libraries")
    assert not done.returncode, done.stderr


@needs_compiler
@pytest.mark.parametrize("flags", [[], ["-fopenmp"], ["-static", "-fopenmp"], ["-static", "-fopenmp", "-DPRAGMA"], ["-x", "c++", "-fopenmp"]])
def test_c_program(tmp_path, flags):
    # OpenMP ends threads that a loop leaves over: the last one has work for all.
    net = nn.Sequential(nn.Linear(512, 64), nn.GELU(), nn.Linear(64, 1024)).eval()
    export(net, (torch.randn(64, 512),), tmp_path / "net.a")
    x = torch.randn(64, 512)
    (tmp_path / "main.c").write_text(MAIN)
    (tmp_path / "x").write_bytes(x.numpy().tobytes())
    built(tmp_path, ["cc", "-O1", "-Wall", "-Werror", *flags, "main.c", "-x", "none", "net.a", "-lm", "-o", "main"])
    done = subprocess.run(["./main", "x"], cwd=tmp_path, capture_output=True, env={"OMP_NUM_THREADS": "3"}, check=True)
    check([torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(64, 1024)], [net(x)])
    assert done.stderr.decode().strip() == f"{3 if '-fopenmp' in flags else 1} threads"


@needs_compiler
def test_two_models_in_one_library(tmp_path):
    """Which have a kernel in common."""
    for name in ("one", "two"):
        export(nn.Sequential(nn.Linear(8, 4), nn.GELU()).eval(), (torch.randn(3, 8),), tmp_path / f"{name}.a")
    built(tmp_path, ["cc", "-shared", "-o", "both.so", "-Wl,--whole-archive", "one.a", "two.a", "-Wl,--no-whole-archive", "-lm"])
    both = ctypes.CDLL(str(tmp_path / "both.so"))
    assert both.one_run and both.two_run and not hasattr(both, "mlirc_parallel_for")


@needs_compiler
def test_shared_library_without_torch(tmp_path):
    net = nn.Linear(8, 4).eval()
    model = export(net, (torch.randn(3, 8),), tmp_path / "net.so")
    x = torch.randn(3, 8)
    check(model([x], [net(x)]), [net(x)])
    code = """if True:
        import ctypes, sys
        library = ctypes.CDLL(sys.argv[1])
        x, y = (ctypes.c_float * 24)(*range(24)), (ctypes.c_float * 12)()
        pointer = lambda a: (ctypes.c_void_p * 1)(ctypes.addressof(a))
        assert library.net_run(pointer(x), pointer(y), None, None) == 0
        assert not hasattr(library, "mlirc_parallel_for") and "torch" not in sys.modules
        print(*y)"""
    assert mlirc.export(torch.export.export(net, (x,)), tmp_path / "again.so").threads == (b"libgomp" in (tmp_path / "net.so").read_bytes())
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.so")], capture_output=True, text=True, check=True).stdout
    check([torch.tensor([float(n) for n in out.split()]).view(3, 4)], [net(torch.arange(24.0).view(3, 8))])


def test_library_is_the_same_again(tmp_path):
    net = nn.Linear(8, 4).eval()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        export(net, (torch.randn(3, 8),), tmp_path / name / "net.a")
    assert (tmp_path / "one" / "net.a").read_bytes() == (tmp_path / "two" / "net.a").read_bytes()


def test_index_of_the_archive(tmp_path):
    export(nn.Linear(8, 4).eval(), (torch.randn(3, 8),), tmp_path / "net.a")
    objects, index = members(tmp_path / "net.a")
    for symbol, name in index.items():
        assert any(s.name == symbol and s.section for s in elf.symbols(objects[name]))
    assert {"net_run", "net_workspace", "net_output_bytes", "net_error", "net_data"} <= set(index)
    assert not any(s.name.startswith("torch_") for obj in objects.values() for s in elf.symbols(obj))


