"""A tensor written into a part of another: in its place, side by side with the other parts, or as a choice for each element."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.passes.insert_slices import insert_slices
from mlirc.passes.strategy import writes
from mlirc.tests.frontend.compare import OPTIONS, replica
from mlirc.tests.passes.graph_text import check, function

X, PART, COLUMN = "tensor<8x100xf32>", "tensor<8x4xf32>", "tensor<8x1xf32>"


def put(name, source, kind, into, column):
    size = kind.split("x")[1]
    return f"{name} = tensor.insert_slice {source} into {into}[0, {column}] [8, {size}] [1, 1] : {kind} into {X}\n"


def rewritten(body, results, checks, arguments=(("%x", X), ("%y", PART)), writes=()):
    check(function(arguments, body, results), lambda f: insert_slices(f, writes), checks, clean=True)


def test_a_part_of_what_is_written_back_is_written_alone():
    rewritten(
        put("%s", "%y", PART, "%x", 3),
        [("%s", X)],
        """
        CHECK-NOT: linalg.generic
        CHECK: "mlirc.scatter"(%arg0, %arg1)
        CHECK-SAME: combine = "set"
        CHECK-SAME: mlirc.offsets = array<i64: 0, 3>
        CHECK-SAME: target = array<i64: 0, 1>
        """,
        writes=[0],
    )


def test_every_other_column_of_what_is_written_back_has_a_number():
    body = f"%s = tensor.insert_slice %y into %x[2, 3] [6, 4] [1, 2] : tensor<6x4xf32> into {X}\n"
    checks = """
        CHECK: %[[COLUMNS:.*]] = linalg.generic
        CHECK: %[[I:.*]] = linalg.index 0
        CHECK: arith.muli %[[I]], %c2
        CHECK: "mlirc.scatter"(%arg0, %arg1, %[[COLUMNS]])
        CHECK-SAME: mlirc.offsets = array<i64: 2, 0>
        CHECK-SAME: target = array<i64: 0, -1>
    """
    rewritten(body, [("%s", X)], checks, [("%x", X), ("%y", "tensor<6x4xf32>")], [0])


@pytest.mark.parametrize("reason", ["not written back", "read by others"])
def test_a_part_is_a_choice_where_the_old_elements_are_wanted(reason):
    body, results = put("%s", "%y", PART, "%x", 3), [("%s", X)]
    if reason == "read by others":
        results = [("%x", X), ("%s", X)]
    checks = "CHECK-NOT: scatter\nCHECK: %[[P:.*]] = tensor.pad %arg1 low[0, 3] high[0, 93]\nCHECK: linalg.generic {{.*}} ins(%arg0, %[[P]]\nCHECK: arith.select\nCHECK-NOT: insert_slice"
    rewritten(body, results, checks, writes=[0] if reason == "read by others" else [])


def test_every_other_column_is_gathered():
    body = f"%s = tensor.insert_slice %y into %x[0, 3] [8, 4] [1, 2] : {PART} into {X}\n"
    rewritten(body, [("%s", X)], "CHECK-NOT: tensor.pad\nCHECK: linalg.generic {{.*}} ins(%arg0 :\nCHECK: tensor.extract %arg1\nCHECK: arith.select")


def test_steps_in_a_dim_of_one():
    row = "tensor<1x100xf32>"
    body = f"%s = tensor.insert_slice %y into %x[0, 0] [1, 100] [2, 1] : {row} into {row}\n"
    rewritten(body, [("%s", row)], "CHECK: return %arg1", [("%x", row), ("%y", row)])


def test_what_is_read_of_the_result_comes_from_where_it_was():
    body = put("%s", "%y", PART, "%x", 3)
    body += f"%a = tensor.extract_slice %s[0, 4] [8, 1] [1, 1] : {X} to {COLUMN}\n%b = tensor.extract_slice %s[0, 7] [8, 1] [1, 1] : {X} to {COLUMN}\n"
    body += f"%c = tensor.extract_slice %s[0, 6] [8, 20] [1, 1] : {X} to tensor<8x20xf32>\n"
    rewritten(
        body,
        [("%a", COLUMN), ("%b", COLUMN), ("%c", "tensor<8x20xf32>")],
        """
        CHECK: %[[S:.*]] = linalg.generic
        CHECK: tensor.extract_slice %arg1[0, 1] [8, 1]
        CHECK: tensor.extract_slice %arg0[0, 7] [8, 1]
        CHECK: tensor.extract_slice %[[S]][0, 6] [8, 20]
        """,
    )


def test_a_large_slice_of_several_parts_is_read_of_the_last_tensor():
    """Of %s there is less to ask, but so nobody reads what was there between two writes."""
    body = put("%s", "%y", PART, "%x", 3) + put("%t", "%y", PART, "%s", 90)
    body += f"%c = tensor.extract_slice %t[0, 0] [8, 50] [1, 1] : {X} to tensor<8x50xf32>\n"
    checks = "CHECK: linalg.generic\nCHECK: %[[T:.*]] = linalg.generic\nCHECK: tensor.extract_slice %[[T]][0, 0] [8, 50]"
    rewritten(body, [("%t", X), ("%c", "tensor<8x50xf32>")], checks)


def test_a_small_slice_is_put_together_from_what_was_written_and_what_is_beside_it():
    """A row of which both ends were there before, but one was written to in its turn."""
    inner = "tensor<6x98xf32>"
    body = f"%s = tensor.insert_slice %y into %x[1, 1] [6, 98] [1, 1] : {inner} into {X}\n" + put("%t", "%z", COLUMN, "%s", 99)
    body += f"%c = tensor.extract_slice %t[1, 0] [1, 100] [1, 1] : {X} to tensor<1x100xf32>\n"
    checks = """
        CHECK-NOT: linalg.generic
        CHECK-DAG: %[[OLD:.*]] = tensor.extract_slice %arg0[1, 0] [1, 1]
        CHECK-DAG: %[[INNER:.*]] = tensor.extract_slice %arg1[0, 0] [1, 98]
        CHECK: %[[ROW:.*]] = tensor.concat dim(1) %[[OLD]], %[[INNER]]
        CHECK: %[[END:.*]] = tensor.extract_slice %arg2[1, 0] [1, 1]
        CHECK: tensor.concat dim(1) %[[ROW]], %[[END]]
    """
    rewritten(body, [("%c", "tensor<1x100xf32>")], checks, [("%x", X), ("%y", inner), ("%z", COLUMN)])


def test_the_first_of_many_parts_is_written_with_the_copy_if_it_is_most_of_it():
    inner = "tensor<6x98xf32>"
    body, before = f"%s = tensor.insert_slice %y into %x[1, 1] [6, 98] [1, 1] : {inner} into {X}\n", "%s"
    for n in range(writes.MOST_CHOICES):
        body += put(f"%t{n}", "%z", COLUMN, before, 20 * n)
        before = f"%t{n}"
    checks = "CHECK: tensor.pad %arg1\nCHECK: %[[S:.*]] = linalg.generic\n" + 'CHECK: "mlirc.scatter"(\n' * writes.MOST_CHOICES + "CHECK-NOT: linalg.generic"
    rewritten(body, [(before, X)], checks, [("%x", X), ("%y", inner), ("%z", COLUMN)])


def test_parts_that_are_all_are_a_concatenation():
    whole, part = "tensor<8x16xf32>", "tensor<8x8xf32>"
    body = f"%s = tensor.insert_slice %y into %x[0, 8] [8, 8] [1, 1] : {part} into {whole}\n"
    body += f"%t = tensor.insert_slice %z into %s[0, 0] [8, 8] [1, 1] : {part} into {whole}\n"
    arguments = [("%x", whole), ("%y", part), ("%z", part)]
    rewritten(body, [("%t", whole)], "CHECK: tensor.concat dim(1) %arg2, %arg1\nCHECK-NOT: arg0", arguments)


def test_slivers_of_the_last_dim_are_not_put_side_by_side():
    whole, part = "tensor<8x6xf32>", "tensor<8x1xf32>"
    body, before = "", "%x"
    for i in range(6):
        body += f"%s{i} = tensor.insert_slice %y{i} into {before}[0, {i}] [8, 1] [1, 1] : {part} into {whole}\n"
        before = f"%s{i}"
    arguments = [("%x", whole), *((f"%y{i}", part) for i in range(6))]
    rewritten(body, [(before, whole)], "CHECK-NOT: concat\nCHECK-COUNT-6: mlirc.scatter", arguments)


def test_parts_of_parts_become_one():
    body = f"%p = tensor.extract_slice %x[2, 0] [3, 100] [1, 1] : {X} to tensor<3x100xf32>\n"
    body += "%q = tensor.insert_slice %y into %p[0, 3] [3, 4] [1, 1] : tensor<3x4xf32> into tensor<3x100xf32>\n"
    body += f"%s = tensor.insert_slice %q into %x[2, 0] [3, 100] [1, 1] : tensor<3x100xf32> into {X}\n"
    checks = 'CHECK-NOT: extract_slice\nCHECK: "mlirc.scatter"(%arg0, %arg1)\nCHECK-SAME: mlirc.offsets = array<i64: 2, 3>\nCHECK-SAME: target = array<i64: 0, 1>\nCHECK-NOT: scatter'
    rewritten(body, [("%s", X)], checks, [("%x", X), ("%y", "tensor<3x4xf32>")], [0])


def test_a_part_of_a_row_becomes_a_part():
    row = "tensor<100xf32>"
    body = f"%p = tensor.extract_slice %x[2, 0] [1, 100] [1, 1] : {X} to tensor<1x100xf32>\n"
    body += f"%r = tensor.collapse_shape %p [[0, 1]] : tensor<1x100xf32> into {row}\n"
    body += f"%q = tensor.insert_slice %y into %r[3] [4] [1] : tensor<4xf32> into {row}\n"
    body += f"%w = tensor.expand_shape %q [[0, 1]] output_shape [1, 100] : {row} into tensor<1x100xf32>\n"
    body += f"%s = tensor.insert_slice %w into %x[2, 0] [1, 100] [1, 1] : tensor<1x100xf32> into {X}\n"
    checks = 'CHECK: %[[Y:.*]] = tensor.expand_shape %arg1\nCHECK: "mlirc.scatter"(%arg0, %[[Y]])\nCHECK-SAME: mlirc.offsets = array<i64: 2, 3>\nCHECK-SAME: target = array<i64: 0, 1>'
    rewritten(body, [("%s", X)], checks, [("%x", X), ("%y", "tensor<4xf32>")], [0])


def columns(x, y):
    for i in range(1, x.shape[1]):
        x[:, i] = x[:, i - 1] * 0.5 + y[:, i]
    return x.amax()


def tail(x, y):
    old = x[:1] + 1
    x[2:, 1:3] = y[2:, 1:3] * 2
    x[-1] = 0
    return old, x[2] + 1


def steps(x, y):
    x[::2, -3:] += y[::2, -3:]
    x[1::2].neg_()
    z = torch.zeros_like(y)
    z[:, :2] = y[:, 1:3]
    z[:, 2:] = x[:, 2:]
    return z, x.flip(0)


def overlapping(x, y):
    z = y * 2
    z[1:4] = x[1:4]
    z[3:5, 1:] = 7
    z[3, 2:4] = z[3, 1:3] + z[0, 2:4]
    x.copy_(z)
    return z[2:4]


def empty(x, y):
    x[2:2] = 5
    x[:, 1:1] = y[:, 1:1]
    x[0:1, 0:1] = y[0:1, 0:1]
    return x * 1


def elements(x, y):
    x[2, 3] = y[0, 0]
    x[1, 2:4] = y[1, 1:3]
    x[3:, 0] = 1
    x[0][1::2] = y[2][1::2]
    z = x.unsqueeze(0) + y
    z[0, 1, 2] = 3
    return z, x[2] == 0


def many(x, y):
    z = x + y
    for i in range(6):
        z[i % z.shape[0], i % z.shape[1]] = y[i % z.shape[0], i % 2] * i
    return z, z == 0


def alone(x, y):
    z = (x[:1] * y[:1]).unsqueeze(0)
    z[0:, ::2] = y[:1]
    return F.pad(torch.stack([z, z + 1]), (9, 9, 5, 5)).exp()


STATIC = [(torch.float32, (6, 5), 4), (torch.bfloat16, (7, 33), 0), (torch.bool, (6, 18), 0)]
DYNAMIC = [(torch.float32, (6, 5), 0), (torch.int64, (5, 17), 4)]


SWEPT = [(torch.float32, (6, 5), 0), (torch.bfloat16, (7, 33), 0), (torch.float32, (6, 5), 4), (torch.bfloat16, (7, 33), 4)]
SWEPT_STATIC = [*SWEPT, (torch.int64, (5, 17), 4), (torch.bool, (6, 18), 4), (torch.float32, (33, 5), 4)]
CASES = [
    pytest.param(False, STATIC, id="static"),
    pytest.param(True, DYNAMIC, id="dynamic"),
    pytest.param(False, SWEPT_STATIC, id="static, others", marks=pytest.mark.sweep),
    pytest.param(True, SWEPT, id="dynamic, others", marks=pytest.mark.sweep),
]


def borders(x, y, sweeps):
    """Sweeps over a field whose borders are copied from what is beside them."""
    x = x.clone()
    for _ in range(sweeps):
        old = x.clone()
        x[1:-1, 1:-1] = (old[1:-1, 2:] + old[1:-1, :-2] + old[2:, 1:-1] + old[:-2, 1:-1]) * 0.25 - y[1:-1, 1:-1]
        x[:, -1] = x[:, -2]
        x[0, :] = x[1, :]
        x[:, 0] = x[:, 1] * 2
        x[-1, :] = x[0, :]
    return x


@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("shape", [(3, 3), (17, 33), (64, 40)], ids=str)
def test_borders_that_are_copied(shape, sweeps):
    x, y = torch.randn(shape), torch.randn(shape)
    compiled = torch.compile(borders, backend="mlirc", dynamic=False, options=OPTIONS)
    torch.testing.assert_close(compiled(x, y, sweeps), borders(x, y, sweeps))


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic,cases", CASES)
@pytest.mark.parametrize("f", [columns, tail, steps, overlapping, empty, elements, many, alone])
def test_writes_to_parts(f, dynamic, cases, monkeypatch):
    """`most`: so many parts are a choice for each element, from more on they are written to a copy."""
    torch.manual_seed(0)
    for dtype, shape, most in cases:
        monkeypatch.setattr(writes, "MOST_CHOICES", most)
        if dtype is torch.bool and f is steps:  # eager mode has no - for it
            continue
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="mlirc", dynamic=dynamic, options=OPTIONS)
        args = [(torch.randn(shape) * 9).to(dtype) for _ in range(2)]
        mine, theirs = replica(args), replica(args)
        expected, got = f(*theirs), compiled(*mine)
        for e, g in zip([*expected, *theirs] if isinstance(expected, tuple) else [expected, *theirs], [*got, *mine] if isinstance(got, tuple) else [got, *mine]):
            torch.testing.assert_close(g, e)
