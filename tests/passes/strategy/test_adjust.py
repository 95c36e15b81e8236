"""Pins: how they are written, what they change, and what is said where they cannot be. Candidates: they are other code and the same result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlirc.dialects.mlir import ir
from mlirc.driver import compile_kernel
from mlirc.errors import OptionError
from mlirc.lowering.target import Target
from mlirc.passes import structure as st
from mlirc.passes.strategy import Adjustment, ContractionStrategy, adjusted, pack_shape, parse_pins, pinned, reasons, select_strategy
from mlirc.passes.strategy.candidates import MOST, candidates
from mlirc.passes.strategy.trial import Trial, make_trial, worth_trying
from mlirc.passes.vectorize import KernelFunction
from mlirc.runtime.bench import Bench, entry_of
from mlirc.runtime.loader import Library
from mlirc.tests.passes.graph_text import generic
from mlirc.tests.passes.strategy.test_blocks import linear
from mlirc.tests.passes.strategy.test_select import convolution, elementwise, product, row_sums
from mlirc.tests.passes.vectorize.kernels import kernel, streamed
from mlirc.tests.passes.vectorize.test_depthwise import depthwise
from mlirc.tests.passes.vectorize.test_tiles import LINEAR, deep, image, symbolic, taps


def dots(m: int, k: int, n: int, kind: str = "f32") -> str:
    """A product of rows with rows: both operands are contiguous along the reduction."""
    x, w, y = f"tensor<{m}x{k}x{kind}>", f"tensor<{n}x{k}x{kind}>", f"tensor<{m}x{n}xf32>"
    wide = "" if kind == "f32" else f"%a = arith.extf %a0 : {kind} to f32\n%b = arith.extf %a1 : {kind} to f32\n"
    a, b = ("%a0", "%a1") if kind == "f32" else ("%a", "%b")
    body = f"{wide}%m = arith.mulf {a}, {b} : f32\n%o = arith.addf %a2, %m : f32"
    op = generic("%y", [("%x", x), ("%w", w)], y, ["i, l", "j, l", "i, j"], body, "ppr", "ijl", "0.0", "contraction")
    return kernel([("%x", x), ("%w", w)], op, [("%y", y)], [[n, 1]])


def parsed(text: str) -> KernelFunction:
    module = ir.Module.parse(text)
    function = KernelFunction(st.operation(module.body.operations[0]))
    function.module = module  # type: ignore[attr-defined]  # it lives as long as what is in it
    return function


def change(text: str, pin: str, target: str = "x86-64-v4") -> ContractionStrategy:
    """The strategy of a kernel with a pin."""
    with ir.Context(), ir.Location.unknown():
        function = parsed(text)
        cpu = Target.parse(target)
        return adjusted(function, cpu, select_strategy(function, cpu), pinned("k", parse_pins([f"k: {pin}"])))  # type: ignore[return-value]


def test_a_pin_is_a_pattern_and_fields():
    (pin,) = parse_pins(["*_linear_gelu : rows = 8, lanes_first=true depth=none"])
    assert pin.pattern == "*_linear_gelu"
    assert pin.fields == (("rows", 8), ("lanes_first", True), ("depth", None))


def test_later_pins_win_and_names_are_matched_whole():
    pins = parse_pins(["*: rows=8, columns=1", "k01_*: rows=4"])
    assert dict(pinned("k01_mm", pins).fields) == {"rows": 4, "columns": 1}
    assert dict(pinned("k02_mm", pins).fields) == {"rows": 8, "columns": 1}
    assert pinned("mm", parse_pins(["m: rows=4"])) == Adjustment()
    assert pinned("k01_mm", pins).key() != pinned("k02_mm", pins).key() != Adjustment().key() == ""


def test_a_pattern_may_fit_kernels_of_other_kinds():
    (pin,) = parse_pins(["*: rows=4, unroll=1"])
    with ir.Context(), ir.Location.unknown():
        function = parsed(elementwise(30, 70))
        cpu = Target.parse("x86-64-v4")
        model = select_strategy(function, cpu)
        other = adjusted(function, cpu, model, pinned("k", [pin]))
        assert other == replace(model, unroll=1) and "rows" not in other.why
        with pytest.raises(OptionError, match="unroll=9"):
            adjusted(function, cpu, model, pinned("k", parse_pins(["*: rows=4, unroll=9"])))


def test_what_is_not_pinned_stays_possible():
    """The unrolling of a concatenation cannot be pinned, but the grain can, beside the model's own unrolling."""
    part, whole = "tensor<40x100xf32>", "tensor<40x200xf32>"
    body = f"%r = tensor.concat dim(1) %x, %y : ({part}, {part}) -> {whole}\n"
    text = kernel([("%x", part), ("%y", part)], body, [("%r", whole)], [[200, 1]])
    with ir.Context(), ir.Location.unknown():
        function, cpu = parsed(text), Target.parse("x86-64-v4")
        model = select_strategy(function, cpu)
        assert model.unroll > 1
        assert adjusted(function, cpu, model, pinned("k", parse_pins(["*: grain=3"]))) == replace(model, grain=3)


