"""Functions that neither the math dialect nor its expansions have, as formulas in f64.

Each takes a `Num` of f64 (see `math_expansions.num`) and builds scalar ops of arith and math at the insertion point. Other
floats are computed through f64 too, which leaves f32 right but for its last rounding; these functions are rare.
"""
