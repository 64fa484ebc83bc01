"""Records of the differences between families of encoders, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from encoder_zoo.common.validation import Rule
from encoder_zoo.common.wording import invalid, shown

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.tokenizers import TokenizerClass

LEARNING_RATE = 5e-5  # peak; of Devlin et al. 2019, appendix A.3
WEIGHT_DECAY = 0.01  # likewise
INITIALIZER_RANGE = 0.02  # standard deviation of new weights; Devlin et al. 2019, released code


def default_stddev(backbone: Backbone) -> float:
    """Return BERT's standard deviation, independent of the backbone's sizes."""
    return INITIALIZER_RANGE


@dataclasses.dataclass(frozen=True)
class Hidden:
    """A dense layer with an activation, between the backbone and the output layer of a head.

    Attributes:
        dense: name of the layer in the checkpoint.
        activation: see `layers.ACTIVATIONS`; None for the backbone's.
        activation_argument: the backbone's argument that says which one that is.
        norm: name of the LayerNorm after it, if there is one.
        bias: whether the dense layer and the LayerNorm have a bias.
        after_dropout: whether the head's dropout is applied before this layer, too.
        stddev: returns that of its initial weights, see `layers.initializer`, for a backbone.
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
    """The second head of pretraining, for pairs of segments, beside the masked-LM head.

    Attributes:
        output: name of the output layer in the checkpoint; its input is `pooled_output`.
        objective: "next_sentence" predicts whether the second segment is from another document,
            "sentence_order" whether the two are swapped.
    """

    output: str
    objective: str


@dataclasses.dataclass(frozen=True)
class Head:
    """The layers between a family's backbone and the logits of one task.

    Attributes:
        output: name of the output layer in the checkpoint; None if there is no head.
        hidden: the layer before it, if there is one.
        pooled: whether the input is `pooled_output` instead of `sequence_output`.
        dropout: key in config.json of the dropout before the output layer; None for no dropout.
        default_dropout: the rate if config.json has none; None for the backbone's.
        tied_bias: name of the output layer's bias, if its kernel is tied to the token embedding.
        tied_bias_axes: number of its axes in the checkpoint; those before the last have size 1.
        tied_bias_may_be_absent: whether it is zero where the checkpoint has none.
        first_norm: name of a LayerNorm before the other layers, of the sum of each token's vector
            and that of its text's first token.
        stddev: of the output layer's new weights, as for `Hidden`.
        pair: the second head of pretraining, for pairs of segments.
        beam: of spans, the head with a beam, (start_n_top, end_n_top), that checkpoints of another
            class have instead.
        class_suffix: end of the name of transformers' class; None: as in `Family.heads`.
        auto_class: whether transformers' `AutoModelFor...` of the task opens that class.
        has_crf: whether scores of pairs of tags are beside the output layer.

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
        """Return {attribute path in the task: name in the checkpoint}."""
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


CRF = "crf"  # name in checkpoints of a head with scores of pairs of tags
CRF_SCORES = ("first", "between", "last")

MAX_TOP = 100  # the number of spans of a window is the product of two
TOP = Rule(lambda v: type(v) is int and 1 <= v <= MAX_TOP, f"an integer from 1 to {MAX_TOP}")
BEAM_RULES = {"start_n_top": TOP, "end_n_top": TOP}  # of fields of config.json


@dataclasses.dataclass(frozen=True)
class BeamHead(Head):
    """The layers for the start position of an answer, its end position after it, and "no answer".

    `output` is the layer for start positions, of which `start_n_top` are tried, each with
    `end_n_top` end positions.

    Attributes:
        end: name in the checkpoint of the layers for end positions.
        answer_class: of the layers for "no answer".

    Source: Yang et al. 2019, XLNet, the code released with it.

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


NO_HEAD = Head(None, class_suffix="Model")  # of tasks without weights
CUSTOM_HEAD = "custom_head"  # name in checkpoints of the weights of a head that a user made


@dataclasses.dataclass(frozen=True)
class CustomHeadRecord(Head):
    """The record of a head that a user made, whose weights are saved by their numbers.

    Attributes:
        num_weights: how many it has.

    Example:
        >>> CustomHeadRecord.of(Head("classifier", pooled=True), 1).tensors
        {'head.layer.weights.0': 'custom_head.0'}
    """

    num_weights: int = 0

    @classmethod
    def of(cls, record: Head, num_weights: int) -> CustomHeadRecord:
        """Return the record of a head that reads what the family's own head reads."""
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(Head)}
        return cls(**fields, num_weights=num_weights)

    @property
    def tensors(self) -> dict[str, str]:
        return {f"head.layer.weights.{i}": f"{CUSTOM_HEAD}.{i}" for i in range(self.num_weights)}


