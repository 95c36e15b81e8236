"""Kernels that failed to compile, kept as files for those who look into it."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import tempfile
from collections.abc import Sequence

from .lowering.target import Target


def write_reproducer(name: str, text: str, target: Target, passes: Sequence[str] = (), pin: str = "") -> str:
    """Save the text of a kernel below the command that compiles it again; the path, or "" if it cannot be saved.

    `pin` are the fields of its strategy that are not the default ones, as the option takes them.
    """
    file = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.mlir"
    try:
        path = os.path.join(_folder(), file)
        with open(path, "w", encoding="utf-8") as f:
            options = "".join(f" --passes {shlex.quote(os.path.abspath(os.path.expanduser(p)))}" for p in passes)
            options += f" --option {shlex.quote(f'pin=*: {pin}')}" if pin else ""
            f.write(f"// mlirc dump {shlex.quote(path)} --target {target.name}{options}\n{text}")
    except (OSError, ValueError):  # a full disk must not hide what went wrong with the kernel
        return ""
    return path


def _folder() -> str:
    """A folder that only this user can write to: other users could place links in it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = os.path.join(tempfile.gettempdir(), f"mlirc-reproducers-{user}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return tempfile.mkdtemp(prefix="mlirc-reproducers-")
    return folder
