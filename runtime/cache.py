"""The disk cache of compiled kernels: content-addressed files in a folder that only its owner can write to.

What is read here ends up as machine code in this process, so nothing is taken from a folder or file that somebody else
could have written. Entries carry a checksum; they appear by renaming a finished file, so that a process killed at any
moment and any number of processes at work at once leave either an entry or none. No trouble with the cache is an error:
it warns once and goes on without.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import stat
import struct
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

# Magic, version of the format, SHA-256 of key and payload.
HEADER = struct.Struct("<8sI32s")
MAGIC = b"mlirc-kc"
VERSION = 1
KEY = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".kernel"
TEMPORARY = ".new-"
STALE_SECONDS = 3600.0
# A trim goes below the limit, so that the next put does not trim again.
TRIM_TO = 0.9


@dataclass(frozen=True)
class CacheStats:
    """`entries` and `bytes` are on disk, from all processes; `hits` and `misses` count this object's lookups."""

    entries: int
    bytes: int
    hits: int
    misses: int
    directory: Path


@dataclass(frozen=True)
class _Entry:
    name: str
    size: int
    used: int


class KernelCache:
    """A mapping from content hashes to bytes, in `directory` (None: `default_directory()`), of at most about `max_mb` MiB.

    The directory is created on the first `put`, for its owner only. If it, or an entry, belongs to another user or can be
    written by others, it is not used. Safe to share between threads, processes and forks.
    """

    def __init__(self, directory: Path | None = None, max_mb: int = 1024) -> None:
        self.directory = Path(directory).expanduser().absolute() if directory is not None else default_directory()
        self.max_bytes = max_mb << 20
        self._hits = 0
        self._misses = 0
        self._writable = True
        self._size: int | None = None
        self._added = 0

    def get(self, key: str) -> bytes | None:
        """The bytes that were put under `key`; None if there are none, or damaged ones, which are removed.

        Raises ValueError if `key` is not the hexadecimal SHA-256 that `kernel_key` gives.
        """
        name = _file_name(key)
        data = None
        with self._opened(create=False) as folder:
            if folder is not None:
                data = self._read(folder, name, key)
        if data is None:
            self._misses += 1
        else:
            self._hits += 1
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, replacing what is there. Raises ValueError for a malformed key, nothing else."""
        name = _file_name(key)
        size = HEADER.size + len(data)
        if not self._writable or size > self.max_bytes:
            return
        with self._opened(create=True) as folder:
            if folder is not None and self._write(folder, name, HEADER.pack(MAGIC, VERSION, _digest(key, data)), data):
                self._account(folder, size)

    def clear(self) -> int:
        """Remove all entries, also those that other processes just write; how many there were."""
        removed = 0
        with self._opened(create=False) as folder:
            if folder is not None:
                for entry in _entries(folder, temporaries=True):
                    removed += _unlink(folder, entry.name) and not entry.name.startswith(TEMPORARY)
        self._size = None
        return removed

    def stats(self) -> CacheStats:
        """Count what is on disk."""
        entries: list[_Entry] = []
        with self._opened(create=False) as folder:
            if folder is not None:
                entries = _entries(folder)
        return CacheStats(len(entries), sum(e.size for e in entries), self._hits, self._misses, self.directory)

    @contextlib.contextmanager
    def _opened(self, create: bool) -> Iterator[int | None]:
        """The directory as a descriptor, or None if it is not there or not to be trusted.

        Everything goes through this descriptor, so that what was checked is what is used. It is opened anew each time,
        because programs clean caches, close foreign descriptors and fork.
        """
        folder = None
        try:
            folder = self._open(create)
            if folder is not None and (cause := _distrust(os.fstat(folder))) is not None:
                os.close(folder)
                folder = None
                self._warn(f"the kernel cache {self.directory} is not used: {cause}")
        except OSError as error:
            self._warn(f"the kernel cache {self.directory} is not used: {error.strerror}")
            self._writable = False
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _open(self, create: bool) -> int | None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if create:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return os.open(self.directory, flags)
        except FileNotFoundError:
            return None

    def _read(self, folder: int, name: str, key: str) -> bytes | None:
        try:
            # Not blocking: a pipe in place of the entry must not hang us.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                _unlink(folder, name)
            else:
                self._warn(f"the kernel cache entry {self.directory / name} is not used: {error.strerror}")
            return None
        with open(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            cause = _distrust(status) if stat.S_ISREG(status.st_mode) else "it is not a regular file"
            if cause is not None:
                self._warn(f"the kernel cache entry {self.directory / name} is not used: {cause}")
                return None
            try:
                content = file.readall()
            except OSError:
                content = b""
            data = content[HEADER.size :]
            if len(content) < HEADER.size or HEADER.unpack_from(content) != (MAGIC, VERSION, _digest(key, data)):
                _unlink(folder, name)
                return None
            with contextlib.suppress(OSError):
                os.utime(fd)
            return data

    def _write(self, folder: int, name: str, *parts: bytes) -> bool:
        temporary = f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                for part in parts:
                    view = memoryview(part)
                    while view:
                        view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            return False  # somebody cleared the cache or removed its directory meanwhile
        except OSError as error:
            _unlink(folder, temporary)
            self._writable = False
            self._warn(f"the kernel cache {self.directory} takes no new entries: {error.strerror}")
            return False
        return True

    def _account(self, folder: int, size: int) -> None:
        """Keep the directory within its limit.

        Entries of other processes are seen when the directory is scanned: on the first put, and whenever this process
        has added a sixteenth of the limit.
        """
        self._added += size
        if self._size is not None:
            self._size += size
        if self._size is None or self._size > self.max_bytes or self._added > self.max_bytes // 16:
            with contextlib.suppress(OSError):  # no descriptor left to list it with: later
                self._size = _trim(folder, self.max_bytes)
                self._added = 0

    def _warn(self, text: str) -> None:
        """Once per text in this process."""
        if text not in _warned:
            _warned.add(text)
            advice = "choose another folder with the option cache_dir, or turn the cache off with cache=False"
            warnings.warn(f"mlirc: {text}; {advice}", RuntimeWarning, stacklevel=3)


_warned: set[str] = set()


def default_directory() -> Path:
    """`kernels` in the platform's cache folder for mlirc (Linux: ~/.cache/mlirc/kernels)."""
    folder = platformdirs.user_cache_dir("mlirc", appauthor=False)
    if folder.startswith("~"):  # a user without a home, as containers have them
        folder = os.path.join(tempfile.gettempdir(), f"mlirc-{os.geteuid()}")
    return Path(folder).absolute() / "kernels"


