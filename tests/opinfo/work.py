"""A worker process of the runner: takes (name, dtype, mode) from a pipe, answers with a row."""

from __future__ import annotations

import os
import resource
from multiprocessing.connection import Connection
from typing import Any

from mlirc.tests import overhead

MEMORY_BYTES = 8 << 30


def serve(connection: Connection) -> None:
    """Serve until the pipe closes or None arrives."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    import faulthandler

    import torch
    import torch._dynamo.guards  # noqa: F401

    torch.set_num_threads(1)
    faulthandler.enable()
    from .cases import Pair
    from .check import check, quiet

    overhead.without_profiles()
    overhead.without_modules()
    connection.send("ready")
    while True:
        try:
            job: tuple[str, str, str] | None = connection.recv()
        except EOFError:
            break
        if job is None:
            break
        name, dtype, mode = job
        with quiet():
            row: dict[str, Any] = check(Pair(name, dtype), mode).as_json()
        connection.send(row)
    os._exit(0)
