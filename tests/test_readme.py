"""The README says what is true: its options table is that of Options."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import mlirc
from mlirc import Options

README = (Path(mlirc.__file__).parent / "README.md").read_text()


def test_options_table():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", README.split("## Options")[1].split("\n## ")[0], re.M))
    defaults = {f.name: f.default for f in dataclasses.fields(Options)}
    assert list(rows) == list(defaults)
    for name, default in defaults.items():
        assert rows[name].strip("`") == (str(default) if default not in ("", ()) else {"": "empty", (): "none"}[default]), name


def test_examples_are_python():
    examples = re.findall(r"```python\n(.*?)```", README, re.S)
    assert examples
    for example in examples:
        compile(example, "README.md", "exec")
