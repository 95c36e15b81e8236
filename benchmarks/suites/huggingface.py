"""The Hugging Face list: PyTorch's huggingface_models_list.txt over the years, and the language models that joined it.

The classes are those that benchmarks/dynamo uses; configurations are the defaults of transformers (or the checkpoint's, where
a name is a checkpoint), cut as `build.transformer` says. What is wider than a laptop's memory is narrowed here, and says so.
"""

from __future__ import annotations

from .build import Missing, Models, spectrogram, transformer

_PLAIN = """
AlbertForMaskedLM AlbertForQuestionAnswering BartForCausalLM BartForConditionalGeneration BertForMaskedLM
BertForQuestionAnswering BlenderbotForCausalLM BlenderbotForConditionalGeneration BlenderbotSmallForCausalLM
BlenderbotSmallForConditionalGeneration DebertaForMaskedLM DebertaForQuestionAnswering DebertaV2ForMaskedLM
DebertaV2ForQuestionAnswering DistilBertForMaskedLM DistilBertForQuestionAnswering ElectraForCausalLM
ElectraForQuestionAnswering LayoutLMForMaskedLM LayoutLMForSequenceClassification M2M100ForConditionalGeneration
MBartForCausalLM MBartForConditionalGeneration MT5ForConditionalGeneration MegatronBertForCausalLM
MegatronBertForQuestionAnswering MobileBertForMaskedLM MobileBertForQuestionAnswering OPTForCausalLM PLBartForCausalLM
PLBartForConditionalGeneration PegasusForCausalLM PegasusForConditionalGeneration T5ForConditionalGeneration TrOCRForCausalLM
XGLMForCausalLM XLNetLMHeadModel
""".split()

# Layers alternate between a sliding window and full attention; both are wanted among two layers.
_WINDOWS = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
_GPT_NEO = {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]}

MODELS: Models = {
    **{name: transformer(name) for name in _PLAIN},
    "AllenaiLongformerBase": transformer("LongformerForMaskedLM", 1024, 1, max_position_embeddings=4098, vocab_size=50265),
    "BigBird": transformer("BigBirdForMaskedLM", 1024, 1, attention_type="block_sparse"),
    "CamemBert": transformer("CamembertForMaskedLM", max_position_embeddings=514, vocab_size=32005),
    "DistillGPT2": transformer("GPT2LMHeadModel"),
    "GPT2ForSequenceClassification": transformer("GPT2ForSequenceClassification", pad_token_id=0),
    "GPTJForCausalLM": transformer("GPTJForCausalLM", n_embd=2048),  # 4096 in the checkpoint
    "GPTJForQuestionAnswering": transformer("GPTJForQuestionAnswering", n_embd=2048),
    "GPTNeoForCausalLM": transformer("GPTNeoForCausalLM", **_GPT_NEO),
    "GPTNeoForSequenceClassification": transformer("GPTNeoForSequenceClassification", pad_token_id=0, **_GPT_NEO),
    "GoogleFnet": transformer("FNetForMaskedLM"),
    # A fixed hash seed: LSH attention draws its rotations anew in every call otherwise.
    "Reformer": transformer("ReformerForMaskedLM", 4096, 1, attn_layers=["local", "lsh"], hash_seed=0),
    "RobertaForCausalLM": transformer("RobertaForCausalLM", pad_token_id=0),
    "RobertaForQuestionAnswering": transformer("RobertaForQuestionAnswering", pad_token_id=0),
    "Speech2Text2ForCausalLM": Missing("transformers has removed Speech2Text2"),
    "T5Small": transformer("T5ForConditionalGeneration", layers=3),
    "YituTechConvBert": transformer("ConvBertForMaskedLM"),
    "Qwen/Qwen3-0.6B": transformer(
        "Qwen3ForCausalLM",
        batch=1,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
    ),
    "Qwen/Qwen3.5-0.8B": transformer(
        "Qwen3_5ForCausalLM",
        batch=1,
        hidden_size=1024,
        intermediate_size=3584,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        layer_types=["linear_attention", "full_attention"],
    ),
    "google/gemma-2-2b": transformer("Gemma2ForCausalLM", batch=1, **_WINDOWS),
    "google/gemma-3-4b-it": transformer("Gemma3ForCausalLM", batch=1, hidden_size=2560, intermediate_size=10240, **_WINDOWS),
    "meta-llama/Llama-3.2-1B": transformer(
        "LlamaForCausalLM",
        batch=1,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": transformer(  # half as wide as the checkpoint
        "MistralForCausalLM",
        batch=1,
        hidden_size=2048,
        intermediate_size=7168,
        num_attention_heads=16,
        num_key_value_heads=4,
        sliding_window=None,
    ),
    "openai/gpt-oss-20b": transformer(  # a third as wide as the checkpoint, 8 experts of 32
        "GptOssForCausalLM",
        batch=1,
        hidden_size=1024,
        intermediate_size=1024,
        num_local_experts=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        **_WINDOWS,
    ),
    "openai/whisper-tiny": transformer(
        "WhisperForConditionalGeneration", layers=4, vocab_size=51865, inputs=spectrogram(decoder_input_ids=(1, 32))
    ),
}