@pytest.mark.parametrize(
    "text, said",
    [
        ("rows=8", "wants 'KERNEL: field=value"),
        ("*:", "wants 'KERNEL: field=value"),
        (": rows=8", "wants 'KERNEL: field=value"),
        ("*: rowz=8", "unknown field 'rowz'; valid fields: rows, columns, .*grain, lanes"),
        ("*: rows", "rows wants a number, true, false or none, got 'nothing'"),
        ("*: rows=-1", "rows wants a number"),
        ("*: rows=many", "rows wants a number, true, false or none, got 'many'"),
    ],
)
def test_what_is_no_pin_is_an_error(text, said):
    with pytest.raises(OptionError, match=said):
        parse_pins([text])


SQUARE = kernel(
    [("%x", "tensor<64x64xf32>")],
    generic("%y", [("%x", "tensor<64x64xf32>"), ("%x", "tensor<64x64xf32>")], "tensor<64x64xf32>", ["i, l", "l, j", "i, j"],
            "%m = arith.mulf %a0, %a1 : f32\n%o = arith.addf %a2, %m : f32", "ppr", "ijl", "0.0", "contraction"),
    [("%y", "tensor<64x64xf32>")], [[64, 1]],
)  # fmt: skip
"""x @ x, whose rows are not told from its columns."""


def test_what_follows_from_a_pin_follows():
    s = change(linear(112, 1000, 512), "rows=7, columns=1")
    before = change(linear(112, 1000, 512), "row_tiles=8")
    assert (s.rows, s.columns, s.short_rows) == (7, 1, (7,))
    assert before.rows == 13 and s.grain >= before.grain
    assert s.why["rows"] == "pinned by 'k'" and "pinned" not in s.why["lanes"]
    assert "// rows = 7: pinned by 'k'\n" in reasons(s)
    assert change(product(112, 1000, 512), "grain=77, rows=2").grain == 77
    assert change(linear(512, 16384, 1024), "depth=none").group == 1
    assert [change(linear(512, 768, 1024), pin).results_ahead for pin in ("grain=1", "depth=256", "results_ahead=false")] == [True, False, False]
    assert change(product(64, 64, 64), "results_ahead=true").results_ahead
    assert [change(linear(512, 768, 1024), pin).steps for pin in ("grain=1", "rows=14", "fetch_ahead=false", "rows=14, steps=2")] == [2, 1, 1, 2]


@pytest.mark.parametrize(
    "text, pin, said",
    [
        (linear(64, 64, 64), "rows=15", "rows=15 is impossible for this kernel; valid: 1 to 14"),
        (product(64, 64, 64), "rows=7", "rows=7 is impossible for this kernel; valid: 1 to 6"),
        (product(64, 64, 64), "rows=8, columns=4", "rows=8 is impossible .* valid: 1 to 6 .*a row takes 4"),
        (product(64, 64, 64), "columns=5", "columns=5 .* valid: 1 to 4"),
        (product(5, 64, 64), "rows=6", "valid: 1 to 5 .there are 5 rows"),
        (product(64, 64, 20), "columns=3", "valid: 1 to 2 .20 columns"),
        (product(64, 64, 64), "rows=0", "rows wants a positive number"),
        (product(64, 64, 64), "rows=true", "rows wants a positive number"),
        (product(64, 64, 64), "rows=none", "rows wants a positive number"),
        (product(64, 64, 64), "lanes_first=3", "lanes_first wants true or false, got 3"),
        (linear(512, 768, 1024), "steps=9", "steps=9 is impossible .* valid: 1 to 8 .steps in an iteration"),
        (linear(512, 16384, 1024), "depth=8192, row_tiles=64, group=1, rows_copied=true", "make a copy of .* KB; valid: up to"),
        (SQUARE, "depth=32, rows_copied=true", "rows_copied=true is impossible .* an operand that is not packed"),
        (product(64, 64, 64), "steps=9", "steps=9 is impossible .* valid: 1 to 8 .steps in an iteration"),
        (dots(1, 64, 64), "steps=2", "steps=2 is impossible .* valid: 1 .of register tiles of vectors"),
        (product(64, 64, 64), "depth=32, results_ahead=true", "results_ahead=true is impossible .* valid: false .it wants .* sums in vector registers"),
        (dots(1, 64, 64), "results_ahead=true", "results_ahead=true is impossible"),
        (product(64, 64, 64), "unroll=2", "unroll=2 is impossible .* valid: 1"),
        (product(64, 64, 64), "group=2", "group=2 .* valid: 1 .without depth"),
        (product(64, 64, 64), "depth=64", "depth=64 .* even numbers from 2 to 62, or none"),
        (dots(1, 64, 64), "depth=2", "cannot be cut in blocks; valid: none"),
        (product(64, 64, 64), "depth=32, row_tiles=64, group=32", "KB of sums between blocks"),
        (product(64, 64, 64), "dot_pairs=true", "dot_pairs=true is impossible"),
        (product(64, 64, 64), "lanes=8", "kind contraction has no field 'lanes'; valid fields: rows"),
        (dots(1, 64, 64), "columns=2", "columns=2 .* valid: 1 .the lanes run along the reduction"),
        (dots(1, 64, 64), "unroll=16", "unroll=16 .* valid: 1 to 8"),
        (dots(1, 64, 64), "looped_epilogue=true", "valid: false"),
        (product(64, 64, 64), "turned=true", "turned=true is impossible .* valid: false .*contiguous along the rows"),
        (elementwise(30, 70), "rows=4", "kind loops has no field 'rows'; valid fields: lanes, unroll, joined, in_turns, stores_together, grain"),
        (elementwise(30, 70), "joined=2", "joined=2 is impossible .* valid: 1 .it wants rows of known length, reduced along the lanes"),
        (elementwise(30, 70), "stores_together=true", "valid: false .it wants rows that are computed together"),
        (elementwise(30, 70), "lanes=32", "lanes=32 is impossible for this kernel; valid: 4, 8, 16"),
        (elementwise(30, 70), "unroll=9", "valid: 1 to 8"),
    ],
)
def test_impossible_values_name_the_possible_ones(text, pin, said):
    with pytest.raises(OptionError, match=said):
        change(text, pin)


