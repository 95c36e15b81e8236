from __future__ import annotations

import pickle
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from mlirc.errors import CompileError
from mlirc.lowering import target as module
from mlirc.lowering.caches import Caches
from mlirc.lowering.target import NAMED, Target


def test_host_is_read_from_features_that_llvm_knows():
    host = Target.host()
    reported = {f for f, present in llvm.get_host_cpu_features().items() if present}
    assert {f for f in host.features} | {f for f in reported if f.startswith("amx-")} == reported
    host.check_runnable()
    assert host.missing() == []


@pytest.mark.parametrize("name", NAMED)
def test_every_named_target_uses_feature_names_of_llvm(name, capfd):
    target = Target.parse(name)
    assert set(target.features) <= set(llvm.get_host_cpu_features())
    llvm.initialize_native_target()
    llvm.Target.from_default_triple().create_target_machine(cpu=target.llvm_cpu, features=target.llvm_features)
    assert "not a recognized" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "bits", "registers", "amx", "bf16", "vnni", "f16c"),
    [
        ("x86-64-v2", 128, 16, False, False, False, False),
        ("x86-64-v3", 256, 16, False, False, False, True),
        ("alderlake", 256, 16, False, False, True, True),
        ("x86-64-v4", 512, 32, False, False, False, True),
        ("skylake-avx512", 512, 32, False, False, False, True),
        ("icelake-server", 512, 32, False, False, True, True),
        ("cooperlake", 512, 32, False, True, True, True),
        ("sapphirerapids", 512, 32, True, True, True, True),
        ("znver4", 512, 32, False, True, True, True),
    ],
)
def test_what_strategies_ask_for(name, bits, registers, amx, bf16, vnni, f16c):
    target = Target.parse(name)
    assert (target.vector_bits, target.vector_registers) == (bits, registers)
    assert (target.has_amx_bf16, target.has_avx512_bf16, target.has_vnni, target.has_f16c) == (amx, bf16, vnni, f16c)
    assert target.lanes(32) == bits // 32
    assert "-prefer-256-bit" in target.llvm_features


def test_unknown_name_lists_the_valid_ones():
    with pytest.raises(ValueError, match="unknown target 'i486'.*host.*x86-64-v3.*sapphirerapids"):
        Target.parse("i486")


def test_key_is_about_features_and_caches_not_names():
    assert Target.parse("x86-64-v3").key() == Target.parse("haswell").key()
    assert Target.parse("x86-64-v3").key() != Target.parse("x86-64-v4").key()
    assert replace(Target.parse("x86-64-v4"), caches=Caches(second=2 << 20)).key() != Target.parse("x86-64-v4").key()
    assert pickle.loads(pickle.dumps(Target.host())) == Target.host()


def test_a_target_beyond_the_host_names_what_is_missing():
    beyond = Target("beyond", tuple(sorted([*Target.host().features, "amx-fp8"])))
    with pytest.raises(CompileError, match="target beyond cannot run here.*amx-fp8"):
        beyond.check_runnable()


@pytest.mark.parametrize("offered", [True, False])
def test_amx_needs_the_kernel_too(monkeypatch, offered):
    everything = {f: True for f in NAMED["sapphirerapids"]}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: everything)
    monkeypatch.setattr(module, "_kernel_offers_amx", lambda: offered)
    assert Target.host.__wrapped__(Target).has_amx_bf16 is offered


def test_a_cpu_below_the_minimum_is_an_error(monkeypatch):
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"sse2": True})
    with pytest.raises(CompileError, match="lacks.*sse4.2"):
        Target.host.__wrapped__(Target)
