"""The TorchBench list: all_torchbench_models_list.txt and the models that PyTorch's continuous integration has added since.

Built here is what torchbenchmark itself takes out of torchvision, timm, transformers and torch_geometric, with sizes cut as
`build.transformer` says, and four models whose architecture transformers has as well (fastNLP_Bert, llava, moondream, sam). The
others stand here with the reason.
"""

from __future__ import annotations

from typing import Any

import torch

from .build import Case, Missing, Models, geometric, live, spectrogram, timm, tokens_and_pixels, transformer, vision

_VISION = """
alexnet densenet121 mnasnet1_0 mobilenet_v2 mobilenet_v3_large resnet152 resnet18 resnet50 resnext50_32x4d shufflenet_v2_x1_0
squeezenet1_1 vgg16
""".split()

_TIMM = {
    "timm_efficientnet": "efficientnet_b0",
    "timm_nfnet": "dm_nfnet_f0",
    "timm_regnet": "regnety_120",
    "timm_resnest": "resnest14d",
    "timm_vision_transformer": "vit_small_patch16_224",
    "timm_vovnet": "vovnet39a",
}

_ONLY_THERE = """
BERT_pytorch Background_Matting LearningToPaint Super_SloMo attention_is_all_you_need_pytorch dcgan demucs dlrm drq
functorch_dp_cifar10 functorch_maml_omniglot gat gcn lennard_jones llama maml maml_omniglot microbench_unbacked_tolist_sum moco
modded_nanogpt nanogpt nvidia_deeprecommender phlippe_densenet phlippe_resnet pyhpc_equation_of_state pyhpc_isoneutral_mixing
pyhpc_turbulent_kinetic_energy pytorch_CycleGAN_and_pix2pix pytorch_stargan pytorch_struct pytorch_unet sage simple_gpt
simple_gpt_tp_manual soft_actor_critic speech_transformer tacotron2 tts_angular yolov3
""".split()
"""What is neither in a package nor the same as something in one. A file given to --builders can add stand-ins."""

_DETECTRON = """
fasterrcnn_r_101_c4 fasterrcnn_r_101_dc5 fasterrcnn_r_101_fpn fasterrcnn_r_50_c4 fasterrcnn_r_50_dc5 fasterrcnn_r_50_fpn
fcos_r_50_fpn maskrcnn maskrcnn_r_101_c4 maskrcnn_r_101_fpn maskrcnn_r_50_c4 maskrcnn_r_50_fpn
""".split()

_ELSEWHERE = {
    "DALLE2_pytorch": "needs the package dalle2-pytorch",
    "cm3leon_generate": "its code is only in the torchbenchmark repository, and is for GPUs",
    "doctr_det_predictor": "needs the package python-doctr, which downloads its weights",
    "doctr_reco_predictor": "needs the package python-doctr, which downloads its weights",
    "fambench_dlrm": "needs the FAMBench repository",
    "fambench_xlmr": "needs the FAMBench repository and fairseq, which downloads its weights",
    "hf_T5_generate": "a decoding loop around hf_T5; PyTorch's list leaves it out on the CPU as well",
    "opacus_cifar10": "needs the package opacus, which trains only",
    "pplbench_beanmachine": "needs the package beanmachine",
    "sam_fast": "needs the package segment-anything-fast, which is for GPUs",
    "stable_diffusion": "needs the package diffusers, which downloads its weights",
    "stable_diffusion_unet": "needs the package diffusers",
    "timm_efficientdet": "needs the package effdet",
    "torchrec_dlrm": "needs the packages torchrec and fbgemm, which are for GPUs",
}


def _quantized(name: str) -> Any:
    """A torchvision classifier prepared for quantisation-aware training and converted, as torchbenchmark does it."""

    def build() -> Case:
        from torch.ao.quantization import get_default_qat_qconfig_mapping, quantize_fx
        from torchvision import models

        x = torch.randn(2, 3, 224, 224)
        module = quantize_fx.prepare_qat_fx(models.get_model(name, weights=None).train(), get_default_qat_qconfig_mapping("fbgemm"), (x,))
        with torch.no_grad():
            for _ in range(2):  # the observers' ranges
                module(x)
        return quantize_fx.convert_fx(module.eval()), (x[:1],), {}

    return live(build)


def _mask_rcnn() -> Case:
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    # Small images and few proposals: the full ones take minutes on a core. No score is too low for random weights.
    module = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        min_size=224,
        max_size=320,
        rpn_pre_nms_top_n_test=100,
        rpn_post_nms_top_n_test=32,
        box_score_thresh=0.0,
        box_detections_per_img=4,
    )
    return module, ([torch.rand(3, 224, 288)],), {}