def test_streams_follow_from_the_lines_of_a_step():
    """Three register tiles share 32, two share 16 of them each; six streams of two are a line too many, eight of two would be five."""
    chosen = [change(LINEAR, pin, "sapphirerapids").streams for pin in ("grain=1", "row_tiles=2", "row_tiles=9", "streams=3", "fetch_ahead=false")]
    assert chosen == [6, 8, 4, 3, 1]


def test_tiles_have_the_shapes_of_tile_registers():
    assert change(LINEAR, "rows=16", "sapphirerapids").rows == 16
    assert change(LINEAR.replace("70x", "5x"), "rows=5", "sapphirerapids").rows == 5


@pytest.mark.parametrize(
    "text, pin, said",
    [
        (LINEAR, "rows=20", "rows=20 .* 16, or 32"),
        # The last tile of a block overlaps the one before: a block of fewer rows than a tile would begin before the first row.
        (LINEAR, "rows=5", "rows=5 .* 16 to 32"),
        (symbolic(LINEAR), "rows=8", "rows=8 .* 16 to 32"),
        (LINEAR.replace("70x", "7x"), "rows=3", "rows=3 .* valid: 7 .there are 7 rows"),
        (LINEAR, "depth=48", "multiples of 32 below 96, or none"),
        (deep(LINEAR), "rows_copied=true, row_tiles=64", "rows and row_tiles make a copy of 4128 KB; valid: up to 512 KB"),
        (taps(LINEAR), "rows_copied=true", "rows_copied=true is impossible .* valid: false"),
        (product(64, 64, 64), "rows_copied=true", "valid: false .only products on tiles"),
        (product(64, 64, 64), "fetch_ahead=true", "valid: false .only products on tiles"),
        (product(64, 64, 64), "fetch_distance=4096", "fetch_distance=4096 is impossible .* valid: none .nothing is fetched"),
        (product(64, 64, 64), "lines=0", "lines=0 is impossible .* valid: none .the class of the lines of an image"),
        (image(14, 16), "lines=1", "lines=1 is impossible .* valid: 0 or none"),
        (image(14, 16), "lines=none", "rows=32 is impossible .* valid: 14 .there are 14 rows"),
        (LINEAR, "streams=12", "streams=12 is impossible .* valid: 1 to 11 .lines of a step"),
        (LINEAR, "streams=2, fetch_ahead=false", "streams=2 is impossible .* valid: 1 .nothing is fetched"),
        (streamed(4, 768), "streams=9", "streams=9 is impossible .* valid: 1 to 8 .parts of the next panel"),
        (streamed(64, 768), "streams=2", "streams=2 is impossible .* valid: 1 .of a single register tile alone"),
    ],
)
def test_what_tiles_cannot_do(text, pin, said):
    with pytest.raises(OptionError, match=said):
        change(text, pin, "sapphirerapids")