@dataclasses.dataclass(frozen=True)
class Generator:
    """The masked language model in pretraining on replaced tokens.

    Attributes:
        width: as a share of the backbone's width.
        depth: number of blocks, as a share of the backbone's.
    """

    width: float = 0.25  # Clark et al. 2020, section 3.2: a quarter to a half
    depth: float = 1.0


@dataclasses.dataclass(frozen=True)
class HeadAlias:
    """Another name of a task's head in checkpoints.

    Attributes:
        head: the task's, see `Family.heads`.
        output: name of the output layer in the checkpoint.
        labels: of its outputs.
    """

    head: str
    output: str
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Family:
    """The differences between a family of encoders and others, as data.

    Attributes:
        name: of the family, as the `model_type` in config.json.
        backbone: the `Backbone` subclass.
        class_prefix: of the class names in a checkpoint's `architectures`.
        prefix: of the backbone's tensors in the checkpoint of a task.
        tensors: {attribute path in the backbone, with {} for a block's index: name in the
            checkpoint}. A block that several layers share is counted once.
        other_names: {prefix of tensor names in other checkpoints: prefix in `tensors`}; longer
            prefixes first. {} stands for the same number in both. All are applied, in this order.
        fused: {prefix of tensor names in other checkpoints, after `other_names`: prefixes of the
            tensors whose rows it holds, one after the other, with the same number at {}}.
        copies: {tensor that checkpoints may hold besides: the tensor that it equals}.
        pretraining_only: names of the encoder's tensors that only its pretraining used;
            transformers does not load them either.
        pooler: name of the pooler's dense layer, if checkpoints have one.
        blocks: the backbone argument with the number of blocks with tensors of their own.
        config_keys: {backbone argument: key in config.json}.
        repeated_keys: {key in config.json: another key, whose value it must have}.
        key_aliases: {other name of a key in config.json: its own name}.
        read_config: converts a config.json of any version of transformers to one with
            `config_keys`, before `rules` are checked.
        rules: {key in config.json: rule of its value}, for keys of this family only.
        constants: {key in config.json: value written}, unless another field sets it.
        token_ids: {key in config.json: attribute of the tokenizer} to write.
        positions_skip_padding: whether positions count from the number after the padding id, so
            that config.json has as many positions more.
        unused_positions: rows of the position table before that of position 0, which config.json
            does not count.
        tokenizer: class of the tokenizer, if the files of a checkpoint do not tell.
        uses_segments: whether the second text of a pair may have segment id 1.
        heads: {suffix of the class in transformers: the task's head}.
        aliases: {suffix of another class: its head}.
        generator: of pretraining on replaced tokens.
        learning_rate: recommended peak in fine-tuning, of the paper.
        weight_decay: of AdamW in fine-tuning, likewise.
        layer_decay: ratio of a layer's learning rate to that of the layer above, likewise.
        tiny: backbone arguments of a small model for tests, beside those of all families.
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
        """Return a config.json of any version of transformers with `config_keys`.

        Args:
            config: its contents.

        Raises:
            ValueError: If two names of one key have two values. See also `read_config`.

        Example:
            >>> from encoder_zoo.encoders import get_family
            >>> get_family("distilbert").read({"hidden_size": 8})["dim"]
            8
        """
        config = dict(config)
        for alias, key in self.key_aliases.items():
            if alias in config and config[alias] != config.setdefault(key, config[alias]):
                raise invalid(
                    f"config.json: {alias}", config[alias], f"that of {key}, {shown(config[key])}"
                )
        return self.read_config(config)

    def head(self, name: str) -> Head:
        """Return one of `heads`; `NO_HEAD` for "Model".

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
        """Return the name of transformers' class for one of `heads`, or for "Model"."""
        record = self.heads.get(head)
        return self.class_prefix + ((record and record.class_suffix) or head)

    @property
    def tied(self) -> dict[str, str]:
        """Return {tensor that is tied to another one: the other one}."""
        embedding = f"{self.tensors['embeddings.token_embedding']}.weight"
        tied = dict(self.copies)
        for head in self.heads.values():
            if head.tied_bias:
                tied[f"{head.output}.weight"] = embedding
                tied[f"{head.output}.bias"] = head.tied_bias
        return {name: twin for name, twin in tied.items() if name != twin}
