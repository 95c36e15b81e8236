"""Shared libraries, made by the C compiler of the machine: the one thing here that needs one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import CompileError
from .archive import Member, write_archive


def link_shared(path: Path, members: Sequence[Member], name: str) -> bool:
    """Link object files to a shared library that exports `NAME_*` and nothing else; whether it is linked with OpenMP.

    Raises CompileError where there is no C compiler, or with what it says.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CompileError("a shared library is linked by a C compiler, and there is no `cc` here: export a static one (.a), which needs none")
    with tempfile.TemporaryDirectory() as folder:
        archive, script = Path(folder, "all.a"), Path(folder, "exports.map")
        write_archive(archive, members)
        script.write_text(f"{{ global: {name}_run; {name}_workspace; {name}_output_bytes; {name}_error; local: *; }};\n")
        command = [compiler, "-shared", "-o", str(path), "-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
        command += [f"-Wl,--version-script={script}", "-Wl,-z,noexecstack", "-lm"]
        # No code of its own calls OpenMP, but kernels want it (`runtime.openmp`).
        if subprocess.run([*command, "-Wl,--no-as-needed", "-fopenmp"], capture_output=True, check=False).returncode == 0:
            return True
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(f"{compiler} cannot link {path}: {done.stderr.strip()}")
        return False
