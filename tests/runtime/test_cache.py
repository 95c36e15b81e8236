"""The kernel cache: what is stored comes back, what is damaged or foreign does not, and trouble is one warning."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import resource
import stat
import subprocess
import sys
import textwrap
import time
import warnings

import pytest

from mlirc.runtime import cache as cache_module
from mlirc.runtime.cache import KernelCache, compiler_key, default_directory, kernel_key, pack, unpack
from mlirc.runtime.process import import_paths

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def key(n: int) -> str:
    return hashlib.sha256(str(n).encode()).hexdigest()


def entry(cache: KernelCache, n: int):
    return cache.directory / f"{key(n)}.kernel"


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch):
    monkeypatch.setattr(cache_module, "_warned", set())


@pytest.fixture
def cache(tmp_path):
    return KernelCache(tmp_path / "deep" / "cache", max_mb=64)


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_put_get_clear_stats(cache, no_warnings):
    assert cache.get(key(1)) is None
    assert not cache.directory.exists()
    cache.put(key(1), b"one")
    cache.put(key(2), b"")
    cache.put(key(1), b"uno")
    assert cache.get(key(1)) == b"uno"
    assert KernelCache(cache.directory).get(key(2)) == b""
    stats = cache.stats()
    assert (stats.entries, stats.hits, stats.misses, stats.directory) == (2, 1, 1, cache.directory)
    assert stats.bytes == sum(f.stat().st_size for f in cache.directory.iterdir())
    (cache.directory / "notes.txt").write_text("not ours")
    assert cache.clear() == 2
    assert cache.get(key(1)) is None
    assert [f.name for f in cache.directory.iterdir()] == ["notes.txt"]


def test_owner_only_whatever_the_umask(cache, no_warnings):
    old = os.umask(0)
    try:
        cache.put(key(1), b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(cache, 1).stat().st_mode) == 0o600


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 64, key(1) + "\n"])
def test_malformed_key(cache, bad):
    with pytest.raises(ValueError, match="SHA-256"):
        cache.get(bad)
    with pytest.raises(ValueError, match="SHA-256"):
        cache.put(bad, b"")


@pytest.mark.parametrize("damage", ["flip", "truncate", "header", "empty", "grow", "renamed", "version"])
def test_damaged_entry_is_a_miss_and_removed(cache, no_warnings, damage):
    cache.put(key(1), bytes(range(256)) * 10)
    file = entry(cache, 1)
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-7] ^= 1
    elif damage == "version":
        data[8] += 1
    elif damage == "renamed":
        cache.put(key(2), b"another kernel")
        data = bytearray(entry(cache, 2).read_bytes())
    else:
        data = {"truncate": data[:-1], "header": data[:20], "empty": data[:0], "grow": data + b"x"}[damage]
    file.write_bytes(data)
    assert cache.get(key(1)) is None
    assert not file.exists()
    cache.put(key(1), b"again")
    assert cache.get(key(1)) == b"again"


def test_symlink_is_not_followed(cache, tmp_path, no_warnings):
    cache.put(key(1), b"x")
    elsewhere = tmp_path / "elsewhere"
    entry(cache, 1).rename(elsewhere)
    entry(cache, 1).symlink_to(elsewhere)
    assert cache.get(key(1)) is None
    entry(cache, 1).symlink_to(tmp_path / "target")
    cache.put(key(1), b"y")
    assert not (tmp_path / "target").exists()
    assert cache.get(key(1)) == b"y"


def test_pipe_in_place_of_an_entry(cache):
    cache.put(key(2), b"")
    os.mkfifo(entry(cache, 1), 0o600)
    with pytest.warns(RuntimeWarning, match="not a regular file"):
        assert cache.get(key(1)) is None


def use_untrusted(cache, match):
    """Reads and writes do nothing, and there is one warning with the way out."""
    before = sorted(os.listdir(cache.directory))
    with pytest.warns(RuntimeWarning, match=match) as caught:
        assert cache.get(key(1)) is None
        cache.put(key(3), b"z")
        assert KernelCache(cache.directory).get(key(1)) is None
        assert cache.clear() == 0
        assert cache.stats().entries == 0
    assert len(caught) == 1
    assert "cache_dir" in str(caught[0].message)
    assert sorted(os.listdir(cache.directory)) == before


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_directory_that_others_can_write_to(cache, mode):
    cache.put(key(1), b"x")
    cache.directory.chmod(mode)
    use_untrusted(cache, "others can write to it")
    cache.directory.chmod(0o755)
    assert cache.get(key(1)) == b"x"


@root_only
def test_directory_of_someone_else(cache):
    cache.put(key(1), b"x")
    os.chown(cache.directory, 12345, -1)
    use_untrusted(cache, "belongs to user 12345")


@root_only
def test_entry_of_someone_else(cache):
    cache.put(key(1), b"x")
    os.chown(entry(cache, 1), 12345, -1)
    with pytest.warns(RuntimeWarning, match="belongs to user 12345") as caught:
        assert cache.get(key(1)) is None
        assert cache.get(key(1)) is None
    assert len(caught) == 1
    cache.put(key(1), b"mine")
    assert cache.get(key(1)) == b"mine"


def test_entry_that_others_can_write_to(cache):
    cache.put(key(1), b"x")
    entry(cache, 1).chmod(0o620)
    with pytest.warns(RuntimeWarning, match="mode 620"):
        assert cache.get(key(1)) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("call", ["write", "replace", "mkdir"])
def test_failing_writes_are_one_warning(cache, monkeypatch, code, call):
    if call != "mkdir":
        cache.put(key(1), b"before")

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.warns(RuntimeWarning, match=os.strerror(code)) as caught:
            cache.put(key(2), b"x" * 100)
            cache.put(key(3), b"x" * 100)
    assert len(caught) == 1
    assert cache.get(key(2)) is None
    if call != "mkdir":
        assert cache.get(key(1)) == b"before"
        assert len(os.listdir(cache.directory)) == 1


def test_a_directory_that_cannot_be_listed_at_the_moment(cache, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
        cache.put(key(1), b"one")
    cache.put(key(2), b"two")
    assert (cache.get(key(1)), cache.get(key(2)), cache.stats().entries) == (b"one", b"two", 2)


def test_directory_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning):
        cache = KernelCache(tmp_path / "file")
        cache.put(key(1), b"x")
        assert cache.get(key(1)) is None


def test_directory_removed_meanwhile(cache, no_warnings):
    cache.put(key(1), b"x")
    entry(cache, 1).unlink()
    cache.directory.rmdir()
    assert cache.get(key(1)) is None
    cache.put(key(1), b"x")
    assert cache.get(key(1)) == b"x"


def test_disk_full_for_real(tmp_path):
    """A limit on the size of files cuts the write short, as a full disk does."""
    cache = KernelCache(tmp_path / "cache")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.warns(RuntimeWarning, match="takes no new entries"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
        try:
            cache.put(key(1), b"x" * 10000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert os.listdir(cache.directory) == []


def test_least_recently_used_goes_first(tmp_path):
    cache = KernelCache(tmp_path / "cache", max_mb=1)
    size = 150 << 10
    for n in range(6):
        cache.put(key(n), bytes(size))
        os.utime(entry(cache, n), (1000 + n, 1000 + n))
    assert cache.get(key(0)) is not None
    cache.put(key(6), bytes(size))
    assert [n for n in range(7) if entry(cache, n).exists()] == [0, 2, 3, 4, 5, 6]
    assert cache.stats().bytes <= 1 << 20


def test_entries_of_earlier_processes_count(tmp_path):
    for n in range(12):
        KernelCache(tmp_path / "cache", max_mb=1).put(key(n), bytes(150 << 10))
        assert KernelCache(tmp_path / "cache").stats().bytes <= 1 << 20


def test_too_large_for_the_cache(tmp_path):
    cache = KernelCache(tmp_path / "cache", max_mb=1)
    cache.put(key(1), b"small")
    cache.put(key(2), bytes(2 << 20))
    assert (cache.get(key(1)), cache.get(key(2))) == (b"small", None)


def test_leftovers_of_killed_processes_are_removed(cache):
    cache.put(key(1), b"x")
    old, new = cache.directory / ".new-old", cache.directory / ".new-new"
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    KernelCache(cache.directory).put(key(2), b"y")
    assert (old.exists(), new.exists()) == (False, True)
    assert cache.stats().entries == 2
    assert cache.clear() == 2
    assert os.listdir(cache.directory) == []


def test_eight_processes_share_one_cache(tmp_path):
    """Puts, gets, clears and trims at once: never an error, a warning or wrong data."""
    script = textwrap.dedent(
        """
        import sys, random, hashlib, warnings
        sys.path[:] = eval(sys.argv[3])
        warnings.simplefilter("error")
        from pathlib import Path
        from mlirc.runtime.cache import KernelCache
        cache = KernelCache(Path(sys.argv[1]), max_mb=1)
        rng = random.Random(int(sys.argv[2]))
        for step in range(250):
            n = rng.randrange(60)
            key = hashlib.sha256(str(n).encode()).hexdigest()
            data = random.Random(n).randbytes(1000 * n)
            got = cache.get(key)
            assert got is None or got == data, n
            if got is None:
                cache.put(key, data)
            if rng.random() < 0.01:
                cache.clear()
            if rng.random() < 0.02:
                cache.stats()
        assert cache.stats().hits > 0
        """
    )
    args = [str(tmp_path / "cache")]
    processes = [
        subprocess.Popen([sys.executable, "-c", script, *args, str(n), repr(sum(import_paths(), []))], stderr=subprocess.PIPE, text=True)
        for n in range(8)
    ]
    for process in processes:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    cache = KernelCache(tmp_path / "cache", max_mb=1)
    assert not [name for name in os.listdir(cache.directory) if name.startswith(".new-")]
    # Each process may be a sixteenth of the limit behind the others.
    assert cache.stats().bytes <= (1 << 20) * 1.5


def test_killed_while_writing_leaves_nothing_broken(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        sys.path[:] = eval(sys.argv[2])
        from pathlib import Path
        from mlirc.runtime.cache import KernelCache
        cache = KernelCache(Path(sys.argv[1]))
        print("ready", flush=True)
        while True:
            cache.put("0" * 64, bytes(1 << 20))
        """
    )
    cache = KernelCache(tmp_path / "cache")
    rng = random.Random(0)
    for _ in range(3):
        command = [sys.executable, "-c", script, str(cache.directory), repr(sum(import_paths(), []))]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0.01, 0.03))
            process.kill()
        assert cache.get("0" * 64) in (None, bytes(1 << 20))


