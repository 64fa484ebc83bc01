"""Tables with class names, layer names and settings in KerasHub for each family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class KerasHubHead:
    """The names of a task and of the layers of its head in KerasHub.

    Attributes:
        task: String. Task class name.
        groups: Dict that maps attribute paths in the task to group names in weight files.
        built_in: Dict that maps task arguments to hard-coded values in KerasHub.
    """

    task: str
    groups: Mapping[str, str]
    built_in: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class KerasHubNames:
    """KerasHub names and hard-coded values for an encoder family.

    Attributes:
        backbone: String. Backbone class name.
        built_in: Dict that maps backbone arguments to hard-coded values in KerasHub.
        groups: Dict that maps attribute paths in the backbone to group names in weight files.
        heads: Dict that maps head names (see `Family.heads`) to `KerasHubHead`.
        tokenizer: String. Tokenizer class name.
        tokenizer_file_names: Dict that maps file names in Hugging Face folders to file names in
            KerasHub.
        tokenizer_settings: Dict that maps settings in tokenizer_config.json to tuples (name in
            KerasHub, default in KerasHub).
        tokenizer_arguments: Dict that maps tokenizer arguments in KerasHub to tokenizer attributes
            in this package.
        tokenizer_built_in: Dict that maps tokenizer attributes in this package to hard-coded values
            in KerasHub.
        arguments: Dict that maps backbone arguments to their names in KerasHub, if the names
            differ. Several arguments can be mapped to the same name.
        blocks: Dict that maps backbone attributes with lists of blocks to prefixes of group names.
    """

    backbone: str
    built_in: Mapping[str, object]
    groups: Mapping[str, str]
    heads: Mapping[str, KerasHubHead]
    tokenizer: str
    tokenizer_file_names: Mapping[str, str]
    tokenizer_settings: Mapping[str, tuple[str, object]]
    tokenizer_arguments: Mapping[str, str]
    tokenizer_built_in: Mapping[str, object] = dataclasses.field(default_factory=dict)
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    blocks: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"blocks": "transformer_encoder"}
    )


_LAYERS = ("query", "key", "value", "output")  # dense layers of an attention layer


def _name_block_groups(block: str, projection: str, blocks: str = "blocks") -> dict[str, str]:
    """Map attribute paths in Transformer blocks to group names in weight files.

    Args:
        block: String. Group name for blocks, with {} as placeholder for the index.
        projection: String. Group name for dense layers in attention, with {} as placeholder for the
            layer name.
        blocks: String. Backbone attribute that contains all blocks. Defaults to "blocks".
    """
    paths = {
        **{f"attention.{name}_dense": projection.format(name) for name in _LAYERS},
        "attention_norm": "_self_attention_layer_norm",
        "intermediate_dense": "_feedforward_intermediate_dense",
        "output_dense": "_feedforward_output_dense",
        "output_norm": "_feedforward_layer_norm",
    }
    return {f"{blocks}.{{}}.{ours}": f"{block}/{theirs}" for ours, theirs in paths.items()}


_PROJECTION = "_self_attention_layer/{}_dense"
_ENCODER = _name_block_groups("transformer_encoder_{}", _PROJECTION)
_DEBERTA_BLOCK = "disentangled_attention_encoder_{}"
_TWO_TABLES = {  # without segments
    "embeddings.token_embedding": "token_and_position_embedding/token_embedding",
    "embeddings.position_embedding": "token_and_position_embedding/position_embedding",
    "embeddings.norm": "layer_normalization",
}
_THREE_TABLES = {
    "embeddings.token_embedding": "reversible_embedding",
    "embeddings.position_embedding": "position_embedding",
    "embeddings.segment_embedding": "embedding",
    "embeddings.norm": "layer_normalization",
}
_POOLED_CLASSIFIER = {"head.output_dense": "dense"}
_CLASSIFIER = {"head.hidden.dense": "dense", "head.output_dense": "dense_1"}
_MASKED_LM = {
    "head.hidden.dense": "masked_lm_head/_intermediate_dense",
    "head.hidden.norm": "masked_lm_head/_intermediate_layer_norm",
    "head.bias": "masked_lm_head",
}
# Most masked-LM heads use the exact GELU and this epsilon, independently from the blocks.
_MASKED_LM_BUILT_IN = {"head_activation": "gelu", "head_layer_norm_epsilon": 1e-5}
_WORDPIECE = {
    "tokenizer_file_names": {"vocab.txt": "vocabulary.txt"},
    "tokenizer_settings": {
        "do_lower_case": ("lowercase", False),
        "strip_accents": ("strip_accents", False),
        "unk_token": ("oov_token", "[UNK]"),
    },
    "tokenizer_arguments": {
        "vocabulary": "vocabulary",
        "lowercase": "lowercase",
        "strip_accents": "strips_accents",
        "oov_token": "unknown_token",
    },
    "tokenizer_built_in": {"split_chinese_characters": True},  # KerasHub's files do not store it
}
_BYTE_BPE = {
    "tokenizer_file_names": {"vocab.json": "vocabulary.json", "merges.txt": "merges.txt"},
    "tokenizer_settings": {"add_prefix_space": ("add_prefix_space", False)},
    "tokenizer_arguments": {name: name for name in ("vocabulary", "merges", "add_prefix_space")},
}
_ROBERTA = KerasHubNames(
    backbone="RobertaBackbone",
    built_in={
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
        "pad_token_id": 1,
        "num_segments": 1,
    },
    groups={**_TWO_TABLES, **_ENCODER},
    heads={
        "ForSequenceClassification": KerasHubHead("RobertaTextClassifier", _CLASSIFIER),
        "ForMaskedLM": KerasHubHead("RobertaMaskedLM", _MASKED_LM, _MASKED_LM_BUILT_IN),
    },
    tokenizer="RobertaTokenizer",
    **_BYTE_BPE,
)


KERAS_HUB = {
    "bert": KerasHubNames(
        backbone="BertBackbone",
        # KerasHub's BERT always uses the tanh GELU, even if the original weights used exact GELU.
        built_in={"activation": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-12},
        groups={**_THREE_TABLES, **_ENCODER, "pooler_dense": "dense"},
        heads={
            "ForSequenceClassification": KerasHubHead("BertTextClassifier", _POOLED_CLASSIFIER),
            "ForMaskedLM": KerasHubHead("BertMaskedLM", _MASKED_LM, _MASKED_LM_BUILT_IN),
        },
        tokenizer="BertTokenizer",
        **_WORDPIECE,
    ),
    "roberta": _ROBERTA,
    "electra": KerasHubNames(
        backbone="ElectraBackbone",
        built_in={"activation": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-12},
        # KerasHub adds a pooler that ELECTRA does not have. The pooler is ignored.
        groups={**_THREE_TABLES, "embeddings.projection": "dense", **_ENCODER},
        heads={},
        tokenizer="ElectraTokenizer",
        arguments={"vocabulary_size": "vocab_size"},
        **_WORDPIECE,
    ),
    "distilbert": KerasHubNames(
        backbone="DistilBertBackbone",
        built_in={"activation": "gelu", "layer_norm_epsilon": 1e-12},
        groups={**_TWO_TABLES, **_ENCODER},
        heads={
            "ForSequenceClassification": KerasHubHead("DistilBertTextClassifier", _CLASSIFIER),
            "ForMaskedLM": KerasHubHead("DistilBertMaskedLM", _MASKED_LM, _MASKED_LM_BUILT_IN),
        },
        tokenizer="DistilBertTokenizer",
        **_WORDPIECE,
    ),
    "albert": KerasHubNames(
        backbone="AlbertBackbone",
        built_in={"activation": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-12},
        groups={
            **_THREE_TABLES,
            "embeddings.projection": "dense",
            **_ENCODER,
            "pooler_dense": "dense_1",
        },
        heads={
            "ForSequenceClassification": KerasHubHead("AlbertTextClassifier", _POOLED_CLASSIFIER),
            "ForMaskedLM": KerasHubHead(
                "AlbertMaskedLM",
                _MASKED_LM,
                {"head_activation": "gelu_pytorch_tanh", "head_layer_norm_epsilon": 1e-5},
            ),
        },
        tokenizer="AlbertTokenizer",
        tokenizer_file_names={"spiece.model": "vocabulary.spm"},
        # KerasHub only applies the normalization that is stored in the SentencePiece model.
        tokenizer_settings={
            "do_lower_case": ("lowercase", False),
            "keep_accents": ("keep_accents", True),
        },
        tokenizer_arguments={"proto": "proto"},
        tokenizer_built_in={"lowercase": False, "keep_accents": True},
    ),
    "xlm-roberta": dataclasses.replace(
        _ROBERTA,
        backbone="XLMRobertaBackbone",
        heads={
            name: dataclasses.replace(head, task=f"XLM{head.task}")
            for name, head in _ROBERTA.heads.items()
        },
        tokenizer="XLMRobertaTokenizer",
        tokenizer_file_names={"sentencepiece.bpe.model": "vocabulary.spm"},
        tokenizer_settings={},
        tokenizer_arguments={"proto": "proto"},
    ),
    "deberta-v2": KerasHubNames(
        backbone="DebertaV3Backbone",
        built_in={
            "activation": "gelu",
            "layer_norm_epsilon": 1e-7,
            "terms": ["c2p", "p2c"],
            "convolution_width": 0,
        },
        groups={
            "embeddings.token_embedding": "reversible_embedding",
            "embeddings.norm": "layer_normalization",
            "relative_embedding": "relative_embedding",
            "relative_norm": "relative_embedding/layer_norm",
            **_name_block_groups(_DEBERTA_BLOCK, "_self_attention_layer/_{}_dense"),
        },
        heads={
            "ForSequenceClassification": KerasHubHead("DebertaV3TextClassifier", _CLASSIFIER),
            "ForMaskedLM": KerasHubHead("DebertaV3MaskedLM", _MASKED_LM, _MASKED_LM_BUILT_IN),
        },
        tokenizer="DebertaV3Tokenizer",
        tokenizer_file_names={"spm.model": "vocabulary.spm"},
        tokenizer_settings={},
        tokenizer_arguments={"proto": "proto"},
        arguments={
            "position_buckets": "bucket_size",
            "max_relative_positions": "max_sequence_length",
        },
        blocks={"blocks": _DEBERTA_BLOCK.removesuffix("_{}")},
    ),
    "bart": KerasHubNames(
        backbone="BartBackbone",
        built_in={
            "activation": "gelu",
            "activation_dropout": 0.0,
            "decoder_start_token_id": 2,
            "layer_norm_epsilon": 1e-5,
        },
        groups={
            "embeddings.token_embedding": "reversible_embedding",
            "embeddings.position_embedding": "position_embedding",
            "embeddings.norm": "layer_normalization",
            "decoder_embeddings.position_embedding": "position_embedding_1",
            "decoder_embeddings.norm": "layer_normalization_1",
            **_ENCODER,
            **_name_block_groups("transformer_decoder_{}", _PROJECTION, blocks="decoder_blocks"),
            **{
                f"decoder_blocks.{{}}.cross_attention.{name}_dense": (
                    f"transformer_decoder_{{}}/_cross_attention_layer/{name}_dense"
                )
                for name in _LAYERS
            },
            "decoder_blocks.{}.cross_norm": "transformer_decoder_{}/_cross_attention_layer_norm",
        },
        heads={},  # KerasHub only has a task for generating texts
        tokenizer="BartTokenizer",
        **_BYTE_BPE,
        arguments={"num_decoder_layers": "num_layers"},
        blocks={"blocks": "transformer_encoder", "decoder_blocks": "transformer_decoder"},
    ),
}
