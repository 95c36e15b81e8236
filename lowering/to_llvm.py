"""From the vector, scf, memref, arith, math and x86 dialects to LLVM IR text: a list of passes, and two checks.

A third of the passes is there for the vector dialect: `convert-to-llvm` alone leaves vectors of more than one dimension,
masks, transfers and contractions, and `convert-vector-to-llvm` alone does not know AMX tiles across branches.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..dialects.context import pass_manager
from ..dialects.mlir import arith, ir, translate_module_to_llvmir, vector
from ..errors import CompileError
from .transpose import transpose

PIPELINE: tuple[str, ...] = (
    "inline{default-pipeline=}",
    "canonicalize",
    "cse",
    "loop-invariant-code-motion",
    # Arithmetic on 16-bit floats happens in f32.
    "arith-emulate-unsupported-floats{source-types=bf16,f16 target-type=f32}",
    "math-extend-to-supported-types",
    # bf16 to and from f32 by integers: the CPU's instruction, which LLVM would choose, flushes denormals.
    "arith-expand{include-bf16=true}",
    "expand-strided-metadata",
    "func.func(lower-vector-multi-reduction{lowering-strategy=inner-parallel})",
    "func.func(lower-vector-mask)",
    "convert-vector-to-scf{full-unroll=true target-rank=1}",
    "lower-affine",
    "convert-scf-to-cf",
    # 64-bit indices: a mask of a tensor with more than 2^31 elements is right, too.
    "convert-vector-to-llvm{force-32bit-vector-indices=false vector-contract-lowering=parallelarith vector-transpose-lowering=shuffle16x16}",
    "convert-to-llvm",
    "reconcile-unrealized-casts",
    "canonicalize",
    "cse",
)

ONLY_FOR: dict[str, frozenset[str]] = {
    "func.func(lower-vector-multi-reduction{lowering-strategy=inner-parallel})": frozenset(("vector.multi_reduction",)),
    "func.func(lower-vector-mask)": frozenset(("vector.mask",)),
    "convert-vector-to-scf{full-unroll=true target-rank=1}": frozenset(("vector.transfer_read", "vector.transfer_write")),
}
"""The ops without which a pass does nothing but take time, 2 of the 12 ms of all passes. The vectorizer makes none of them, but passes of
the user's may. No pass in front of these makes any (other than of `affine.apply`, which some do)."""

STEPS: tuple[str, ...] = ("expand-for-x86", *PIPELINE, "split-tile-zeros")
"""What an observer is told about."""

LOCATION_STEPS = ("first-locations", "ensure-debug-info-scope-on-llvm-func")
"""What comes on top with locations."""

Observer = Callable[[str, ir.Module], None]


def lower_to_llvm_ir(module: ir.Module, observer: Observer | None = None, *, locations: bool = False) -> str:
    """Lower `module` in place to the LLVM dialect, and return LLVM IR text in the syntax of MLIR's LLVM.

    `observer(name, module)` is called after each step. With `locations`, MLIR's locations become debug locations
    (LLVM has one line for an instruction: of a fused location, the first).
    Raises CompileError, naming the op, for what has no lowering: ops without vectors or loops to turn into (`linalg`,
    `math.erf`), `vector.load` of two dimensions, and fused multiply-adds on f16, which rounding twice would change.
    """
    passes = [(name, _pass(name)) for name in PIPELINE] if observer else [("lowering", _pass_all)]
    steps = [("expand-for-x86", _expand_for_x86), *passes, ("split-tile-zeros", _split_tile_zeros)]
    if locations:
        first, scopes = LOCATION_STEPS
        steps += [(first, _first_locations), (scopes, _pass(scopes))]
    for name, step in steps:
        try:
            step(module)
        except ir.MLIRError as error:
            raise CompileError(f"{name} failed: {error}", stage=name) from None
        if observer:
            observer(name, module)
    text: str = translate_module_to_llvmir(module.operation)
    left = _HALF_ARITHMETIC.search(text) if "half" in text else None
    if left:
        raise CompileError(f"arithmetic on f16 has no lowering, widen it to f32: {left[0].strip()}", stage="to_llvm")
    return text


_HALF_ARITHMETIC = re.compile(
    r"^ .* = (?:f(?:add|sub|mul|div|rem) .*\bhalf\b|(?:tail )?call .*@llvm\.(?!x86|masked|vector|fabs|copysign)[\w.]+\.(?:v\d+)?f16\().*$",
    re.MULTILINE,
)


def _pass(name: str, verify: bool = True) -> Callable[[ir.Module], None]:
    def run(module: ir.Module) -> None:
        with module.context:
            pass_manager(name, verify).run(module.operation)

    return run


def _pass_all(module: ir.Module) -> None:
    """The whole pipeline, for nobody who watches: all at once, without verifying in between, takes half the time."""
    names: set[str] = set()

    def collect(op: ir.Operation) -> ir.WalkResult:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(collect)
    wanted = [p for p in PIPELINE if p not in ONLY_FOR or ONLY_FOR[p] & names]
    _pass(",".join(wanted), verify=False)(module)


