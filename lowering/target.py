"""The CPU that code is made for: which instructions exist, how large the caches are, and nothing about how to use them.

A target is a list of features and three sizes. Names lie (hypervisors mask features, and report one CPU's name with another's features),
so the host is described by the features that CPUID and the operating system offer, and a named target is short for a list.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from dataclasses import dataclass

from ..errors import CompileError
from .caches import Caches

_V2 = "64bit cmov cx8 cx16 fxsr mmx sse sse2 sse3 ssse3 sse4.1 sse4.2 crc32 popcnt sahf".split()
_V3 = [*_V2, *"avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave".split()]
_V4 = [*_V3, *"avx512f avx512bw avx512cd avx512dq avx512vl".split()]
_SKYLAKE = [*_V4, *"adx prfchw aes pclmul rdrnd rdseed clflushopt clwb".split()]
_CASCADELAKE = [*_SKYLAKE, "avx512vnni"]
_ICELAKE = [*_CASCADELAKE, *"avx512bitalg avx512ifma avx512vbmi avx512vbmi2 avx512vpopcntdq gfni vaes vpclmulqdq sha".split()]
_SAPPHIRE = [*_ICELAKE, *"avx512bf16 avx512fp16 avxvnni amx-tile amx-bf16 amx-int8".split()]
_SHA = [*_V3, *"adx prfchw aes pclmul rdrnd rdseed clflushopt sha".split()]
_ZEN = [*_SHA, "sse4a"]
_ZEN4 = [*_ZEN, *(f for f in _ICELAKE if f not in _ZEN), "avx512bf16"]

NAMED: dict[str, list[str]] = {
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
    "haswell": _V3,
    "broadwell": [*_V3, "adx", "prfchw"],
    "skylake": [*_V3, *"adx prfchw aes pclmul rdrnd rdseed clflushopt".split()],
    "alderlake": [*_SHA, *"avxvnni gfni vaes vpclmulqdq".split()],
    "skylake-avx512": _SKYLAKE,
    "cascadelake": _CASCADELAKE,
    "cooperlake": [*_CASCADELAKE, "avx512bf16"],
    "icelake-client": [f for f in _ICELAKE if f != "clwb"],
    "icelake-server": _ICELAKE,
    "sapphirerapids": _SAPPHIRE,
    "emeraldrapids": _SAPPHIRE,
    "graniterapids": [*_SAPPHIRE, "amx-fp16"],
    "znver2": _ZEN,
    "znver3": [*_ZEN, *"vaes vpclmulqdq".split()],
    "znver4": _ZEN4,
    "znver5": [*_ZEN4, *"avxvnni avx512vp2intersect".split()],
}

_HASWELL, _ZEN2, _GOLDEN_COVE = Caches(second=256 << 10), Caches(second=512 << 10), Caches(48 << 10, 12, 2 << 20)

CACHES: dict[str, Caches] = {
    **dict.fromkeys(("x86-64-v2", "x86-64-v3", "haswell", "broadwell", "skylake"), _HASWELL),
    "alderlake": Caches(48 << 10, 12, 1280 << 10),
    "icelake-client": Caches(48 << 10, 12, 512 << 10),
    "icelake-server": Caches(48 << 10, 12, 1280 << 10),
    **dict.fromkeys(("sapphirerapids", "emeraldrapids", "graniterapids"), _GOLDEN_COVE),
    **dict.fromkeys(("znver2", "znver3"), _ZEN2),
    "znver5": Caches(48 << 10, 12, 1 << 20),
}
"""Of the named targets; the default for those that are not here. A level has what the least of its CPUs have."""


@dataclass(frozen=True)
class Target:
    """A CPU. `features` are LLVM's names, sorted. Two targets with the same features and caches get the same code."""

    name: str
    features: tuple[str, ...]
    caches: Caches = Caches()

    @classmethod
    @functools.cache
    def host(cls) -> Target:
        """The machine that this process runs on: what the CPU has and the operating system saves and restores.

        Raises CompileError where that is less than x86-64-v2.
        """
        import llvmlite.binding as llvm

        features = {name for name, present in llvm.get_host_cpu_features().items() if present}
        if platform.machine().lower() not in ("x86_64", "amd64"):
            raise CompileError(f"mlirc makes code for x86-64 CPUs, and this one is {platform.machine()}")
        missing = [f for f in _V2 if f not in features]
        if missing:
            raise CompileError(f"mlirc needs a CPU with at least x86-64-v2; this one lacks {', '.join(missing)}")
        # LLVM has looked at XCR0 for AVX, AVX-512 and AMX, but Linux also hands out AMX only on request, from 5.16 on.
        if not _kernel_offers_amx():
            features = {f for f in features if not f.startswith("amx-")}
        return cls("host", tuple(sorted(features)), Caches.host())

    @classmethod
    def parse(cls, name: str) -> Target:
        """`host`, an architecture level such as `x86-64-v3`, or a CPU such as `sapphirerapids`.

        Raises ValueError for any other name, listing the valid ones.
        """
        if name == "host":
            return cls.host()
        if name not in NAMED:
            raise ValueError(f"mlirc: unknown target {name!r}; valid targets: {', '.join(['host', *NAMED])}")
        return cls(name, tuple(sorted(NAMED[name])), CACHES.get(name, Caches()))

    def has(self, *features: str) -> bool:
        """Whether all of these (LLVM's names) are there."""
        return all(f in self.features for f in features)

    @property
    def has_avx512(self) -> bool:
        """AVX-512 in the extent of every CPU with it that is sold for servers: F, BW, DQ, VL."""
        return self.has("avx512f", "avx512bw", "avx512dq", "avx512vl")

    @property
    def has_avx2(self) -> bool:
        """AVX2 and FMA."""
        return self.has("avx2", "fma")

    @property
    def has_amx_bf16(self) -> bool:
        return self.has("amx-tile", "amx-bf16")

    @property
    def has_amx_int8(self) -> bool:
        return self.has("amx-tile", "amx-int8")

    @property
    def has_avx512_bf16(self) -> bool:
        return self.has_avx512 and self.has("avx512bf16")

    @property
    def multiplies_pairs_fast(self) -> bool:
        """Whether `vdpbf16ps` takes no longer than a product of f32: on AMD's CPUs; those with AMX run it at half the rate."""
        return self.has_avx512_bf16 and self.is_amd

    @property
    def has_vnni(self) -> bool:
        """`vpdpbusd` on vectors of `vector_bits`."""
        return self.has("avx512vnni") if self.has_avx512 else self.has("avxvnni")

    @property
    def has_f16c(self) -> bool:
        return self.has("f16c")

    @property
    def gathers_fast(self) -> bool:
        """Whether 16 elements from cache take as long as ten ops: 8 cycles on CPUs with AMX. Those of Intel before are slowed down
        by their microcode (CVE-2022-40982); others were not measured."""
        return self.has_avx512 and self.has_amx_bf16

    @property
    def is_amd(self) -> bool:
        """AMD's CPUs alone have `sse4a`."""
        return self.has("sse4a")

    @property
    def vector_bits(self) -> int:
        """Width of a vector register that arithmetic should use."""
        return 512 if self.has_avx512 else 256 if self.has_avx2 else 128

    @property
    def vector_registers(self) -> int:
        """How many of them there are."""
        return 32 if self.has_avx512 else 16

    def lanes(self, element_bits: int) -> int:
        """Elements of `element_bits` in one vector register."""
        return self.vector_bits // element_bits

    @property
    def llvm_cpu(self) -> str:
        """The architecture level below the features: it picks LLVM's scheduling model, and promises no more than it says."""
        return next(level for level in ("x86-64-v4", "x86-64-v3", "x86-64-v2") if self.has(*NAMED[level]))

    @property
    def llvm_features(self) -> str:
        """`+a,+b,...`, and how LLVM is to use them.

        Without `-prefer-256-bit` it splits 512-bit vectors in two, and without `fast-dpwssd` every other rounding to bf16 is `vpmaddwd` and
        `vpaddd` instead of the one instruction that it is written as, for a latency that unrolled loops hide (Zen 4: a layer norm of
        128 x 768 bf16 takes 14.3 instead of 14.8 us, its softmaxes of 49 columns 52.9 instead of 54).
        """
        return ",".join([*(f"+{f}" for f in self.features), "-prefer-256-bit", "+fast-dpwssd"])

    def key(self) -> str:
        """What the kernel cache tells targets apart by: equal for equal code, whatever the name."""
        return f"{self.llvm_cpu},{self.llvm_features},{self.caches.key()}"

    def missing(self) -> list[str]:
        """Features that this target has and the host has not; without a hint, which is no operation where it is unknown."""
        host = Target.host()
        return [f for f in self.features if f != "prfchw" and not host.has(f)]

    def check_runnable(self) -> None:
        """Raise CompileError, naming the missing features, if the host cannot run code for this target."""
        missing = self.missing()
        if missing:
            raise CompileError(f"code for target {self.name} cannot run here: this CPU or its kernel lacks {', '.join(missing)}")


_ARCH_PRCTL = 158
_ARCH_GET_XCOMP_SUPP = 0x1021
_XTILE = 0b11 << 17  # the XSAVE components of the tile configuration and of the tile data


def _kernel_offers_amx() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    supported = ctypes.c_uint64(0)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(supported))
    return failed == 0 and supported.value & _XTILE == _XTILE
