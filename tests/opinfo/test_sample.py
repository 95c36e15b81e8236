"""A seeded sample of the table, spread over modes, dtypes and the alphabet: no row is worse than the table says.

`make opinfo` runs everything and writes the table anew; what got better there may be committed.
"""

from __future__ import annotations

import random
import zlib

import pytest

from mlirc.tests.opinfo.check import OUTCOMES
from mlirc.tests.opinfo.run import Runner
from mlirc.tests.opinfo.table import Key, problems, read

SEED = 0
ROWS = {("forward", "f32"): 28, ("gradient", "f32"): 16, ("dynamic", "f32"): 14}
"""(mode, dtype) -> how many; `OTHERS` for the rest."""
OTHERS = 4


def chosen(table: dict[Key, tuple[str, frozenset[str]]]) -> list[Key]:
    """For each mode and dtype one row from each of as many equal parts of the sorted names."""
    strata: dict[tuple[str, str], list[Key]] = {}
    for key in sorted(table):
        if table[key][0] not in ("nothing", "timeout", "crash"):
            strata.setdefault((key[2], key[1]), []).append(key)
    out = []
    for stratum, keys in strata.items():
        count = min(ROWS.get(stratum, OTHERS), len(keys))
        draw = random.Random(SEED + zlib.crc32(" ".join(stratum).encode()))
        out += [keys[draw.randrange(len(keys) * i // count, len(keys) * (i + 1) // count)] for i in range(count)]
    return out


@pytest.fixture(scope="module")
def table():
    return read()


@pytest.fixture(scope="module")
def rows(table):
    """Row of each chosen key. In a process of their own: a crash is a row too."""
    work = [(op, dtype, mode) for op, dtype, mode in chosen(table)]
    found = {}
    Runner(1, timeout=120).run(work, lambda row: found.update({(row["op"], row["dtype"], row["mode"]): row}))
    return found


def test_the_table_covers_every_stratum(table):
    assert len({(mode, dtype) for _, dtype, mode in table}) >= len(ROWS)


def test_no_row_is_worse_than_the_table(rows, table):
    worse = []
    for key, row in rows.items():
        outcome, left = table[key]
        new = sorted(set(row["aten"]) - left)
        if OUTCOMES.index(row["outcome"]) > OUTCOMES.index(outcome):
            worse.append(f"{key}: {row['outcome']} instead of {outcome}: {row['detail']} {row['sample']}")
        elif new:
            worse.append(f"{key}: left to ATen: " + ", ".join(f"{op} ({row['aten'][op]})" for op in new))
    assert not worse, "\n".join(worse)


def test_what_is_not_right_or_left_to_aten_is_explained(rows):
    assert problems(rows.values()) == []
