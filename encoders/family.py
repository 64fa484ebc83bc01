"""Records that describe the differences between encoder families as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from encoder_zoo.common.validation import Rule
from encoder_zoo.common.wording import invalid, shown

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.tokenizers import TokenizerClass

LEARNING_RATE = 5e-5  # peak value in Devlin et al. 2019, appendix A.3
WEIGHT_DECAY = 0.01  # Devlin et al. 2019, appendix A.3
INITIALIZER_RANGE = 0.02  # standard deviation of new weights; Devlin et al. 2019, released code


def default_stddev(backbone: Backbone) -> float:
    """Return the standard deviation of BERT, which does not depend on the model size."""
    return INITIALIZER_RANGE


@dataclasses.dataclass(frozen=True)
class Hidden:
    """A dense layer with an activation before the output layer of a head.

    Attributes:
        dense: String. Name of the layer in the checkpoint.
        activation: String, see `layers.ACTIVATIONS`. If None, the activation of the backbone.
        activation_argument: String. The backbone argument that contains the activation.
        norm: String. Name of the LayerNorm after the dense layer. If None, there is no LayerNorm.
        bias: Boolean. Whether the dense layer and the LayerNorm have a bias.
        after_dropout: Boolean. Whether to also apply the dropout of the head before this layer.
        stddev: Function of a backbone. It returns the standard deviation of the initial weights,
            see `layers.initializer`.
    """

    dense: str
    activation: str | None = None
    activation_argument: str = "activation"
    norm: str | None = None
    bias: bool = True
    after_dropout: bool = False
    stddev: Callable[[Backbone], float] = default_stddev


@dataclasses.dataclass(frozen=True)
class PairHead:
    """A second pretraining head that classifies pairs of segments, next to the masked-LM head.

    Attributes:
        output: String. Name of the output layer in the checkpoint. Its input is `pooled_output`.
        objective: String. "next_sentence" predicts if the second segment is from another document.
            "sentence_order" predicts if the segments are swapped.
    """

    output: str
    objective: str


@dataclasses.dataclass(frozen=True)
class Head:
    """The layers between the backbone and the logits of a task.

    Attributes:
        output: String. Name of the output layer in the checkpoint. If None, there is no head.
        hidden: A `Hidden` layer before the output layer. If None, there is no such layer.
        pooled: Boolean. Whether the input is `pooled_output` instead of `sequence_output`.
        dropout: String. The key in config.json for the dropout rate before the output layer. If
            None, there is no dropout.
        default_dropout: Float. The dropout rate if config.json has no value. If None, the dropout
            rate of the backbone.
        tied_bias: String. Name of the output bias if the kernel is tied to the token embeddings.
        tied_bias_axes: Integer. Number of axes of the bias in the checkpoint. All axes except the
            last one have size 1.
        tied_bias_may_be_absent: Boolean. Whether a missing bias is replaced by zeros.
        first_norm: String. Name of a LayerNorm before all other layers. Its input is the sum of
            each token vector and the vector of the first token of the text.
        stddev: Function of a backbone. It returns the standard deviation of the initial output
            weights, see `Hidden`.
        pair: A `PairHead` for pretraining on pairs of segments. Defaults to None.
        beam: A `BeamHead` for spans. Checkpoints of another class have this head instead. Defaults
            to None.
        class_suffix: String. Suffix of the class name in transformers. If None, the key in
            `Family.heads`.
        auto_class: Boolean. Whether `AutoModelFor...` in transformers loads the class.
        has_crf: Boolean. Whether the head also has transition scores for pairs of tags.

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
    stddev: Callable[[Backbone], float] = default_stddev
    pair: PairHead | None = None
    beam: BeamHead | None = None
    class_suffix: str | None = None
    auto_class: bool = True
    has_crf: bool = False

    @property
    def tensors(self) -> dict[str, str]:
        """Map the attribute paths in the task to the names in the checkpoint."""
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


CRF = "crf"  # the name of a head with transition scores in checkpoints
CRF_SCORES = ("first", "between", "last")

MAX_TOP = 100  # the number of spans in a window is the product of two such values
TOP = Rule(lambda v: type(v) is int and 1 <= v <= MAX_TOP, f"an integer from 1 to {MAX_TOP}")
BEAM_RULES = {"start_n_top": TOP, "end_n_top": TOP}  # rules for fields of config.json


