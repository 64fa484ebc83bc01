"""Checkpoint layouts of the code that was released with some families."""

import re
from collections.abc import Mapping

import numpy as np

NOMIC_CONFIG = {  # as in nomic-embed-text-v1.5, except for the sizes
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "causal": False,
    "embd_pdrop": 0.0,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 8,
    "n_head": 2,
    "n_inner": 20,
    "n_layer": 2,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
}
GTE_CONFIG = {  # as in gte-base-en-v1.5, except for the sizes
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "intermediate_size": 20,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 8192,
    "model_type": "new",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pack_qkv": True,
    "pad_token_id": 0,
    "position_embedding_type": "rope",
    # Equal to the linear factor, 2 = 4 ** (2 / 4), and the base, 160,000, of the stored checkpoint.
    "rope_scaling": {"factor": 4.0, "type": "ntk"},
    "rope_theta": 40_000,
    "type_vocab_size": 2,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}
NAMES = {  # (name in transformers, older name), in this order
    "nomic_bert": [
        (r"layers\.(\d+)\.self_attn\.o_proj", r"layers.\1.attn.out_proj"),
        (r"layers\.(\d+)\.mlp\.up_proj", r"layers.\1.mlp.fc11"),
        (r"layers\.(\d+)\.mlp\.gate_proj", r"layers.\1.mlp.fc12"),
        (r"layers\.(\d+)\.mlp\.down_proj", r"layers.\1.mlp.fc2"),
        (r"layers\.(\d+)\.post_attention_layernorm", r"layers.\1.norm1"),
        (r"layers\.(\d+)\.post_mlp_layernorm", r"layers.\1.norm2"),
        (r"embeddings\.LayerNorm", "emb_ln"),
        (r"(?<!encoder\.)layers\.", "encoder.layers."),
        (r"^nomic_bert\.", "bert."),
        (r"cls\.predictions\.bias", "cls.predictions.decoder.bias"),
    ],
    "gte": [
        (r"layers\.(\d+)\.self_attn\.o_proj", r"layers.\1.attention.o_proj"),
        (r"layers\.(\d+)\.post_attention_layernorm", r"layers.\1.attn_ln"),
        (r"layers\.(\d+)\.post_mlp_layernorm", r"layers.\1.mlp_ln"),
        (r"(?<!encoder\.)layers\.", "encoder.layer."),
        (r"^gte\.", "new."),
        (r"lm_head\.layer_norm", "lm_head.norm"),
    ],
}
FUSED = {
    "nomic_bert": {"attn.Wqkv": [f"self_attn.{name}_proj" for name in "qkv"]},
    "gte": {
        "attention.qkv_proj": [f"self_attn.{name}_proj" for name in "qkv"],
        "mlp.up_gate_proj": ["mlp.up_proj", "mlp.gate_proj"],
    },
}
CONFIGS = {"nomic_bert": NOMIC_CONFIG, "gte": GTE_CONFIG}


def released_tensors(name: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert the tensors of a transformers checkpoint to the layout of the released code.

    Args:
        name: String. Family name.
        tensors: Dict {name in transformers: tensor}.
    """
    tensors = dict(tensors)
    for fused, parts in FUSED[name].items():
        for first in [n for n in tensors if parts[0] in n]:
            rows = [tensors.pop(first.replace(parts[0], part)) for part in parts]
            tensors[first.replace(parts[0], fused)] = np.concatenate(rows)
    renamed = {}
    for tensor, value in tensors.items():
        for pattern, old in NAMES[name]:
            tensor = re.sub(pattern, old, tensor)
        renamed[tensor] = value
    return renamed
