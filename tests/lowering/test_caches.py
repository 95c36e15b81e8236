"""Cache sizes: from what the system lists, what the C library says, and the default for what is missing or absurd."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirc.lowering import caches
from mlirc.lowering.caches import Caches
from mlirc.lowering.target import CACHES, NAMED, Target


def sysfs(folder: Path, levels: list[tuple[str, str, str, str, str]], siblings: str = "0") -> Path:
    """A CPU's folder with (level, type, size, ways, CPUs that share it) of each cache."""
    (folder / "topology").mkdir()
    (folder / "topology" / "thread_siblings_list").write_text(siblings + "\n")
    for n, values in enumerate(levels):
        place = folder / "cache" / f"index{n}"
        place.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "ways_of_associativity", "shared_cpu_list"), values):
            (place / name).write_text(value + "\n")
    return folder


LEVELS = [("1", "Data", "48K", "12", "0"), ("1", "Instruction", "64K", "8", "0"), ("2", "Unified", "2M", "16", "0"), ("3", "Unified", "32M", "16", "0-7")]


@pytest.fixture
def host(tmp_path, monkeypatch):
    def read(levels, siblings="0", said=None):
        monkeypatch.setattr(caches, "SYSFS", sysfs(tmp_path, levels, siblings))
        monkeypatch.setattr(caches, "_asked", lambda ask: said or {})
        return Caches.host()

    return read


def test_what_the_system_lists(host):
    assert host(LEVELS) == Caches(48 << 10, 12, 2 << 20)


def test_a_cache_of_four_cores_is_divided(host):
    levels = [("1", "Data", "32K", "8", "0"), ("2", "Unified", "4096K", "16", "0-3")]
    assert host(levels) == Caches(32 << 10, 8, 1 << 20)


def test_hardware_threads_share_what_is_theirs(host):
    assert host([(*level[:4], "0,64") for level in LEVELS], "0,64") == Caches(48 << 10, 12, 2 << 20)


def test_the_c_library_knows_what_a_container_hides(host):
    assert host([], said={"first": 48 << 10, "second": 2 << 20}) == Caches(48 << 10, 8, 2 << 20)


@pytest.mark.parametrize(
    "levels",
    [[], [("1", "Data", "-1", "0", "0")], [("2", "Unified", "0K", "16", "0")], [("2", "Unified", "many", "16", "0")], [("2", "Unified", "1M", "16", "0-x")],
     [("1", "Data", "1G", "999", "")]],
)  # fmt: skip
def test_defaults_for_what_is_missing_or_absurd(host, levels):
    assert host(levels) == Caches()


def test_this_machine():
    found = Caches.host()
    assert all(low <= getattr(found, name) <= high for name, (low, high) in caches.PLAUSIBLE.items())
    assert Target.host().caches == found


def test_what_sysconf_refuses_is_left_out(monkeypatch):
    monkeypatch.setattr(caches.platform, "libc_ver", lambda: ("glibc", "2.36"))

    def sysconf(number):
        if number == 189:
            raise OSError(22, "Invalid argument")
        return 1 << 15

    assert caches._asked(sysconf) == {"first": 1 << 15, "second": 1 << 15}
    monkeypatch.setattr(caches.platform, "libc_ver", lambda: ("", ""))
    assert caches._asked(sysconf) == {}


def test_named_targets_do_not_depend_on_the_machine(monkeypatch):
    monkeypatch.setattr(Caches, "host", None)
    assert set(CACHES) <= set(NAMED)
    assert Target.parse("znver5").caches == Caches(48 << 10, 12, 1 << 20)
    assert Target.parse("cascadelake").caches == Caches()