def _t5(width: int, feed_forward: int, heads: int) -> Any:
    return transformer("T5ForConditionalGeneration", d_model=width, d_ff=feed_forward, num_heads=heads)


_TWO_LAYERS = {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}
_IMAGE_TOKEN = 31000


def _llava_inputs() -> dict[str, Any]:
    image = torch.full((1, 576), _IMAGE_TOKEN)  # (336 / 14)^2 patches
    return {"input_ids": torch.cat((image, torch.randint(6, 30000, (1, 32))), 1), "pixel_values": torch.randn(1, 3, 336, 336)}


MODELS: Models = {
    **{name: vision(name) for name in _VISION},
    **{name: timm(theirs) for name, theirs in _TIMM.items()},
    "timm_vision_transformer_large": timm("vit_giant_patch14_224", depth=2),
    **{f"basic_gnn_{kind.lower()}": geometric(kind) for kind in ("EdgeCNN", "GCN", "GIN")},
    "basic_gnn_sage": geometric("GraphSAGE"),
    "mobilenet_v2_quantized_qat": _quantized("mobilenet_v2"),
    "resnet50_quantized_qat": _quantized("resnet50"),
    "vision_maskrcnn": live(_mask_rcnn),
    "fastNLP_Bert": transformer("BertForQuestionAnswering", layers=3),
    "hf_Albert": transformer("AlbertForMaskedLM", hidden_size=768, intermediate_size=3072, num_attention_heads=12),
    "hf_Bart": transformer(
        "BartForConditionalGeneration",
        d_model=768,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    ),
    "hf_Bert": transformer("BertForMaskedLM"),
    "hf_Bert_large": transformer("BertForMaskedLM", hidden_size=1024, num_attention_heads=16, intermediate_size=4096),
    "hf_BigBird": transformer("BigBirdForMaskedLM", 1024, 1, attention_type="block_sparse"),
    "hf_DistilBert": transformer("DistilBertForMaskedLM"),
    "hf_GPT2": transformer("GPT2LMHeadModel"),
    "hf_GPT2_large": transformer("GPT2LMHeadModel", n_embd=1280, n_head=20),
    "hf_Longformer": transformer("LongformerForMaskedLM", 1024, 1, max_position_embeddings=4098),
    "hf_Reformer": transformer("ReformerForMaskedLM", 4096, 1, num_buckets=128, attn_layers=["local", "lsh"], hash_seed=0),
    "hf_Roberta_base": transformer("XLMRobertaForMaskedLM", vocab_size=50265, max_position_embeddings=514),
    "hf_T5": _t5(512, 2048, 8),
    "hf_T5_base": _t5(768, 3072, 12),
    "hf_T5_large": _t5(1024, 4096, 16),
    "hf_Whisper": transformer("WhisperForAudioClassification", inputs=spectrogram()),
    "hf_distil_whisper": transformer(
        "WhisperForAudioClassification", inputs=spectrogram(), d_model=1024, encoder_attention_heads=16, encoder_ffn_dim=4096
    ),
    "hf_clip": transformer("CLIPModel", inputs=tokens_and_pixels(16), **_TWO_LAYERS),
    "torch_multimodal_clip": transformer("CLIPModel", inputs=tokens_and_pixels(77), **_TWO_LAYERS),
    "llama_v2_7b_16h": transformer(  # half as wide
        "LlamaForCausalLM", hidden_size=2048, intermediate_size=5504, num_attention_heads=16, num_key_value_heads=16
    ),
    "llava": transformer(
        "LlavaForConditionalGeneration",
        inputs=_llava_inputs,
        image_token_index=_IMAGE_TOKEN,
        text_config={
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        vision_config={
            "model_type": "clip_vision_model",
            "num_hidden_layers": 3,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "image_size": 336,
            "patch_size": 14,
        },
    ),
    "moondream": transformer("PhiForCausalLM"),
    "phi_1_5": transformer("PhiForCausalLM", length=256, batch=1),
    "sam": transformer(
        "SamModel",
        inputs=lambda: {"pixel_values": torch.randn(1, 3, 512, 512), "input_points": torch.tensor([[[[256.0, 200.0]]]])},
        vision_config={"num_hidden_layers": 2, "global_attn_indexes": [1], "image_size": 512},
        prompt_encoder_config={"image_size": 512, "image_embedding_size": 32},
    ),
    "stable_diffusion_text_encoder": transformer(
        "CLIPTextModel", 10, 1, hidden_size=1024, num_attention_heads=16, intermediate_size=4096, hidden_act="gelu"
    ),
    **{name: Missing("its code is only in the torchbenchmark repository") for name in _ONLY_THERE},
    **{f"detectron2_{name}": Missing("needs the package detectron2, which is built from source") for name in _DETECTRON},
    **{name: Missing(reason) for name, reason in _ELSEWHERE.items()},
}
