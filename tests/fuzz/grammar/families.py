"""Families that have few relatives among the other rules: special functions, three spatial dims, recurrence, random numbers, what ATen computes."""

from __future__ import annotations

from ..choices import Choices
from ..program import Program, Value
from .rules import axis, few, floating, rule

SPECIAL = (
    "torch.special.{}({{}})".format(f)
    for f in (
        "i0e i1 i1e ndtri ndtr log_ndtr erfcx bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 "
        "scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 entr psi gammaln log_softmax"
    ).split()
)
UNARY = (
    *(s for s in SPECIAL if "log_softmax" not in s), "torch.polygamma(1, {})", "torch.polygamma(2, {})", "torch.mvlgamma({} + 2, 2)", "torch.isposinf({})", "torch.isneginf({})", "torch.rad2deg({})", "torch.angle({})", "torch.frexp({})[0]",
    "torch.frexp({})[1]", "torch.real({})", "torch.special.zeta({} + 3, {} + 3)", "torch.special.xlog1py({}, {}.abs())", "torch.igamma({}.abs() + 1, {}.abs())", "F.rrelu({}, 0.1, 0.3)", "F.logsigmoid({})", "torch.fix({})", "torch.trapezoid({})", "F.gumbel_softmax({}, hard=True).sum(-1).detach()",
    "F.dropout({}, 0.0)", "F.dropout({}, 1.0)", "torch.bernoulli({} * 0 + 1)", "torch.rand_like({}) * 0 + {}", "torch.empty_like({}).fill_(3)", "F.alpha_dropout({}, 0.0)", "torch.renorm({}, 2, 0, 1.0)", "torch.nn.functional.prelu({}, torch.tensor([0.25]).to({}.dtype))",
)  # fmt: skip


@rule(3)
def special_function(p: Program, c: Choices) -> bool:
    v = p.value(c, floating)
    if v is None:
        return False
    f = c.pick(UNARY)
    return p.add(f.format(*[v] * f.count("{}")))


