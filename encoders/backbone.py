"""The backbone: the encoder with kernels, checks of its inputs, presets and ways of training it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import (
    CommitMessage,
    PresetArguments,
    Repository,
    SaveOptions,
)
from encoder_zoo.common.configuration import argument_names, signature_of_arguments
from encoder_zoo.common.keras_private import (
    opens_training,
)
from encoder_zoo.common.lazy import LazyModule, refuse_in_fork
from encoder_zoo.common.validation import PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.common.variable_names import variables_named_alike
from encoder_zoo.common.weights_lock import (
    changes_weights,
    locks_weights,
    reads_weights,
    weights_lock,
)
from encoder_zoo.common.wording import ForeignName
from encoder_zoo.encoders.attention_masks import AttentionMask
from encoder_zoo.encoders.core import Encoder, SelfAttention
from encoder_zoo.encoders.inputs import INPUTS, TASK_INPUTS, check_inputs
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.encoders.kernels.attention import FastAttention
from encoder_zoo.encoders.training import (
    call_block,
    choose_layers,
    current_updates,
    megatron_layout,
    recomputed,
    train_updates,
)

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.family import Family
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

# Above the backbones, whose `from_preset`, `save_to_preset` and `push_to_hub` call them.
loading = LazyModule("encoder_zoo.presets.loading")
saving = LazyModule("encoder_zoo.presets.saving")
pushing = LazyModule("encoder_zoo.presets.pushing")


class BackbonePresetArguments(PresetArguments, total=False):
    """Name arguments of `Backbone.from_preset`, of all families, that change no weight's shape."""

    dtype: str | keras.DTypePolicy
    dropout: float
    attention_dropout: float
    activation: str
    layer_norm_epsilon: float
    num_heads: int
    pooler: bool
    pad_token_id: int  # RoBERTa and families after it
    sinusoidal_positions: bool  # DistilBERT
    embedding_dropout: float  # ModernBERT
    classifier_activation: str
    local_attention: int
    global_every: int
    global_rope_theta: float
    local_rope_theta: float
    pooling: str | Sequence[str]
    max_relative_positions: int  # DeBERTa
    convolution_activation: str
    pooler_activation: str
    summary_activation: str | None  # ELECTRA, XLNet
    activation_dropout: float  # BART
    decoder_start_token_id: int
    trained_length: int  # NomicBERT
    rope_theta: float  # and GTE, EuroBERT
    rope_scaling: Mapping[str, object]


