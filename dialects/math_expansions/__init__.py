"""The functions of the math dialect as arithmetic, one family per file.

Each takes and gives `Num`s (or one can wrap: `exp(Num(value)).value`), of f32 or f64, scalars or vectors, and builds
its ops at the current insertion point. Errors in ulp are asserted in tests/passes/test_expand_math.py.
"""
