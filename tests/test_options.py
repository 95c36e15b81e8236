"""Options: merging, precedence, conversion from text, and what is said about a wrong name or value."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from mlirc import Options
from mlirc.options import MODES


def test_defaults_are_the_default_mode(monkeypatch):
    monkeypatch.delenv("MLIRC_OPTIONS", raising=False)
    assert Options.make() == Options()


def test_options_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().strict = True


def test_given_wins_over_environment(monkeypatch):
    monkeypatch.setenv("MLIRC_OPTIONS", "workers=3, strict=on")
    options = Options.make({"workers": 1})
    assert (options.workers, options.strict) == (1, True)


def test_modes_of_inductor():
    """A script that changes nothing but the backend goes on."""
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        assert mode in torch._inductor.list_mode_options() and Options.make(mode=mode).tune == mode.startswith("max-autotune")


def test_paths_may_be_objects():
    options = Options.make({"cache_dir": Path("a b"), "passes": [Path("x.py"), "y.py"]})
    assert (options.cache_dir, options.passes) == ("a b", ("x.py", "y.py"))
    assert Options.make({"passes": Path("x.py")}).passes == ("x.py",)


def test_environment_wins_over_mode(monkeypatch):
    monkeypatch.setitem(MODES, "max-autotune", {"workers": 7, "strict": True})
    monkeypatch.setenv("MLIRC_OPTIONS", "workers=3")
    options = Options.make(mode="max-autotune")
    assert (options.workers, options.strict, options.mode) == (3, True, "max-autotune")


@pytest.mark.parametrize(
    "text, name, value",
    [
        ("cache=0", "cache", False),
        ("perf=true", "perf", True),
        ("worker_timeout=1.5", "worker_timeout", 1.5),
        ("passes=a.py:b.py", "passes", ("a.py", "b.py")),
        ("cache_dir=/tmp/x", "cache_dir", "/tmp/x"),
        ("pin=k01_*: rows=8 columns=2; k02: rows=4", "pin", ("k01_*: rows=8 columns=2", "k02: rows=4")),
        ("guard_pages=end", "guard_pages", "end"),
    ],
)
def test_environment_text_is_converted(monkeypatch, text, name, value):
    monkeypatch.setenv("MLIRC_OPTIONS", text)
    assert getattr(Options.make(), name) == value


def test_lists_and_ints_are_accepted_where_they_fit():
    options = Options.make({"passes": ["a.py"], "worker_timeout": 3})
    assert options.passes == ("a.py",)
    assert options.worker_timeout == 3.0


def test_unknown_name_lists_the_valid_ones():
    with pytest.raises(ValueError) as error:
        Options.make({"tile_size": 3})
    assert "tile_size" in str(error.value)
    for field in dataclasses.fields(Options):
        assert field.name in str(error.value)


def test_names_that_are_no_texts():
    with pytest.raises(ValueError, match="unknown option 5; valid options: cache"):
        Options.make({5: 1})
    with pytest.raises(ValueError, match="options want a dict, got 'strict'"):
        Options.make("strict")


def test_unknown_mode_lists_the_valid_ones():
    with pytest.raises(ValueError, match="max-autotune"):
        Options.make(mode="fast")


@pytest.mark.parametrize("given", [{"workers": "many"}, {"workers": 1.5}, {"strict": 1}, {"strict": "maybe"}, {"cache_dir": 3}, {"workers": -1}, {"workers": 1 << 70},
     {"worker_timeout": float("nan")}, {"worker_timeout": -1.0}, {"cache_dir": "a\0b"}, {"passes": [3]}, {"pin": [3]}])
def test_wrong_type_names_the_option(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        Options.make(given)


def test_unknown_guard_pages_lists_the_valid_ones():
    with pytest.raises(ValueError, match="guard_pages wants one of off, end, start, both, got 'middle'"):
        Options.make({"guard_pages": "middle"})


def test_environment_without_a_value_is_refused(monkeypatch):
    monkeypatch.setenv("MLIRC_OPTIONS", "strict")
    with pytest.raises(ValueError, match="MLIRC_OPTIONS"):
        Options.make()


def test_key_follows_the_values():
    assert Options().key() == Options().key()
    assert Options(target="x86-64-v3").key() != Options().key()