def pack(metadata: dict[str, Any], blob: bytes) -> bytes:
    """JSON metadata and binary data as one value for the cache. Raises TypeError for what JSON cannot say."""
    header = json.dumps(metadata, sort_keys=True).encode()
    return len(header).to_bytes(4, "little") + header + blob


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """What `pack` packed. Raises ValueError if it was not."""
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 + size:
        raise ValueError("mlirc: a cached value is shorter than it says")
    metadata = json.loads(data[4 : 4 + size])
    if not isinstance(metadata, dict):
        raise ValueError("mlirc: a cached value has no metadata")
    return metadata, data[4 + size :]


def kernel_key(text: str, target_key: str, options_key: str) -> str:
    """The content hash under which the machine code of the kernel `text` is kept.

    `text` has no names or locations in it that could be left out; `target_key` and `options_key` say everything else
    that the machine code depends on, except for the compiler itself, which is added here.
    """
    digest = hashlib.sha256()
    for part in (compiler_key(), target_key, options_key, text):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


@functools.lru_cache(maxsize=None)
def compiler_key() -> str:
    """Versions of the toolchain and a hash of our own compiler's sources, so that a change of any of them is a miss."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in ("mlirc", "torch-mlir", "llvmlite"):
        digest.update(f"{package} {_version(package)}\0".encode())
    files = [root / "driver.py"]
    for folder in ("passes", "lowering", "dialects"):
        files += (f for f in (root / folder).rglob("*") if f.suffix in (".py", ".pyc", ".mlir", ".ll", ".json"))
    for file in sorted(f for f in files if f.is_file() and f.parent.name != "__pycache__"):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _file_name(key: str) -> str:
    if not KEY.fullmatch(key):
        raise ValueError(f"mlirc: a cache key is a SHA-256 in hexadecimal, not {key!r}")
    return key + SUFFIX


def _digest(key: str, data: bytes) -> bytes:
    """With the key in it, so that a file under a wrong name is found out too."""
    digest = hashlib.sha256(key.encode())
    digest.update(data)
    return digest.digest()


def _distrust(status: os.stat_result) -> str | None:
    """Why a file or directory could hold what somebody else wrote, or None."""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, not to user {os.geteuid()} who runs this"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (mode {stat.S_IMODE(status.st_mode):o}; chmod go-w makes it usable)"
    return None


def _entries(folder: int, temporaries: bool = False) -> list[_Entry]:
    found = []
    with os.scandir(folder) as scan:
        for item in scan:
            ours = item.name.endswith(SUFFIX) and KEY.fullmatch(item.name.removesuffix(SUFFIX))
            if ours or (temporaries and item.name.startswith(TEMPORARY)):
                with contextlib.suppress(OSError):
                    status = item.stat(follow_symlinks=False)
                    found.append(_Entry(item.name, status.st_size, status.st_mtime_ns))
    return found


def _trim(folder: int, max_bytes: int) -> int:
    """Remove what was used longest ago if there is too much, and what killed processes left; the bytes that remain."""
    entries = []
    for entry in _entries(folder, temporaries=True):
        if not entry.name.startswith(TEMPORARY):
            entries.append(entry)
        elif entry.used < (time.time() - STALE_SECONDS) * 1e9:
            _unlink(folder, entry.name)
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        for entry in sorted(entries, key=lambda entry: entry.used):
            if total <= max_bytes * TRIM_TO:
                break
            _unlink(folder, entry.name)
            total -= entry.size
    return total


def _unlink(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True