@rule(2)
def three_dims(p: Program, c: Choices) -> bool:
    """Pooling, padding and resampling in one to three dims."""
    v = p.value(c, lambda v: v.floating and 2 <= v.dim <= 5 and v.numel > 0)
    if v is None:
        return False
    x = {2: f"{v}[None, None, None]", 3: f"{v}[None, None]", 4: f"{v}[None]", 5: str(v)}[v.dim]
    k = 1 + c.below(3)
    return p.add(
        c.pick(
            (
                "F.max_pool3d({x}, {k}, {k}, {h})", "F.avg_pool3d({x}, {k}, 1, {h})", "F.adaptive_avg_pool3d({x}, (1, {k}, 2))", "F.interpolate({x}, scale_factor=2)", "F.interpolate({x}, (1, {k}, 5), mode='trilinear')", "F.interpolate({x}, (2, {k}, 3), mode='nearest-exact')",
                "F.pad({x}, (1, 0, {h}, 1, 0, 0), mode='reflect')", "F.pad({x}, (1, 0, {h}, 1, 2, 1), mode='replicate')", "F.adaptive_max_pool3d({x}, (1, {k}, 1))", "F.avg_pool3d({x}, {k}, ceil_mode=True, count_include_pad=False)", "F.max_pool3d({x}, (1, {k}, 2), ceil_mode=True)",
                "F.interpolate({x}, (1, {k}, 4), mode='trilinear', align_corners=True)", "F.max_unpool2d(*F.max_pool2d({x}[0], {k}, return_indices=True), {k})", "F.fractional_max_pool2d({x}[0], 1, output_size=(1, 1), _random_samples=torch.full(({x}.shape[1], {x}.shape[2], 2), 0.5).to({x}.dtype))",
                "F.conv3d({x}, torch.ones(2, {x}.shape[1], 1, {k}, 1).to({x}.dtype) / 8, padding=1)", "F.lp_pool2d({x}[0], 2, {k})",
            )
        ).format(x=x, k=k, h=k // 2)
    )  # fmt: skip


def image(v: Value) -> bool:
    return v.floating and v.dim in (3, 4) and v.numel > 0


@rule(2)
def images(p: Program, c: Choices) -> bool:
    v = p.value(c, image)
    if v is None:
        return False
    x = str(v) if v.dim == 4 else f"{v}[None]"
    k, a = 1 + c.below(3), c.pick(("True", "False"))
    return p.add(
        c.pick(
            (
                "F.fold(F.unfold({x}, {k}, padding=1), ({x}.shape[2], {x}.shape[3]), {k}, padding=1)", "F.grid_sample({x}, F.affine_grid(torch.eye(2, 3, dtype={x}.dtype).expand({x}.shape[0], 2, 3) * 0.9, (1, 1, 4, {k}), align_corners={a}).expand({x}.shape[0], 4, {k}, 2), align_corners={a})",
                "F.grid_sample({x}, {x}.tanh().flatten(1)[:, :8].reshape({x}.shape[0], 2, 2, 2), padding_mode='border', align_corners={a})", "F.unfold({x}, (1, {k}), stride=2)", "F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)", "F.local_response_norm({x}, 3)",
                "F.conv2d({x}, torch.ones(4, {x}.shape[1], {k}, {k}).to({x}.dtype) / 8, stride=2, padding=1)", "F.conv2d({x}, torch.ones(2, {x}.shape[1], 1, 1).to({x}.dtype) / 4).flatten(2).mT @ {x}.flatten(2)[:, :2]", "F.interpolate({x}, scale_factor=(1.5, 2.5))",
                "F.interpolate({x}, scale_factor=(0.5, 2), mode='bilinear', align_corners={a})", "F.interpolate({x}, scale_factor=1.1, mode='bicubic', align_corners={a})", "F.grid_sample({x}, {x}.sin().flatten(1)[:, :4].reshape({x}.shape[0], 1, 2, 2), mode='nearest', align_corners={a})",
            )
        ).format(x=x, k=k, a=a)
    )  # fmt: skip


MOST_STEPS = 100
"""Of a recurrent network, in all of its batch."""


@rule(2)
def recurrence(p: Program, c: Choices) -> bool:
    """One layer of a recurrent network, over the dim before the last one: not over thousands of steps, which torch takes minutes to trace."""
    v = p.value(c, lambda v: v.floating and v.dim in (2, 3) and v.fixed(v.dim - 1) and 0 < v.size(v.dim - 1) <= 40 and 0 < v.numel <= MOST_STEPS * v.size(v.dim - 1))
    if v is None:
        return False
    n, h = v.size(v.dim - 1), c.pick((3, 1, 8))
    gates = {"rnn_tanh": 1, "gru": 3, "lstm": 4}
    kind = c.pick(tuple(gates))
    w = [p.weight((gates[kind] * h, k), v.dtype, " / 4") for k in (n, h)]
    x = str(v) if v.dim == 3 else f"{v}[None]"
    state = f"torch.zeros(1, {x}.shape[0], {h}, dtype={v.dtype})"
    states = f"({state}, {state})" if kind == "lstm" else state
    return p.add(f"torch.{kind}({x}, {states}, [{w[0]}, {w[1]}], False, 1, 0.0, False, False, True)[{c.below(2)}]")


@rule(3)
def others(p: Program, c: Choices) -> bool:
    """Ops of which there is nothing else like them; several are ATen's."""
    v = p.value(c, lambda v: v.dim >= 1 and v.numel > 0)
    if v is None:
        return False
    d = axis(c, v)
    options = [
        "torch.unbind({few}, {d})[-1]", "torch.diff({v}, dim={d})", "{v}.mode({d})[0]", "{v}.median({d})[0]", "{v}.kthvalue(1, {d})[0]", "torch.aminmax({v}, dim={d})[1]", "{v}.take(torch.tensor([0, -1]))", "torch.isin({v}, torch.tensor([0, 1]).to({v}.dtype))", "torch.cartesian_prod({v}.flatten()[:3], {v}.flatten()[:2])",
        "torch.block_diag({v}.flatten()[:4][None], {v}.flatten()[:2][:, None])", "torch.tensor_split({v}, 2, {d})[1]", "torch.dsplit({v}, 1)[0]", "torch.triu_indices({v}.shape[0], {v}.shape[-1])", "torch.meshgrid({v}.flatten()[:3], {v}.flatten()[:2], indexing='ij')[0]", "torch.as_strided_copy({v}.contiguous(), ({v}.shape[0],), (1,))",
        "{v}.scatter({d}, torch.zeros_like({v}, dtype=torch.int64), {v}.flip({d}) * 0)", "torch.histc({v}.float(), 4, -2, 2)", "torch.unique({v}.flatten()).sum()", "torch.bincount(({v} > 0).flatten().long(), minlength=3)", "{v}.nonzero().sum(0)", "{v}[{v} > 0].sum()", "torch.masked_select({v}, {v} > 0).numel() + {v}",
        "torch.split_with_sizes_copy({v}, [1, {v}.shape[{d}] - 1], {d})[1]", "torch.stack(torch.unbind({few}, {d})[::-1], {d})", "{v}.sort({d}, descending=True, stable=True)[0]", "torch.bitwise_and({v}.to(torch.int32), 6) | 1", "torch.gcd({v}.int(), torch.tensor(6, dtype=torch.int32))", "{v}.to(torch.complex64).abs()",
        "torch.view_as_real({v}.to(torch.complex64))", "torch.squeeze_copy({v})", "{v}.nanmedian()", "torch.cov({v}.float().reshape(-1, {v}.shape[-1])) if {v}.shape[-1] > 1 else {v}", "F.one_hot(({v} > 0).long(), 2).sum({d})",
    ]  # fmt: skip
    if v.floating:
        options += [
            "torch.linalg.det({v}.float().mT @ {v}.float() + torch.eye({v}.shape[-1]))", "torch.linalg.inv({v}.mT @ {v} + 4 * torch.eye({v}.shape[-1], dtype={v}.dtype))", "torch.linalg.solve({v}.mT @ {v} + 4 * torch.eye({v}.shape[-1], dtype={v}.dtype), {v}.mT)", "torch.cumulative_trapezoid({v}, dim={d})",
            "torch.nanmean({v}, {d})", "torch.quantile({v}.float(), 0.3, {d})", "torch.fft.rfft({v}.float()).abs()", "F.gaussian_nll_loss({v}, {v} * 0.5, {v}.abs() + 0.1)", "F.multi_margin_loss({v}, {v}.argmax(-1))", "F.ctc_loss({v}.log_softmax(-1), torch.tensor([0]), torch.tensor([1]), torch.tensor([1]))",
            "F.triplet_margin_loss({v}, {v}.flip(0), {v} * 2)", "F.bilinear({v}, {v}, torch.ones(2, {v}.shape[-1], {v}.shape[-1], dtype={v}.dtype) / 32)", "F.nll_loss({v}.log_softmax(1), {v}.argmax(1), ignore_index=0, reduction='sum')", "F.cross_entropy({v}, {v}.argmax(1), label_smoothing=0.1)", "torch.linalg.multi_dot([{v}, {v}.mT, {v}]) / 64",
            "torch.chain_matmul({v}, {v}.mT) / 8", "torch.linalg.norm({v}, dim={d})", "torch.addmv({v}[:, 0], {v}, {v}[0])", "torch.addr({v}, {v}[:, 0], {v}[0])", "torch.addbmm({v}[0], {v}, {v}.mT @ {v}) / 64", "torch.cosine_embedding_loss({v}, {v} + 1, torch.ones({v}.shape[0], dtype={v}.dtype))",
        ]  # fmt: skip
    return p.add(c.pick(options).format(v=v, d=d, few=few(v, d)))


@rule(1)
def random_numbers(p: Program, c: Choices) -> bool:
    """Of distributions that leave one number only."""
    v = p.value(c, floating)
    if v is None:
        return False
    d = axis(c, v)
    return p.add(
        c.pick(
            (
                "F.dropout({v}, 0.5) * 0 + {v}", "F.dropout({v}, 0.0)", "torch.rand_like({v}) < 2", "torch.randn_like({v}) * 0 + 1", "torch.randint_like({v}, 3, 4)", "torch.randint(2, 3, {v}.shape)", "torch.normal({v}, 0.0)", "torch.empty_like({v}).uniform_(2, 2)", "{v}.clone().normal_(2, 0)",
                "torch.empty_like({v}).bernoulli_(1.0)", "torch.bernoulli(torch.ones_like({v}))", "torch.empty_like({v}).geometric_(1.0)", "torch.empty_like({v}).random_(3, 4)", "torch.empty_like({v}).exponential_() > -1", "torch.empty_like({v}).cauchy_() * 0 == 0", "torch.empty_like({v}).log_normal_(0, 0)",
                "torch.randperm(5).sort()[0]", "torch.multinomial(torch.eye(4)[1], 3, replacement=True)", "F.feature_dropout({v}, 0.0)" if v.dim >= 2 else "F.dropout({v}, 1.0)", "F.gumbel_softmax({v}, dim={d}, hard=True).sum({d}).detach()" if v.dim else "torch.rand(3).shape[0] * {v}",
            )
        ).format(v=v, d=d)
    )  # fmt: skip


@rule(1)
def copies(p: Program, c: Choices) -> bool:
    """View ops that copy, ops of `torch.ops.aten` that few programs name.

    Views that torch does not declare as such (`unsafe_chunk`) are copied: nothing that traces sees that they share memory.
    """
    v = p.value(c, lambda v: v.dim >= 1 and v.numel > 0)
    if v is None:
        return False
    d, n = axis(c, v), c.below(max(v.size(0), 1))
    return p.add(
        c.pick(
            (
                "torch.narrow_copy({v}, 0, {n}, 1)", "torch.select_copy({v}, 0, {n})", "torch.slice_copy({v}, 0, {n})", "torch.diagonal_copy({v}[None])", "torch.expand_copy({v}, (2, *{v}.shape))", "torch.permute_copy({v}[None], ({d}, 0)) if {v}.dim() == 1 else torch.transpose_copy({v}, 0, {d})", "torch.view_copy({v}.contiguous(), (-1,))",
                "torch.unfold_copy({v}, {d}, 1, 2)", "torch.unsqueeze_copy({v}, {d})", "torch.unbind_copy({few}, {d})[0]", "torch.detach_copy({v})", "torch.alias_copy({v})", "torch.as_strided_scatter({v}.contiguous(), {v}.flatten()[:1], (1,), (1,), {n})", "{v}.select_scatter({v}.select({d}, 0), {d}, -1)", "torch.unsafe_chunk({v}, 2, {d})[0].clone()",
                "torch.ops.aten._unsafe_index({v}, [torch.tensor([{n}, 0])])", "torch.ops.aten._unsafe_index_put({v}, [torch.tensor([{n}])], {v}[:1], True)", "{v}.put(torch.tensor([0, -1]), {v}.flatten()[:1].expand(2))", "{v}.index_reduce(0, torch.tensor([{n}, {n}]), {v}[:1].expand(2, *{v}.shape[1:]), 'amax')", "torch.empty_strided({v}.shape[:1], (2,)).zero_() + {n}",
                "torch.empty_permuted(({n}, 2), (1, 0)).fill_(2)", "torch.clamp_max({v}, 1)", "torch.bucketize({v}, torch.tensor([-1.0, 0.0, 1.0]), right=True)", "torch.ops.aten.lift_fresh_copy({v})", "F.fractional_max_pool3d({v}.reshape(1, 1, 1, 1, -1).float(), 1, output_size=(1, 1, 1), _random_samples=torch.full((1, 1, 3), 0.5))",
            )
        ).format(v=v, d=d, n=n, few=few(v, d))
    )  # fmt: skip


@rule(1)
def left_to_aten(p: Program, c: Choices) -> bool:
    """In the middle of a graph."""
    v = p.value(c, lambda v: v.floating and v.dim >= 1 and v.numel > 0)
    if v is None:
        return False
    square = f"({v}.mT @ {v} + 4 * torch.eye({v}.shape[-1], dtype={v}.dtype))"
    return p.add(
        c.pick(
            (
                "torch.linalg.cholesky({s})", "torch.linalg.eigvalsh({s})", "torch.linalg.slogdet({s})[1]", "torch.linalg.svdvals({s})", "torch.linalg.solve_triangular({s}, {v}.mT, upper=True)", "torch.linalg.matrix_exp({s} / 64)", "torch.cholesky_solve({v}.mT, torch.linalg.cholesky({s}))", "torch.linalg.qr({s})[1].abs()",
                "torch.special.chebyshev_polynomial_t({v}, 3)", "torch.special.hermite_polynomial_h({v}, 2)", "torch.special.laguerre_polynomial_l({v}, 3)", "torch.special.legendre_polynomial_p({v}, 2)", "torch.special.airy_ai({v})", "torch.igammac({v}.abs() + 1, {v}.abs())", "torch.lcm(torch.tensor(6), ({v} > 0).long())", "torch.unique_consecutive({v}.flatten()).sum()",
                "torch.linalg.ldl_factor({s})[0].shape[0] * {v}", "torch.linalg.lu_factor({s})[0] * 0", "torch.linalg.pinv({s})",
            )
        ).format(v=v, s=square)
    )  # fmt: skip
