"""The README says what is true: its options table is that of Options."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_example_of_export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = README.split("## Ahead of time")[1].split("\n## ")[0]
    exec(re.search(r"```python\n(.*?)```", section, re.S)[1], {})  # noqa: S102
    include, body = re.search(r"```c\n(.*?)```", section, re.S)[1].split("\n", 1)
    Path("main.c").write_text(f"{include}\nint main(void) {{\n{body}return status;\n}}\n")
    subprocess.run([*re.search(r"^    (cc .*)$", section, re.M)[1].replace("-fopenmp", "").split(), "-Wall", "-Werror"], check=True)
    assert subprocess.run("./a.out", check=False).returncode == 0
