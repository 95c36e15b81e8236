"""The TIMM list: the names of PyTorch's timm_models_list.txt over the years (61 at first), all of them in timm."""

from __future__ import annotations

from .build import Models, timm

_NAMES = """
adv_inception_v3 beit_base_patch16_224 botnet26t_256 cait_m36_384 coat_lite_mini convit_base convmixer_768_32 convnext_base
convnextv2_nano.fcmae_ft_in22k_in1k crossvit_9_240 cspdarknet53 deit_base_distilled_patch16_224 deit_tiny_patch16_224.fb_in1k
dla102 dm_nfnet_f0 dpn107 eca_botnext26ts_256 eca_halonext26ts ese_vovnet19b_dw fbnetc_100 fbnetv3_b gernet_l ghostnet_100
gluon_inception_v3 gluon_xception65 gmixer_24_224 gmlp_s16_224 hrnet_w18 inception_v3 jx_nest_base lcnet_050 levit_128
mixer_b16_224 mixnet_l mnasnet_100 mobilenetv2_100 mobilenetv3_large_100 mobilevit_s nfnet_l0 pit_b_224 pnasnet5large
poolformer_m36 regnety_002 repvgg_a2 res2net101_26w_4s res2net50_14w_8s res2next50 resmlp_12_224 resnest101e rexnet_100
sebotnet33ts_256 selecsls42b spnasnet_100 swin_base_patch4_window7_224 swsl_resnext101_32x16d tf_efficientnet_b0 tf_mixnet_l
tinynet_a tnt_s_patch16_224 twins_pcpvt_base visformer_small vit_base_patch14_dinov2.lvd142m vit_base_patch16_224
vit_base_patch16_siglip_256 volo_d1_224 xcit_large_24_p8_224
""".split()

_RENAMED = {
    "adv_inception_v3": "inception_v3.tf_adv_in1k",
    "gluon_inception_v3": "inception_v3.gluon_in1k",
    "gluon_xception65": "xception65",
    "jx_nest_base": "nest_base_jx",
    "swsl_resnext101_32x16d": "resnext101_32x16d.fb_swsl_ig1b_ft_in1k",
}
"""Name in the list -> name in timm 1.0."""

MODELS: Models = {name: timm(_RENAMED.get(name, name)) for name in _NAMES}
