"""What kernels, the native runner and Python agree on. Imports nothing heavy: compile workers use it too.

A kernel is `void NAME(int64_t *ctx)`. `ctx[0]` is the address of the status word of this call, `ctx[1]` onwards are the
arguments in order (data pointer, index value, or the bits of an f64), then the data pointers of the results.
"""

from __future__ import annotations

OK = 0
INDEX_OUT_OF_RANGE = 1
DIVISION_BY_ZERO = 2
ASSERTION_FAILED = 3
NO_PROBABILITY = 4
NEGATIVE_REPEATS = 5
OTHER_SIZE = 6

ALIGNMENT = 64
"""Every arena buffer starts on a multiple of this many bytes."""


def aligned(nbytes: int) -> int:
    """The least multiple of `ALIGNMENT` that is not below it."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


BF16_TABLE = "mlirc_bf16_"
"""Of the symbol of a table that a kernel reads, before the name of its function: `runtime.tables` provides it."""

CODEGEN = {"reloc": "pic", "codemodel": "small"}
"""How objects must be compiled (arguments of llvmlite's `create_target_machine`) for the loader to place them anywhere."""

_EXCEPTIONS: dict[int, tuple[type[Exception], str]] = {
    INDEX_OUT_OF_RANGE: (IndexError, "index out of range in self"),
    DIVISION_BY_ZERO: (RuntimeError, "ZeroDivisionError"),
    ASSERTION_FAILED: (RuntimeError, "assertion failed in compiled graph"),
    NO_PROBABILITY: (RuntimeError, "Expected p_in >= 0 && p_in <= 1 to be true, but got false."),
    NEGATIVE_REPEATS: (RuntimeError, "repeats can not be negative"),
    OTHER_SIZE: (RuntimeError, "allocated size does not match required size"),
}

STATUSES = tuple(_EXCEPTIONS)
"""All but `OK`."""

_CODES = {
    "IndexError": INDEX_OUT_OF_RANGE,
    "ZeroDivisionError": DIVISION_BY_ZERO,
    "ProbabilityError": NO_PROBABILITY,
    "RepeatError": NEGATIVE_REPEATS,
    "SizeError": OTHER_SIZE,
}


def status_code(message: str) -> int:
    """The status of a kernel whose `cf.assert` fails: that of the error with whose name the message begins."""
    return _CODES.get(message.split(":")[0], ASSERTION_FAILED)


def status_error(status: int) -> Exception:
    """The exception for a nonzero status, of the type and with the text that eager PyTorch uses."""
    kind, text = _EXCEPTIONS.get(status, (RuntimeError, f"compiled graph failed with status {status}"))
    return kind(text)
