"""What each field of `config.json` means; `huggingface_config.py` reads by these tables."""

from __future__ import annotations

from typing import Any

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SCALAR_ARCHITECTURES = {
    "llama": "LlamaForSequenceClassification",
    "qwen2": "Qwen2ForSequenceClassification",
    "qwen3": "Qwen3ForSequenceClassification",
}

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)

# What an absent field means, as in transformers 5.24.
_SHARED_DEFAULTS = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "head_dim": None,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 28,
    "layer_types": None,
}
_QWEN_DEFAULTS = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
DEFAULTS = {
    "llama": _SHARED_DEFAULTS
    | {
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2": _SHARED_DEFAULTS | _QWEN_DEFAULTS | {"attention_bias": True},
    "qwen3": _SHARED_DEFAULTS | _QWEN_DEFAULTS | {"head_dim": 128},
}
DEFAULT_THETA = 10000.0

READ = {
    *_SHARED_DEFAULTS,
    *_QWEN_DEFAULTS,
    "model_type",
    "architectures",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "original_max_position_embeddings",
}

# Fields that are accepted at these values only: any other would change what the model computes.
ONLY_AT: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({}, []),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
}
ONLY_AT_BY_FAMILY: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"use_sliding_window": (False,)},
    "qwen2": {"attention_bias": (True,), "mlp_bias": (False,)},
    "qwen3": {"mlp_bias": (False,)},
}

# Fields that leave the forward pass of a trained model alone: records, outputs to return, dropout
# of somebody else's training, settings of somebody else's generation.
HARMLESS = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_from_model_config",
    "_name_or_path",
    "attention_dropout",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "min_length",
    "model_name",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
}

ROPE_NAMES = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_positions",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "attention_factor": "attention_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}