@pytest.mark.parametrize("rows, cpu, pin, fetched", [
    (1, "znver3", "fetch_ahead=true, columns=2", (1, 2 << 10)), (4, "znver4", "fetch_level=2", (2, 8 << 10)), (4, "znver4", "rows=2", (1, 4 << 10)),
    (4, "znver4", "fetch_ahead=false", (2, 0)), (4, "znver5", "rows=2", (1, 8 << 10)), (4, "skylake-avx512", "fetch_level=1", (1, 8 << 10)),
    (4, "skylake-avx512", "fetch_distance=4096", (2, 4 << 10)),
])  # fmt: skip
def test_how_far_is_fetched_follows_the_level(rows, cpu, pin, fetched):
    new = change(streamed(rows, 768, 16 if cpu == "znver3" else 32), pin, cpu)
    assert (new.fetch_level, new.fetch_distance) == fetched


@pytest.mark.parametrize("pin, streams", [("grain=1", 4), ("rows=2", 1), ("fetch_ahead=false", 1), ("rows=2, streams=1", 1), ("streams=2", 2)])
def test_streams_of_a_panel_follow_from_the_register_tiles_that_read_it(pin, streams):
    assert change(streamed(4, 768, 16), pin, "znver3").streams == streams


def test_what_was_measured_and_is_impossible_is_left_out():
    with ir.Context(), ir.Location.unknown():
        function = parsed(product(64, 64, 64))
        cpu = Target.parse("x86-64-v4")
        model = select_strategy(function, cpu)
        for fields in ((("rows", 99),), (("no", 1),), (("rows", None),)):
            assert adjusted(function, cpu, model, Adjustment(fields, "measured")) == model
        assert adjusted(function, cpu, model, Adjustment((("rows", 4),), "measured: 1.0 us")).why["rows"] == "measured: 1.0 us"
        assert reasons(adjusted(function, cpu, model, Adjustment((), "the analytic choice, measured"))).startswith("// the analytic choice, measured\n")


KERNELS = {
    "tails": linear(37, 200, 96),
    "odd columns": product(30, 40, 70),
    "few rows": linear(3, 130, 128),
    "deep": linear(130, 5000, 64),
    "f64": product(20, 30, 50).replace("f32", "f64"),
    "dot": dots(1, 70, 50),
    "pairs": LINEAR,
    "dot in pairs": dots(1, 150, 50, "bf16"),
    "convolution": convolution(9, 16, 64),
    "depthwise": depthwise(14, 3, 1),
    "turned": linear(37, 200, 96).replace('["96", "1"]', '["1", "37"]'),
    "image": image(14, 16),
}


@pytest.mark.parametrize("name", KERNELS)
def test_candidates_are_a_handful_of_others(name):
    with ir.Context(), ir.Location.unknown():
        function = parsed(KERNELS[name])
        for target in ("x86-64-v3", "x86-64-v4", "znver5", "sapphirerapids"):
            model = select_strategy(function, Target.parse(target))
            assert isinstance(model, ContractionStrategy)
            found = candidates(function, Target.parse(target), model)
            assert 1 <= len(found) <= MOST and len(set(found)) == len(found)
            assert all(replace(model, **dict(fields)) != model for fields in found)


@pytest.mark.parametrize("name", KERNELS)
def test_candidates_compute_the_same(name):
    target = Target.host()
    if name in ("pairs", "image") and "bf16" not in pack_shape(target).words:
        pytest.skip("the CPU multiplies no pairs of bf16")
    trial = make_trial(KERNELS[name], target)
    assert isinstance(trial, Trial) and worth_trying(KERNELS[name])
    objects = {
        f"k{n}": compile_kernel(KERNELS[name], target, f"k{n}", adjustment=Adjustment(fields)) for n, fields in enumerate(((), *trial.candidates))
    }
    assert len(set(objects.values())) > 1
    library = Library(objects)
    bench = Bench(trial.operands)
    expected = bench.results(entry_of(library, "k0"))
    for symbol, fields in zip(list(objects)[1:], trial.candidates):
        assert bench.agrees(entry_of(library, symbol), expected), fields
    library.close()


def test_the_packed_operand_is_the_one_with_the_lanes():
    assert make_trial(linear(37, 200, 96), Target.host()).operands.panel == 1  # type: ignore[union-attr]
    assert make_trial(dots(1, 70, 50), Target.host()).operands.panel == 1  # type: ignore[union-attr]


def test_what_cannot_be_measured_says_so():
    symbols = product(30, 40, 70).replace("30x", "?x").replace('%x: tensor<?x40xf32>', '%x: tensor<?x40xf32> {mlirc.sizes = ["s0", "40"]}')
    symbols = symbols.replace("tensor<40x70xf32>)", 'tensor<40x70xf32>, %s0: index {mlirc.name = "s0"})', 1).replace("tensor.empty()", "tensor.empty(%s0)")
    assert make_trial(symbols, Target.host()) == "its sizes are symbols"
    assert make_trial(row_sums(4, 8), Target.host()) == "it has no product"
    assert not worth_trying(row_sums(4, 8))