def test_default_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert KernelCache().directory == default_directory()
    if sys.platform == "linux":
        assert default_directory() == tmp_path / "mlirc" / "kernels"


def test_pack():
    metadata = {"name": "k07_linear_gelu", "sizes": [1, 2]}
    assert unpack(pack(metadata, b"\0\1object")) == (metadata, b"\0\1object")
    assert unpack(pack({}, b"")) == ({}, b"")
    with pytest.raises(TypeError):
        pack({"f": object()}, b"")
    for bad in (b"", b"\xff\xff\xff\x7fxx", b"\2\0\0\0[]", b"\2\0\0\0xx"):
        with pytest.raises(ValueError):
            unpack(bad)


def test_kernel_key_depends_on_everything(monkeypatch):
    first = kernel_key("text", "avx2", "options")
    assert first == kernel_key("text", "avx2", "options")
    others = {kernel_key("text2", "avx2", "options"), kernel_key("text", "avx", "2options"), kernel_key("text", "avx2", "o")}
    monkeypatch.setattr(cache_module, "compiler_key", lambda: "another compiler")
    others.add(kernel_key("text", "avx2", "options"))
    assert len(others | {first}) == 5


def test_compiler_key_follows_the_sources(tmp_path, monkeypatch):
    for folder in ("passes", "lowering", "dialects", "runtime"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x = 1")
    (tmp_path / "driver.py").write_text("")
    monkeypatch.setattr(cache_module, "__file__", str(tmp_path / "runtime" / "cache.py"))
    compute = compiler_key.__wrapped__
    seen = [compute()]
    assert compute() == seen[0]
    (tmp_path / "passes" / "a.py").write_text("x = 2")
    seen.append(compute())
    (tmp_path / "lowering" / "sub").mkdir()
    (tmp_path / "lowering" / "sub" / "b.py").write_text("")
    seen.append(compute())
    (tmp_path / "driver.py").write_text("y = 1")
    seen.append(compute())
    assert len(set(seen)) == 4
    (tmp_path / "runtime" / "a.py").write_text("not the compiler")
    assert compute() == seen[-1]