def _expand_for_x86(module: ir.Module) -> None:
    """Rewrite the ops that upstream lowers less well.

    `vector.create_mask %n : vector<16xi1>` -> compare of [0..15] with a splat of %n, clamped so that 32 bits are enough
    (upstream compares 64-bit numbers, twice the registers, or cuts %n off at 32 bits).
    `vector.transpose` of a square block -> a network of shuffles.
    `arith.truncf` and `extf` between f64 and f16 or bf16 -> through f32, as torch does (LLVM calls a library).
    `arith.maximumf` and `minimumf`, alone or as reductions: which of two zeros it is does not matter (`nsz`), as in torch; that
    saves half of the instructions.
    """
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name in _EXPANSIONS:
            found.append(op)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(collect)
        for op in found:
            with ir.InsertionPoint(op), op.location:
                new = _EXPANSIONS[op.name](op)
            if new is not None:
                op.results[0].replace_all_uses_with(new)
                op.operation.erase()


def _convert(op: ir.Operation) -> ir.Value | None:
    value, kind = op.operands[0], op.results[0].type
    source, target = _element(value.type), _element(kind)
    f32: ir.Type = ir.F32Type.get()
    if isinstance(kind, ir.VectorType):
        f32 = ir.VectorType.get(kind.shape, f32)
    if isinstance(source, ir.F64Type) and isinstance(target, (ir.F16Type, ir.BF16Type)):
        return arith.truncf(kind, arith.truncf(f32, value))
    if isinstance(source, (ir.F16Type, ir.BF16Type)) and isinstance(target, ir.F64Type):
        return arith.extf(kind, arith.extf(f32, value))
    return None


def _element(kind: ir.Type) -> ir.Type:
    return kind.element_type if isinstance(kind, ir.VectorType) else kind


def _mask(op: ir.Operation) -> ir.Value | None:
    shape = ir.VectorType(op.results[0].type)
    if shape.rank != 1 or shape.scalable:
        return None
    lanes = shape.shape[0]
    # Narrow numbers where there are many lanes, so that they fit one register.
    element = ir.IntegerType.get_signless(32 if lanes <= 16 or lanes > 127 else 16 if lanes <= 32 else 8)
    numbers_type = ir.VectorType.get([lanes], element)
    index = ir.IndexType.get()
    count = arith.minsi(arith.maxsi(op.operands[0], arith.constant(index, 0)), arith.constant(index, lanes))
    wanted = vector.broadcast(numbers_type, arith.index_cast(element, count))
    numbers = ir.DenseElementsAttr.get([ir.IntegerAttr.get(element, i) for i in range(lanes)], type=numbers_type)
    return arith.cmpi(arith.CmpIPredicate.slt, arith.constant(numbers_type, numbers), wanted)


def _any_zero(op: ir.Operation) -> None:
    if op.name == "vector.reduction" and "imumf" not in str(op.attributes["kind"]):
        return
    flags = str(op.attributes["fastmath"]) if "fastmath" in op.attributes else "none"
    flags = "nsz" if "none" in flags else flags[flags.index("<") + 1 : -1] + ",nsz"
    op.attributes["fastmath"] = ir.Attribute.parse(f"#arith.fastmath<{flags}>")


_EXPANSIONS: dict[str, Callable[[ir.Operation], ir.Value | None]] = {
    "arith.extf": _convert,
    "arith.truncf": _convert,
    "arith.maximumf": _any_zero,
    "arith.minimumf": _any_zero,
    "vector.reduction": _any_zero,
    "vector.create_mask": _mask,
    "vector.transpose": lambda op: transpose(op.operands[0], list(op.attributes["permutation"])),
}


def _first_locations(module: ir.Module) -> None:
    def pick(op: ir.Operation) -> ir.WalkResult:
        if isinstance(op.location, ir.FusedLoc):
            op.operation.location = first_line(op.location) or op.location
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(pick)


def first_line(location: ir.Location) -> ir.Location | None:
    """The first line of source that a location names, through names and fused ones."""
    if isinstance(location, ir.FusedLoc):
        return next((line for line in map(first_line, location.locations) if line), None)
    if isinstance(location, ir.NameLoc):
        return first_line(location.child_loc)
    return location if isinstance(location, ir.FileLineColLoc) else None


def _split_tile_zeros(module: ir.Module) -> None:
    """Give each use of a zeroed AMX tile its own: CSE has merged them, and LLVM copies tiles through memory.

    Also the check before translation, which crashes on what is not the LLVM dialect: raises CompileError for other ops.
    """
    zeros: list[ir.Operation] = []
    strangers: list[ir.Operation] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name == "llvm.call_intrinsic":
            if op.attributes["intrin"].value == "llvm.x86.tilezero.internal":
                zeros.append(op)
        elif not name.startswith("llvm.") and name != "builtin.module":
            strangers.append(op)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(look)
        for op in zeros:
            for use in list(op.results[0].uses):
                copy = op.operation.clone(ir.InsertionPoint(use.owner))
                use.owner.operands[use.operand_number] = copy.results[0]
            op.operation.erase()
    if strangers:
        # A cast is left where an op next to it is: name the op, if there is one.
        op = min(strangers, key=lambda op: op.name == "builtin.unrealized_conversion_cast")
        raise CompileError(f"{op.name} has no lowering to LLVM: {str(op)[:200]}", source=str(op.location), stage="to_llvm")