class _BuiltAtOnce(type(keras.Model)):
    """Metaclass that applies a class's `defaults`, and builds a model after the last `__init__`."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """Return the arguments of a class and its bases, as `help` and editors show them."""
        return signature_of_arguments(cls)

    def __call__(cls, *args, **kwargs):
        refuse_in_fork()
        with variables_named_alike():
            model = super().__call__(*args, **{**cls.defaults, **kwargs})
            model.build((None, None))
        return model


@keras.saving.register_keras_serializable(package="encoder_zoo")
@opens_training
@locks_weights
class Backbone(Encoder, metaclass=_BuiltAtOnce):
    """Base of the families' encoders; `Backbone.from_preset` picks the right one.

    A family that differs overrides `make_embeddings`, `make_block`, `make_final_layer`,
    `block_contexts` and others of `Encoder`, where the formulas are.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of encoder blocks.
        num_heads: H, attention heads of each block.
        hidden_dim: D, width of the model; a multiple of `num_heads`.
        intermediate_dim: F, width of the feed-forward nets.
        dropout: share of embeddings and sublayer outputs dropped in training.
        attention_dropout: share of attention probabilities dropped in training.
        activation: of the feed-forward nets; "gelu" is the exact one, see `layers.ACTIVATIONS`.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        max_sequence_length: largest number of tokens of an example.
        num_segments: number of segment ids.
        pooler: whether there is a pooler; without one there is no `pooled_output`.

    Call arguments:
        inputs: `{"token_ids", "padding_mask", "segment_ids"}`, each (B, L) int or bool.
            `padding_mask` is 1 at real tokens; without it every token is real.
            Without `segment_ids` every token is in segment 0.
            Packed examples, which hold several texts, have "text_starts", (B, K) int, the
            positions where the texts begin; those of fewer than K texts are filled up with L. The
            outputs are those of the texts in examples of their own.
            "attended_mask", (B, L), is 0 at tokens that no token attends to, though they have
            outputs; without it, it is `padding_mask`.
        return_hidden_states: whether to return the input and output of all blocks.
        return_projections: whether to return the last block's queries, keys and values.

    Returns:
        `{"sequence_output": (B, L, D), "pooled_output": (B, D)}`; with "text_starts"
        `pooled_output` is (B, K, D). With `return_hidden_states` also "hidden_states", a list of
        `num_layers + 1` tensors (B, L, D), the last of which is the sequence output. With
        `return_projections` also "projections", the queries, keys and values of the last block's
        H heads, each (B, L, H, D/H).

    Attributes:
        embeddings: the layer before the blocks.
        blocks: list of the blocks, in their order; in some families one block has several indices.
            Those of a decoder, where there is one, are the last.
        pooler_is_new: whether the pooler has its first, random weights beside those of a checkpoint
            without one; `fit` trains it, and sets this to False.

    Example:
        >>> import numpy as np
        >>> import encoder_zoo as ez
        >>> backbone = ez.Backbone.from_preset("bert_nano_en_uncased")
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])}, return_hidden_states=True)
        >>> len(outputs["hidden_states"]) == len(backbone.blocks) + 1
        True
    """

    family: Family
    defaults: ClassVar[Mapping[str, object]] = {}  # of a subclass, instead of those of `__init__`
    pools_logits = False  # whether a classifier's logits are the mean of those of all tokens
    # Whether tokens are predicted in an order, each from those before it, by `predictions`.
    predicts_in_order = False
    decoder_blocks = ()  # those of `blocks` that are a decoder's, the last ones
    pooler_is_new = False
    checkpoint_vocabulary = None  # see presets.origin.Vocabulary
    origin = None  # see presets.origin
    layers_version = 0  # grows whenever functions that were traced before are of other layers
    _checkpoints_gradients = False
    _was_loaded = False  # from a file of Keras

    @property
    def fixed_settings(self) -> tuple[str, ...]:
        """Return the arguments that cannot be set later: the layers are made with all of them."""
        return tuple(argument_names(type(self)))

    @property
    def has_random_weights(self) -> bool:
        """Return whether the weights are the first ones: neither loaded, set nor trained."""
        return self.origin is None and not self._was_loaded and not self.weights_version

    def load_own_variables(self, store) -> None:
        """Load as Keras does, and note that the weights are of a file."""
        super().load_own_variables(store)
        self._was_loaded = True

    @property
    def weights_version(self) -> int:
        """Return a number that grows whenever weights may have changed."""
        return weights_lock(self).version

    def make_layer(
        self, kind: type[keras.layers.Layer], name: str, **arguments
    ) -> keras.layers.Layer:
        """Return a layer with the backbone's settings; blocks get the fastest attention."""
        layer = super().make_layer(kind, name, **arguments)
        if getattr(layer, "attention_class", None) is SelfAttention:
            layer.attention_class = FastAttention
        return layer

    def attention_mask(
        self, inputs: Mapping, max_distance: int | None = None
    ) -> AttentionMask | keras.KerasTensor | None:
        """Return which tokens may attend to which; a matrix, which is less to trace, if possible.

        None, as the matrix of texts without padding: kernels are faster without a mask.

        Args:
            inputs: as for `block_contexts`.
            max_distance: the largest distance at which one attends to another; None: any.
        """
        mask = super().attention_mask(inputs, max_distance)
        return mask if self.max_sequence_length > long_attention.SHORT else mask.matrix()

    def _run_block(self, block, x, context, training):
        if training and self._checkpoints_gradients:
            return recomputed(block, x, context)  # the same numbers, with less memory
        return call_block(block, x, context, training)

    def __call__(self, inputs, *args, **kwargs):
        check_inputs(inputs, (*INPUTS, *TASK_INPUTS), type(self).__name__)
        return super().__call__(inputs, *args, **kwargs)

    def _encode_embedded(self, embedded, inputs: Mapping) -> dict:
        """Return the outputs for other inputs of the first block than those of `_embed`.

        Args:
            embedded: (B, L, D).
            inputs: as for calling the backbone.
        """
        states, _, _ = self._encode(inputs, embedded=embedded)
        return self._outputs_of(states[-1], inputs)

    def text_vectors(self, sequence_output, inputs: Mapping):
        """Return the input of heads without a pooler, (B, D): the first token's output."""
        return sequence_output[:, 0]

    def attention_probabilities(self, inputs: Mapping) -> keras.KerasTensor:
        """Return how much every token attends to every other one.

        Args:
            inputs: as for calling the backbone.

        Returns:
            (B, num_layers, H, L, L) float; each last axis sums to 1.
        """
        _, probabilities, _ = self._encode(inputs, return_probabilities=True)
        return ops.stack(probabilities, axis=1)

    @classmethod
    def sharing_embeddings(cls, other: Backbone, **arguments) -> Self:
        """Return a backbone that shares the embedding tables of another.

        Saving separates them.

        Args:
            other: a backbone with embeddings of the same width.
            **arguments: of the new backbone.

        Example:
            >>> from encoder_zoo import ElectraBackbone
            >>> large = ElectraBackbone(30, 2, 2, hidden_dim=8, intermediate_dim=16)
            >>> small = ElectraBackbone.sharing_embeddings(
            ...     large, vocabulary_size=30, num_layers=1, num_heads=1, hidden_dim=4,
            ...     intermediate_dim=8, embedding_dim=8,
            ... )
            >>> small.embeddings.token_embedding is large.embeddings.token_embedding
            True
        """
        backbone = type.__call__(cls, **{**cls.defaults, **arguments})  # not built yet
        embeddings = backbone.make_embeddings()
        embeddings.share_tables(other.embeddings)
        backbone.make_embeddings = lambda: embeddings
        backbone.build((None, None))
        return backbone

    @classmethod
    def least_weights(cls, config: Mapping) -> int:
        """Return how many numbers the large matrices of a configuration have, if not more."""
        hidden = config["hidden_dim"]
        tables = {"token": "vocabulary_size", "position": "max_sequence_length"}
        tables["segment"] = "num_segments"
        known = [n for t, n in tables.items() if f"embeddings.{t}_embedding" in cls.family.tensors]
        rows = sum(config.get(name) or 0 for name in known)
        of_tables = rows * (config.get("embedding_dim") or hidden)
        of_block = 2 * hidden * (hidden + config["intermediate_dim"])
        return of_tables + config[cls.family.blocks] * of_block

    def build_from_config(self, config):
        """Do nothing: the metaclass has built the backbone."""

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """(B, L, D), for `summary()`."""
        return (None, None, self.hidden_dim)

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return the smallest and the largest value of each input.

        Args:
            length: L, of the examples.

        Example:
            >>> from encoder_zoo import RobertaBackbone
            >>> backbone = RobertaBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
            >>> backbone.input_ranges(length=3)["token_ids"]
            (0, 29)
        """
        # With a single segment, its embedding is that of all tokens, whatever the ids are.
        segments = max(self.num_segments, 2 if self.family.uses_segments else 1)
        ranges = (0, self.vocabulary_size - 1), (0, 1), (0, segments - 1), (0, length), (0, 1)
        return dict(zip(INPUTS, ranges, strict=True))

    if not TYPE_CHECKING:  # so that editors do not offer them
        from_pretrained = ForeignName("from_preset(source)")
        save_pretrained = ForeignName("save_to_preset(folder)")

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **overrides: Unpack[BackbonePresetArguments]
    ) -> Self:
        """Load a backbone from a bundled preset or a checkpoint folder.

        Args:
            source: a name of `list_presets()`, a folder in the Hugging Face format, of KerasHub or
                of Google's BERT code, `hf://organisation/name[@revision]`, or `kaggle://...`.
            **overrides: constructor arguments that leave the weights' shapes alone, such as
                `dropout=0.0` or `dtype="mixed_bfloat16"`; and options of the checks: `verify`,
                `max_bytes`, `allow_nonfinite`, see `presets.opening.Safeguards`.

        Returns:
            A backbone of the checkpoint's family. A subclass of yours, such as of `BertBackbone`,
            gets the checkpoint's weights too; those that it adds keep their initial values, which
            is logged.

        Raises:
            ValueError: If the checkpoint is of another family than the class, or has missing or
                unexpected weights.
        """
        return loading.load_backbone(cls, source, **overrides)

    @classmethod
    def from_keras_hub(
        cls, model: keras.Model, **overrides: Unpack[BackbonePresetArguments]
    ) -> Self:
        """Return a backbone with the weights, settings and dtype policy of one of KerasHub.

        Args:
            model: a backbone or a task of `keras_hub.models`, of a family of this package.
            **overrides: as for `from_preset`.

        Returns:
            A backbone of the same family, which shares no weights with the model.

        Raises:
            TypeError: If `model` is not a model of keras_hub.models.
            ValueError: As for `from_preset`, and if the model is quantized.

        Example:
            >>> import keras_hub
            >>> from encoder_zoo import Backbone
            >>> theirs = keras_hub.models.RobertaBackbone(
            ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8,
            ...     intermediate_dim=16)
            >>> Backbone.from_keras_hub(theirs).activation
            'gelu'
        """
        return loading.load_from_keras_hub(cls, model, **overrides)

    @reads_weights
    def save_to_preset(
        self,
        directory: str | os.PathLike[str],
        tokenizer: Tokenizer | None = None,
        dtype: str | None = None,
        format: str = "huggingface",
        **options: Unpack[SaveOptions],
    ) -> None:
        """Write a folder in the Hugging Face format or in KerasHub's, atomically.

        Args:
            directory: folder to write or to replace; files of other kinds in it are kept.
            tokenizer: to be saved along, so that tasks load from the folder too.
            dtype: "float32", "float16" or "bfloat16"; None stores every weight as it is.
            format: "huggingface", or "keras_hub" for a folder that
                `keras_hub.models.Backbone.from_preset` opens, with the same outputs.
            **options: `shard_bytes`, the largest size of a weights file in the Hugging Face
                format; larger ones are split.

        Raises:
            ValueError: If weights are quantized, which neither format supports, or if KerasHub's
                class computes something else, such as another form of GELU.
            OSError: If the disk is full.
        """
        saving.save_backbone(self, directory, tokenizer, dtype, format, **options)

    @validate_arguments
    def push_to_hub(
        self,
        repository: Repository,
        tokenizer: Tokenizer | None = None,
        private: bool | None = None,
        token: str | None = None,
        commit_message: CommitMessage = "Upload with encoder_zoo",
        **options: Any,
    ) -> str:
        """Save the backbone to a repository of the Hugging Face hub; see `Task.push_to_hub`.

        Args:
            repository, private, token, commit_message: see `Task.push_to_hub`.
            tokenizer: to be saved along, so that tasks load from the repository too.
            **options: those of `save_to_preset`.

        Returns:
            The address of the commit, for `from_preset`: "hf://user/name@1a2b...".
        """
        options["tokenizer"] = tokenizer
        return pushing.push(self, repository, private, token, commit_message, **options)

    @property
    def trainable(self) -> bool:
        """Return whether the weights are trained; those of a new pooler are in any case.

        A frozen random layer would leave little of what the layers below have learned.
        """
        return super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.Model.trainable.fset(self, value)
        if self.pooler_is_new:
            self.pooler_dense.trainable = True

    def enable_gradient_checkpointing(self) -> None:
        """Train with less memory, in more time: blocks keep their inputs only.

        Values inside a block are computed a second time for its gradients; the results are the
        same. Call it before `fit`.

        Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 4.

        Example:
            >>> from encoder_zoo import Classifier
            >>> classifier = Classifier.from_preset("bert_nano_en_uncased", num_classes=2)
            >>> classifier.backbone.enable_gradient_checkpointing()
            >>> history = classifier.fit(["good", "bad"], [1, 0], verbose=0)
        """
        self._checkpoints_gradients = True

    @classmethod
    @validate_arguments
    def layout_map(
        cls, mesh: keras.distribution.DeviceMesh, vocabulary_size: PositiveInt | None = None
    ) -> keras.distribution.LayoutMap:
        """Return where each weight lies, for `keras.distribution.ModelParallel` on JAX.

        Attention is split by heads and the feed-forward net by its inner width, so that in each of
        them devices add up once; the table of tokens is split by tokens, the rest is on every
        device. Set the distribution before the model is made. Widths must be multiples of the
        mesh's second axis.

        Args:
            mesh: of two axes: for the rows of a batch, and for the weights.
            vocabulary_size: of the backbone. If it is not given, or no multiple of the second axis,
                the table of tokens is split by its width.

        Raises:
            ValueError: If the mesh does not have two axes.

        Source: Shoeybi et al. 2019, Megatron-LM, section 3.

        Example:
            >>> from encoder_zoo import Backbone
            >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
            >>> layout = Backbone.layout_map(mesh, vocabulary_size=30522)
            >>> layout["bert_backbone/block_0/attention/query/kernel"].axes
            (None, 'model')
        """
        return megatron_layout(mesh, vocabulary_size)

    @validate_arguments
    @changes_weights
    def enable_lora(
        self,
        rank: PositiveInt,
        layers: Sequence[str] | None = None,
        alpha: PositiveFloat | None = None,
    ) -> None:
        """Freeze the backbone and train low-rank updates of some of its layers instead.

        A second call with the same arguments changes nothing.

        Args:
            rank: Positive integer. Rank of the updates.
            layers: Names of dense layers in every block. BERT has "query", "key", "value",
                "intermediate" and "output" (of the attention and of the block). Defaults to None,
                the attention's query and value projections, as in the paper.
            alpha: Positive float. The updates are multiplied by alpha / rank. Defaults to None,
                which is the rank.

        Raises:
            ValueError: If a layer does not exist or cannot have an update, or if an earlier call
                had other arguments.

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        chosen = choose_layers(self, layers)
        updates = dict.fromkeys(chosen, (rank, rank if alpha is None else alpha))
        present = current_updates(self)
        if present and present != updates:
            ranks, alphas = (sorted(set(values)) for values in zip(*present.values(), strict=True))
            raise ValueError(
                f"This {type(self).__name__} has low-rank updates of rank "
                f"{', '.join(map(str, ranks))} and alpha {', '.join(map(str, alphas))} in "
                f"{len(present)} layers. To train others on top, save the model with "
                "save_to_preset, which merges them into the weights, and open it with from_preset."
            )
        train_updates(self, updates)
