"""Dataclasses for encoder families, heads and checkpoint names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from encoder_zoo.common.validation import Rule
from encoder_zoo.common.wording import invalid, quote

if TYPE_CHECKING:
    from encoder_zoo.encoders.core import Encoder
    from encoder_zoo.encoders.tokenizers import TokenizerClass

LEARNING_RATE = 5e-5  # peak value in Devlin et al. 2019, appendix A.3
WEIGHT_DECAY = 0.01  # Devlin et al. 2019, appendix A.3


@dataclasses.dataclass(frozen=True)
class Hidden:
    """Describes a dense layer with an activation, before the output layer of a head.

    Attributes:
        dense: String. Layer name in the checkpoint.
        activation: String. See `layers.ACTIVATIONS`. By default, the backbone activation is used.
        activation_argument: String. The backbone argument that contains the activation.
        norm: Optional string. Name of a LayerNorm after the dense layer. If None, there is no
            LayerNorm.
        bias: Boolean. Whether the dense layer and the LayerNorm have a bias.
        after_dropout: Boolean. Whether to also apply dropout before this layer.
        stddev: Optional function that takes a backbone and returns the standard deviation for
            initial weights. If None, the value of BERT is used.
    """

    dense: str
    activation: str | None = None
    activation_argument: str = "activation"
    norm: str | None = None
    bias: bool = True
    after_dropout: bool = False
    stddev: Callable[[Encoder], float] | None = None


@dataclasses.dataclass(frozen=True)
class PairHead:
    """Describes the pretraining head that classifies pairs of segments.

    Attributes:
        output: String. Name of the output layer in the checkpoint. Its input is `pooled_output`.
        objective: String. Use "next_sentence" to predict whether the second segment is from another
            document, or "sentence_order" to predict whether the segments are swapped.
    """

    output: str
    objective: str


@dataclasses.dataclass(frozen=True)
class Head:
    """Describes the head of a task, which consists of all layers after the backbone.

    Attributes:
        output: Optional string. Name of the output layer in the checkpoint. None for tasks without
            a head.
        hidden: Optional `Hidden` layer to add before the output layer.
        pooled: Boolean. Whether to use `pooled_output` as input instead of `sequence_output`.
        dropout: Optional string. Key in config.json of the dropout rate before the output layer. If
            None, there is no dropout.
        default_dropout: Optional float. Dropout rate if config.json does not contain one. If None,
            the dropout rate of the backbone is used.
        tied_bias: Optional string. Name of the output bias in the checkpoint, if the kernel is tied
            to the token embeddings.
        tied_bias_axes: Integer. Number of axes of the tied bias in the checkpoint. All axes except
            the last have size 1.
        tied_bias_may_be_absent: Boolean. Whether to use zeros if the tied bias is missing in a
            checkpoint.
        first_norm: Optional string. Name of a LayerNorm before all other layers. Its input is the
            sum of each token vector and the vector of the first token in the text.
        stddev: Optional function that takes a backbone and returns the standard deviation for
            initial output weights. See `Hidden`.
        pair: Optional `PairHead` for pretraining on pairs of segments.
        beam: Optional `BeamHead`. It is used instead of this head for checkpoints that contain its
            layers, such as `XLNetForQuestionAnswering`.
        class_suffix: Optional string. Suffix of class names in transformers. If None, the key in
            `Family.heads` is used.
        auto_class: Boolean. Whether `AutoModelFor...` in transformers can load the class.
        has_crf: Boolean. Whether the head has transition scores for pairs of tags.
        output_bias: Boolean. Whether the output layer has a bias.
        global_tokens: Optional string. The tokens that attend to all tokens if the family has local
            and global attention: "first", "first_text" or "second_text". None for no tokens.

    Example:
        >>> Head("classifier.out_proj", Hidden("classifier.dense", "tanh")).tensors
        {'head.hidden.dense': 'classifier.dense', 'head.output_dense': 'classifier.out_proj'}
    """

    output: str | None
    hidden: Hidden | None = None
    pooled: bool = False
    dropout: str | None = None
    default_dropout: float | None = None
    tied_bias: str | None = None
    tied_bias_axes: int = 1
    tied_bias_may_be_absent: bool = False
    first_norm: str | None = None
    stddev: Callable[[Encoder], float] | None = None
    pair: PairHead | None = None
    beam: BeamHead | None = None
    class_suffix: str | None = None
    auto_class: bool = True
    has_crf: bool = False
    output_bias: bool = True
    global_tokens: str | None = None

    @property
    def tensors(self) -> dict[str, str]:
        """Dict mapping attribute paths of head weights to tensor names in the checkpoint."""
        if self.output is None:
            return {}
        names = {"head.first_norm": self.first_norm} if self.first_norm else {}
        if self.hidden:
            names["head.hidden.dense"] = self.hidden.dense
            if self.hidden.norm:
                names["head.hidden.norm"] = self.hidden.norm
        if self.pair:
            names["pair_head.output_dense"] = self.pair.output
        if self.tied_bias:
            return {**names, "head.bias": self.tied_bias}
        if self.has_crf:
            names |= {f"transitions.{part}": f"{CRF}.{part}" for part in CRF_SCORES}
        return {**names, "head.output_dense": self.output}


def map_attention_names(ours: str, theirs: str, output: str = "o") -> dict[str, str]:
    """Map the dense layers of an attention layer to checkpoint names that contain q, k, v and o.

    Args:
        ours: String. Attribute path of the attention layer in the backbone.
        theirs: String. Checkpoint name, in which "*" stands for the letter.
        output: String. The name of the output layer instead of "o".

    Example:
        >>> list(map_attention_names("attention", "attn.*_proj", "out").items())[2:]
        [('attention.value_dense', 'attn.v_proj'), ('attention.output_dense', 'attn.out_proj')]
    """
    names = {"query": "q", "key": "k", "value": "v", "output": output}
    return {f"{ours}.{name}_dense": theirs.replace("*", part) for name, part in names.items()}


def remove_head_width(
    config: dict, field: str, width: str = "hidden_size", heads: str = "num_attention_heads"
) -> None:
    """Remove the field for the width of a head if the value only repeats width / heads.

    Args:
        config: Dictionary with the contents of config.json, which is modified.
        field, width, heads: Strings. The names of the fields.

    Example:
        >>> config = {"hidden_size": 8, "num_attention_heads": 2, "head_dim": 4}
        >>> remove_head_width(config, "head_dim")
        >>> config
        {'hidden_size': 8, 'num_attention_heads': 2}
    """
    size, count = config.get(width), config.get(heads)
    is_known = type(size) is type(count) is int and count > 0
    if is_known and config.get(field) == size / count:
        del config[field]


CRF = "crf"  # name used in checkpoints for a head with transition scores
CRF_SCORES = ("first", "between", "last")

MAX_TOP = 100  # the number of spans in a window is `start_n_top` times `end_n_top`
TOP = Rule(lambda v: type(v) is int and 1 <= v <= MAX_TOP, f"an integer from 1 to {MAX_TOP}")
BEAM_RULES = {"start_n_top": TOP, "end_n_top": TOP}  # rules for fields of config.json


@dataclasses.dataclass(frozen=True)
class BeamHead(Head):
    """Describes the question answering head of XLNet: layers for start, end and "no answer".

    The layer `output` predicts start positions. Each of the best `start_n_top` positions is then
    combined with `end_n_top` end positions.

    Attributes:
        end: String. Prefix of the layers for end positions in the checkpoint.
        answer_class: String. Prefix of the layers for "no answer" in the checkpoint.

    Source: Yang et al. 2019, XLNet, the released code.

    Example:
        >>> head = BeamHead("start_logits.dense", end="end_logits", answer_class="answer_class")
        >>> head.tensors["head.end_hidden.dense"]
        'end_logits.dense_0'
    """

    end: str = ""
    answer_class: str = ""
    class_suffix: str | None = "ForQuestionAnswering"
    auto_class: bool = False

    @property
    def tensors(self) -> dict[str, str]:
        return {
            "head.start_dense": self.output,
            "head.end_hidden.dense": f"{self.end}.dense_0",
            "head.end_hidden.norm": f"{self.end}.LayerNorm",
            "head.end_dense": f"{self.end}.dense_1",
            "head.no_answer_hidden.dense": f"{self.answer_class}.dense_0",
            "head.no_answer_dense": f"{self.answer_class}.dense_1",
        }


NO_HEAD = Head(None, class_suffix="Model")  # for tasks without weights
CUSTOM_HEAD = "custom_head"  # name used in checkpoints for user-defined heads


@dataclasses.dataclass(frozen=True)
class CustomHeadRecord(Head):
    """Describes a user-defined head. Weights are saved by index.

    Attributes:
        num_weights: Integer. Number of weights that are saved.

    Example:
        >>> CustomHeadRecord.from_record(Head("classifier", pooled=True), 1).tensors
        {'head.layer.weights.0': 'custom_head.0'}
    """

    num_weights: int = 0

    @classmethod
    def from_record(cls, record: Head, num_weights: int) -> CustomHeadRecord:
        """Create a record for a custom head that has the same inputs as the head of `record`."""
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(Head)}
        return cls(**fields, num_weights=num_weights)

    @property
    def tensors(self) -> dict[str, str]:
        return {f"head.layer.weights.{i}": f"{CUSTOM_HEAD}.{i}" for i in range(self.num_weights)}


@dataclasses.dataclass(frozen=True)
class Generator:
    """Describes the generator for replaced-token pretraining, which is a masked language model.

    Attributes:
        width: Float. The width, as a fraction of the backbone width.
        depth: Float. The number of blocks, as a fraction of the blocks in the backbone.
    """

    width: float = 0.25  # Clark et al. 2020, section 3.2: 1/4 to 1/2
    depth: float = 1.0


@dataclasses.dataclass(frozen=True)
class HeadAlias:
    """Describes an alternative class name for the head of a task in checkpoints.

    Attributes:
        head: String. Key of the head in `Family.heads`.
        output: String. Name of the output layer in the checkpoint.
        labels: Tuple of strings. Names of the outputs.
    """

    head: str
    output: str
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Family:
    """Describes an encoder family, including the names and fields in checkpoints.

    Attributes:
        name: String. Value of `model_type` in config.json.
        backbone: The subclass of `Backbone`.
        class_prefix: String. Prefix of the class names in `architectures`.
        prefix: String. Prefix of the tensors of the backbone in task checkpoints.
        tensors: Dictionary that maps attribute paths in the backbone to checkpoint names. {} is
            replaced by the block index. Blocks that are shared between layers are only counted
            once.
        other_names: Dictionary that maps alternative tensor name prefixes to prefixes in `tensors`.
            Longer prefixes come first, and all entries are applied in this order. {} stands for the
            same number in both prefixes.
        fused: Dictionary that maps alternative tensor name prefixes (after `other_names`) to a
            tuple with the prefixes of the tensors that were concatenated. {} stands for the same
            number.
        copies: Dictionary that maps additional tensors in checkpoints to identical tensors.
        pretraining_only: Tuple of strings. Names of tensors that are only needed for pretraining.
            These tensors are also ignored by transformers.
        pooler: Optional string. Name of the dense layer in the pooler, or None if checkpoints
            contain no pooler.
        blocks: String. The backbone argument that sets the number of blocks with separate weights.
        config_keys: Dictionary that maps backbone arguments to keys in config.json.
        repeated_keys: Dictionary that maps keys in config.json to other keys with the same value.
        key_aliases: Dictionary that maps alternative keys in config.json to regular keys.
        read_config: A function that converts config.json from any version of transformers to the
            keys in `config_keys`. It is called before `rules` are checked.
        rules: Dictionary that maps keys in config.json to rules for valid values. Only keys that
            are specific to this family are needed.
        constants: Dictionary with additional keys and values to write to config.json. They can be
            overridden by other fields.
        token_ids: Dictionary that maps keys in config.json to tokenizer attributes.
        positions_skip_padding: Boolean. Whether positions start after the padding id, in which case
            config.json contains a larger number of positions.
        unused_positions: Integer. Number of unused rows at the start of the position table, which
            config.json does not count.
        tokenizer: The default tokenizer class.
        uses_segments: Boolean. Whether the second text in a pair can have segment id 1.
        uses_global_mask: Boolean. Whether the input "global_mask" can select tokens that attend to
            all tokens.
        heads: Dictionary that maps class name suffixes in transformers to task heads.
        aliases: Dictionary that maps alternative class name suffixes to a `HeadAlias`.
        generator: The `Generator` for pretraining with replaced tokens.
        learning_rate: Float. Peak learning rate for fine-tuning that the paper recommends.
        weight_decay: Float. Weight decay (AdamW) for fine-tuning that the paper recommends.
        layer_decay: Float. Factor that reduces the learning rate of each lower layer, as the paper
            recommends.
        tiny: Dictionary. Arguments for a small backbone in tests, in addition to the arguments that
            all families share.
    """

    name: str
    backbone: type[Encoder]
    class_prefix: str
    prefix: str
    tensors: Mapping[str, str]
    config_keys: Mapping[str, str]
    tokenizer: TokenizerClass
    heads: Mapping[str, Head]
    other_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    pretraining_only: tuple[str, ...] = ()
    pooler: str | None = None
    blocks: str = "num_layers"
    repeated_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    key_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    read_config: Callable[[Mapping], dict] = dict
    rules: Mapping[str, Rule] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, object] = dataclasses.field(default_factory=dict)
    token_ids: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"pad_token_id": "pad_token_id"}
    )
    positions_skip_padding: bool = False
    unused_positions: int = 0
    uses_segments: bool = False
    uses_global_mask: bool = False
    aliases: Mapping[str, HeadAlias] = dataclasses.field(default_factory=dict)
    generator: Generator = Generator()
    learning_rate: float = LEARNING_RATE
    weight_decay: float = WEIGHT_DECAY
    layer_decay: float = 1.0
    tiny: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def read(self, config: Mapping) -> dict:
        """Convert config.json from any version of transformers to the keys in `config_keys`.

        Args:
            config: Dictionary with the content of config.json.

        Raises:
            ValueError: If a key and its alias have different values. See also `read_config`.

        Example:
            >>> from encoder_zoo.encoders import get_family
            >>> get_family("distilbert").read({"hidden_size": 8})["dim"]
            8
        """
        config = dict(config)
        for alias, key in self.key_aliases.items():
            if alias in config and config[alias] != config.setdefault(key, config[alias]):
                raise invalid(
                    f"config.json: {alias}",
                    config[alias],
                    f"the value of {key}, {quote(config[key])}",
                )
        return self.read_config(config)

    def get_head(self, name: str) -> Head:
        """Return the head with this name, or `NO_HEAD` for "Model".

        Raises:
            ValueError: If the family has no head with this `name`.
        """
        if name == "Model":
            return NO_HEAD
        if name not in self.heads:
            raise invalid(
                "head", name, f"one of {', '.join(self.heads)} for the family {self.name!r}"
            )
        return self.heads[name]

    def get_class_name(self, head: str) -> str:
        """Return the class name in transformers for a head in `heads`, or for "Model"."""
        record = self.heads.get(head)
        return self.class_prefix + ((record and record.class_suffix) or head)

    @property
    def tied(self) -> dict[str, str]:
        """Dict mapping the names of tied tensors to the names of the original tensors."""
        embedding = f"{self.tensors['embeddings.token_embedding']}.weight"
        tied = dict(self.copies)
        for head in self.heads.values():
            if head.tied_bias:
                tied[f"{head.output}.weight"] = embedding
                tied[f"{head.output}.bias"] = head.tied_bias
        return {name: twin for name, twin in tied.items() if name != twin}
