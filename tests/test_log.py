"""The `mlirc` logger under TORCH_LOGS, under set_logs, and left alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mlirc.log import get_logger

# The backend registers late: torch has parsed TORCH_LOGS by then.
LATE = """
import logging, sys, torch
{setup}
from mlirc.log import get_logger, register
register(); register()
log = get_logger("mlirc.frontend.later")
log.debug("a detail"); log.info("some news"); log.warning("a warning")
"""


def output(torch_logs: str | None, setup: str = "") -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TORCH_LOGS")}
    if torch_logs is not None:
        env["TORCH_LOGS"] = torch_logs
    done = subprocess.run([sys.executable, "-c", LATE.format(setup=setup)], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_names():
    assert get_logger().name == "mlirc"
    assert get_logger("mlirc.frontend.backend").name == "mlirc.frontend.backend"
    assert get_logger("pool").name == "mlirc.pool"


@pytest.mark.parametrize(
    "setting, seen",
    [
        ("+mlirc", ["a detail", "some news", "a warning"]),
        ("mlirc", ["some news", "a warning"]),
        ("-mlirc", []),
        ("+dynamo", ["a warning"]),
        (None, ["a warning"]),
    ],
)
def test_torch_logs(setting, seen):
    text = output(setting)
    for message in ["a detail", "some news", "a warning"]:
        assert text.count(message) == (message in seen), text


def test_set_logs():
    text = output(None, 'register_first = __import__("mlirc.log", fromlist=["x"]).register(); torch._logging.set_logs(modules={"mlirc": logging.DEBUG})')
    assert text.count("a detail") == 1


def test_levels_set_by_hand_survive():
    setup = 'logging.getLogger("torch._dynamo").setLevel(7)'
    after = '\nassert logging.getLogger("torch._dynamo").level == 7'
    done = subprocess.run([sys.executable, "-c", LATE.format(setup=setup) + after], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
