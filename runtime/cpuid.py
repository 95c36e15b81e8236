"""A check, in code that is not compiled where it runs, that the CPU has what the code needs."""

from __future__ import annotations

from collections.abc import Iterable

_PLACES = {
    (1, 0, "c"): {
        "sse3": 0, "pclmul": 1, "ssse3": 9, "fma": 12, "sse4.1": 19, "sse4.2": 20, "movbe": 22, "popcnt": 23, "aes": 25, "osxsave": 27, "avx": 28, "f16c": 29,
    },
    (7, 0, "b"): {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "avx512ifma": 21, "avx512cd": 28, "avx512bw": 30, "avx512vl": 31,
    },
    (7, 0, "c"): {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512vnni": 11, "avx512bitalg": 12, "avx512vpopcntdq": 14,
    },
    (7, 0, "d"): {"amx-bf16": 22, "avx512fp16": 23, "amx-tile": 24, "amx-int8": 25},
    (7, 1, "a"): {"avxvnni": 4, "avx512bf16": 5, "amx-fp16": 21},
    (0x80000001, 0, "c"): {"lzcnt": 5},
}  # fmt: skip
"""Leaf, subleaf and register of CPUID -> the bit of each feature (Intel's manual, volume 2A, CPUID). Features by LLVM's names; those that
are not here are none that kernels are made for."""

_SAVES = "osxsave"
"""That the operating system says what it saves and restores."""

_EXTENDED = 0x80000000
_FOUR = "{ i32, i32, i32, i32 }"

CHECK = "mlirc_cpu"


def _cpuid(name: str, leaf: int, subleaf: int) -> list[str]:
    """LLVM IR of %name, the four registers."""
    clobbers = "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"
    return [f'  %{name} = call {_FOUR} asm sideeffect "cpuid", "{clobbers}"(i32 {leaf}, i32 {subleaf})']


def check_ir(features: Iterable[str]) -> str:
    """LLVM IR of `i1 mlirc_cpu()`: whether the CPU has the `features`, the operating system saves the vector registers that they need, and
    Linux hands out AMX's tiles if they are among them.

    CPUID is asked once: in a virtual machine it takes microseconds.
    """
    wanted = set(features)
    state = (0xE0 if any(f.startswith("avx512") for f in wanted) else 0) | (6 if any(f.startswith("avx") for f in wanted) else 0)
    if state:
        wanted.add(_SAVES)
    lines: list[str] = []
    last = "true"

    def also(condition: str) -> None:
        nonlocal last
        lines.append(f"  %so.far{len(lines)} = and i1 {last}, {condition}")
        last = f"%so.far{len(lines) - 1}"

    # Beyond the last leaf, some CPUs answer with that one.
    for n, (first, least) in enumerate(((0, 7), (_EXTENDED, _EXTENDED + 1))):
        lines += [*_cpuid(f"last{n}", first, 0), f"  %leaf{n} = extractvalue {_FOUR} %last{n}, 0", f"  %enough{n} = icmp uge i32 %leaf{n}, {least}"]
    also("%enough0")
    also("%enough1")
    for n, ((leaf, subleaf, register), bits) in enumerate(_PLACES.items()):
        mask = sum(1 << bit for name, bit in bits.items() if name in wanted)
        if not mask:
            continue
        lines += [
            *_cpuid(f"all{n}", leaf, subleaf),
            f"  %word{n} = extractvalue {_FOUR} %all{n}, {'abcd'.index(register)}",
            f"  %there{n} = and i32 %word{n}, {mask}",
            f"  %good{n} = icmp eq i32 %there{n}, {mask}",
        ]
        also(f"%good{n}")
    if state:
        # To ask is an instruction that has to be there itself.
        lines += [
            f"  br i1 {last}, label %saved, label %lacking",
            "lacking:",
            "  store atomic i32 2, ptr @mlirc_cpu_known monotonic, align 4",
            "  ret i1 false",
            "saved:",
            '  %states = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)',
            "  %low = extractvalue { i32, i32 } %states, 0",
            f"  %kept = and i32 %low, {state}",
            f"  %all.kept = icmp eq i32 %kept, {state}",
        ]
        also("%all.kept")
    declaration = ""
    if any(f.startswith("amx-") for f in wanted):
        declaration = "declare i64 @syscall(i64, ...)"
        lines += [
            "  %refused = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)",  # arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
            "  %granted = icmp eq i64 %refused, 0",
        ]
        also("%granted")
    body = "\n".join(lines)
    return f"""
{declaration}
@mlirc_cpu_known = internal global i32 0
define internal i1 @{CHECK}() {{
start:
  %known = load atomic i32, ptr @mlirc_cpu_known monotonic, align 4
  %asked = icmp ne i32 %known, 0
  br i1 %asked, label %again, label %ask
again:
  %before = icmp eq i32 %known, 1
  ret i1 %before
ask:
{body}
  %state = select i1 {last}, i32 1, i32 2
  store atomic i32 %state, ptr @mlirc_cpu_known monotonic, align 4
  ret i1 {last}
}}
"""