@dataclasses.dataclass(frozen=True)
class BeamHead(Head):
    """The layers that predict the start and the end of an answer, and "no answer".

    The layer `output` predicts the start positions. The best `start_n_top` of them are combined
    with `end_n_top` end positions each.

    Attributes:
        end: String. Name of the layers for end positions in the checkpoint.
        answer_class: String. Name of the layers for "no answer" in the checkpoint.

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
CUSTOM_HEAD = "custom_head"  # the name of the weights of a user-defined head in checkpoints


@dataclasses.dataclass(frozen=True)
class CustomHeadRecord(Head):
    """The record of a user-defined head, whose weights are saved by index.

    Attributes:
        num_weights: Integer. Number of weights.

    Example:
        >>> CustomHeadRecord.from_record(Head("classifier", pooled=True), 1).tensors
        {'head.layer.weights.0': 'custom_head.0'}
    """

    num_weights: int = 0

    @classmethod
    def from_record(cls, record: Head, num_weights: int) -> CustomHeadRecord:
        """Create the record of a head that reads the same inputs as the head of the family."""
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(Head)}
        return cls(**fields, num_weights=num_weights)

    @property
    def tensors(self) -> dict[str, str]:
        return {f"head.layer.weights.{i}": f"{CUSTOM_HEAD}.{i}" for i in range(self.num_weights)}


@dataclasses.dataclass(frozen=True)
class Generator:
    """The masked language model that generates replaced tokens for pretraining.

    Attributes:
        width: Float. Width as a fraction of the backbone width.
        depth: Float. Number of blocks as a fraction of the number in the backbone.
    """

    width: float = 0.25  # Clark et al. 2020, section 3.2: 1/4 to 1/2
    depth: float = 1.0


@dataclasses.dataclass(frozen=True)
class HeadAlias:
    """Another name for the head of a task in checkpoints.

    Attributes:
        head: String. The head of the task, see `Family.heads`.
        output: String. Name of the output layer in the checkpoint.
        labels: Tuple of strings. Names of the outputs.
    """

    head: str
    output: str
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Family:
    """A description of an encoder family and of its checkpoints.

    Attributes:
        name: String. The `model_type` in config.json.
        backbone: The `Backbone` subclass.
        class_prefix: String. Prefix of the class names in the `architectures` of a checkpoint.
        prefix: String. Prefix of the backbone tensors in the checkpoint of a task.
        tensors: Dictionary that maps attribute paths in the backbone to names in the checkpoint,
            with {} for the index of a block. A block that is shared by several layers is counted
            once.
        other_names: Dictionary that maps prefixes of tensor names in other checkpoints to prefixes
            in `tensors`. Longer prefixes come first. {} stands for the same number in both
            prefixes. All entries are applied in this order.
        fused: Dictionary that maps prefixes of tensor names in other checkpoints (after
            `other_names`) to the prefixes of the tensors that were concatenated, with the same
            number for {}.
        copies: Dictionary that maps additional tensors in checkpoints to the tensors that they
            duplicate.
        pretraining_only: Tuple of strings. Names of tensors that are only used in pretraining.
            transformers does not load them either.
        pooler: String. Name of the dense layer of the pooler, or None if checkpoints have no
            pooler.
        blocks: String. The backbone argument for the number of blocks with separate weights.
        config_keys: Dictionary that maps backbone arguments to keys in config.json.
        repeated_keys: Dictionary that maps a key in config.json to another key with the same value.
        key_aliases: Dictionary that maps alternative keys in config.json to the regular keys.
        read_config: Function that converts a config.json of any version of transformers to
            `config_keys`. It is called before `rules` are checked.
        rules: Dictionary that maps keys in config.json to rules for their values. It only contains
            keys that are specific to this family.
        constants: Dictionary of keys and values that are written to config.json, unless another
            field sets them.
        token_ids: Dictionary that maps keys in config.json to tokenizer attributes.
        positions_skip_padding: Boolean. Whether positions start after the padding id. In this case,
            the number of positions in config.json is larger.
        unused_positions: Integer. Number of rows before position 0 in the position table, which
            config.json does not count.
        tokenizer: Default tokenizer class if it is not specified in the checkpoint.
        uses_segments: Boolean. Whether the second text of a pair can have segment id 1.
        heads: Dictionary that maps suffixes of class names in transformers to the head of the task.
        aliases: Dictionary that maps suffixes of other class names to a `HeadAlias`.
        generator: A `Generator` for pretraining on replaced tokens.
        learning_rate: Float. Peak learning rate for fine-tuning, as recommended in the paper.
        weight_decay: Float. Weight decay of AdamW for fine-tuning, as recommended in the paper.
        layer_decay: Float. Ratio between the learning rates of a layer and of the layer above it,
            as recommended in the paper.
        tiny: Dictionary of backbone arguments for a small test model, in addition to the arguments
            that all families share.
    """

    name: str
    backbone: type[Backbone]
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
    aliases: Mapping[str, HeadAlias] = dataclasses.field(default_factory=dict)
    generator: Generator = Generator()
    learning_rate: float = LEARNING_RATE
    weight_decay: float = WEIGHT_DECAY
    layer_decay: float = 1.0
    tiny: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def read(self, config: Mapping) -> dict:
        """Convert a config.json of any version of transformers to `config_keys`.

        Args:
            config: Dictionary with the contents of config.json.

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
                    f"the value of {key}, {shown(config[key])}",
                )
        return self.read_config(config)

    def head(self, name: str) -> Head:
        """Return one of the `heads`, or `NO_HEAD` for "Model".

        Raises:
            ValueError: If the family has no such head.
        """
        if name == "Model":
            return NO_HEAD
        if name not in self.heads:
            raise invalid(
                "head", name, f"one of {', '.join(self.heads)} for the family {self.name!r}"
            )
        return self.heads[name]

    def class_name(self, head: str) -> str:
        """Return the name of the class in transformers for one of the `heads`, or for "Model"."""
        record = self.heads.get(head)
        return self.class_prefix + ((record and record.class_suffix) or head)

    @property
    def tied(self) -> dict[str, str]:
        """Map tensors to other tensors that they are tied to."""
        embedding = f"{self.tensors['embeddings.token_embedding']}.weight"
        tied = dict(self.copies)
        for head in self.heads.values():
            if head.tied_bias:
                tied[f"{head.output}.weight"] = embedding
                tied[f"{head.output}.bias"] = head.tied_bias
        return {name: twin for name, twin in tied.items() if name != twin}
