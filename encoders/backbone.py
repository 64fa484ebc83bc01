"""Base class of all backbones, with fast kernels, input checks, presets and training options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import CommitMessage, PresetArguments, Repository, SaveOptions
from encoder_zoo.common.configuration import build_signature, get_argument_names
from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.lazy import LazyModule, check_not_forked
from encoder_zoo.common.validation import PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.common.variable_names import share_variable_names
from encoder_zoo.common.weights_lock import hold_lock, lock_weights
from encoder_zoo.common.wording import ForeignName
from encoder_zoo.encoders.attention_masks import AttentionMask
from encoder_zoo.encoders.core import Encoder, SelfAttention
from encoder_zoo.encoders.inputs import BACKBONE_INPUTS, TASK_INPUTS, check_inputs
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.encoders.kernels.attention import FastAttention
from encoder_zoo.encoders.training import (
    add_low_rank_updates,
    call_block,
    choose_layers,
    find_low_rank_updates,
    make_megatron_layout,
    recompute_block,
)

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.family import Family, Head
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

# Imported on first use, because these modules import this module.
loading = LazyModule("encoder_zoo.presets.loading")
saving = LazyModule("encoder_zoo.presets.saving")
pushing = LazyModule("encoder_zoo.presets.pushing")


class BackbonePresetArguments(PresetArguments, total=False):
    """Keyword arguments of `Backbone.from_preset`. They do not change the shape of weights."""

    dtype: str | keras.DTypePolicy
    dropout: float
    attention_dropout: float
    activation: str
    layer_norm_epsilon: float
    num_heads: int
    pooler: bool
    pad_token_id: int  # RoBERTa and families that are based on it
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
    token_dropout: bool  # ESM-2
    mask_token_id: int
    query_pre_attn_scalar: int  # Gemma 3
    attention_window: int | Sequence[int]  # Longformer
    sep_token_id: int


class _BuildingMetaclass(type(keras.Model)):
    """Metaclass that applies the `defaults` of a class, and builds the model after `__init__`."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature for `help` and editors, including the arguments of base classes."""
        return build_signature(cls)

    def __call__(cls, *args, **kwargs):
        check_not_forked()
        with share_variable_names():
            model = super().__call__(*args, **{**cls.defaults, **kwargs})
            model.build((None, None))
        return model


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Backbone(Encoder, metaclass=_BuildingMetaclass):
    """Base class of all encoder families. `Backbone.from_preset` selects the right subclass.

    A family overrides `make_embeddings`, `make_block`, `make_final_layer`, `block_contexts` or
    other methods of `Encoder`, which contains the formulas.

    Args:
        vocabulary_size: Positive integer. The number of token ids.
        num_layers: Positive integer. The number of encoder blocks.
        num_heads: Positive integer. H, the number of attention heads in each block.
        hidden_dim: Positive integer. D, the width of the model. It must be a multiple of
            `num_heads`.
        intermediate_dim: Positive integer. F, the width of the feed-forward networks.
        dropout: Float between 0 and 1. The dropout rate for the embeddings and the output of each
            sublayer. Defaults to 0.1.
        attention_dropout: Float between 0 and 1. The dropout rate for the attention probabilities.
            Defaults to 0.1.
        activation: String. The activation of the feed-forward networks. See `layers.ACTIVATIONS`.
            "gelu" is the exact GELU. Defaults to "gelu".
        layer_norm_epsilon: Float. Value that is added to the variance in every LayerNorm. Defaults
            to 1e-12.
        max_sequence_length: Positive integer. The maximum number of tokens in an example. Defaults
            to 512.
        num_segments: Non-negative integer. The number of segment ids. Defaults to 2.
        pooler: Boolean. Whether the model has a pooler, which computes `pooled_output`. Defaults to
            True.

    Call arguments:
        inputs: Dictionary of tensors. Each of "token_ids", "padding_mask" and "segment_ids" is an
            integer or boolean tensor of shape (B, L). "padding_mask" is 1 for tokens and 0 for
            padding. If it is missing, there is no padding. If "segment_ids" is missing, all tokens
            belong to segment 0. "text_starts" is an integer tensor of shape (B, K) for packed
            examples, which contain several texts. It holds the start position of each text, and
            unused entries are set to L. The outputs are the same as for separate examples.
            "attended_mask", (B, L), is 0 for tokens that have an output but that no token attends
            to. It defaults to "padding_mask". "global_mask", (B, L), is only used by Longformer.
            See `LongformerBackbone`.
        return_hidden_states: Boolean. Whether to return the input and the output of all blocks.
            Defaults to False.
        return_projections: Boolean. Whether to return the queries, keys and values of the last
            block. Defaults to False.

    Returns:
        Dictionary of tensors with "sequence_output", (B, L, D), and "pooled_output", (B, D). With
        "text_starts", the shape of "pooled_output" is (B, K, D). If `return_hidden_states` is True,
        "hidden_states" is a list of `num_layers + 1` tensors of shape (B, L, D), and the last
        tensor is the sequence output. If `return_projections` is True, "projections" contains the
        queries, keys and values of the last block, each (B, L, H, D/H).

    Attributes:
        embeddings: The layer before the blocks.
        blocks: List of blocks. In some families, the same block is used at several positions.
            Decoder blocks, if any, come last.
        pooler_is_new: Boolean. Whether the checkpoint had no pooler, so that the weights of the
            pooler are still random. `fit` trains the pooler and then sets this attribute to False.

    Example:
        >>> import numpy as np
        >>> import encoder_zoo as ez
        >>> backbone = ez.Backbone.from_preset("bert_nano_en_uncased")
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])}, return_hidden_states=True)
        >>> len(outputs["hidden_states"]) == len(backbone.blocks) + 1
        True
    """

    family: Family
    defaults: ClassVar[Mapping[str, object]] = {}  # override `__init__` defaults
    pools_logits = False  # whether classifiers compute the mean of all token logits
    # Whether a method `compute_query_stream` predicts tokens in a given order, as in XLNet.
    predicts_in_order = False
    decoder_blocks = ()  # the decoder blocks, if the family has a decoder
    pooler_is_new = False
    checkpoint_vocabulary = None  # see presets.origin.OriginVocabulary
    origin = None  # see presets.origin
    layers_version = 0  # increases when layers are replaced, so that functions are traced again
    _checkpoints_gradients = False
    _was_loaded = False  # whether weights were loaded from a Keras file

    @property
    def fixed_settings(self) -> tuple[str, ...]:
        """The names of arguments that cannot be changed after creating the layers."""
        return tuple(get_argument_names(type(self)))

    @property
    def has_random_weights(self) -> bool:
        """Return True if weights have not been loaded, set or trained."""
        return self.origin is None and not self._was_loaded and not self.weights_version

    def load_own_variables(self, store) -> None:
        """Load weights as in Keras, and set a flag for `has_random_weights`."""
        super().load_own_variables(store)
        self._was_loaded = True

    def make_layer(
        self, kind: type[keras.layers.Layer], name: str, **arguments
    ) -> keras.layers.Layer:
        """Create a layer with the settings of the backbone. Blocks use the fastest attention."""
        layer = super().make_layer(kind, name, **arguments)
        if getattr(layer, "attention_class", None) is SelfAttention:
            layer.attention_class = FastAttention
        return layer

    def attention_mask(
        self, inputs: Mapping, max_distance: int | None = None
    ) -> AttentionMask | keras.KerasTensor | None:
        """Create the attention mask. It is a matrix if the backbone only supports short texts.

        Tracing is faster for a matrix. If no token can be masked, None is returned instead of a
        matrix, because kernels are faster without a mask.

        Args:
            inputs: Dictionary of tensors, the inputs of the backbone.
            max_distance: Integer. Maximum distance for attention between two tokens. If None, there
                is no limit.
        """
        mask = super().attention_mask(inputs, max_distance)
        return (
            mask if self.max_sequence_length > long_attention.SHORT_LENGTH else mask.make_matrix()
        )

    def _run_block(self, block, x, context, training):
        if training and self._checkpoints_gradients:
            return recompute_block(block, x, context)  # this saves memory
        return call_block(block, x, context, training)

    def __call__(self, inputs, *args, **kwargs):
        check_inputs(inputs, (*BACKBONE_INPUTS, *TASK_INPUTS), type(self).__name__)
        return super().__call__(inputs, *args, **kwargs)

    def _encode_embedded(self, embedded, inputs: Mapping) -> dict:
        """Compute the backbone outputs from embeddings instead of token ids.

        Args:
            embedded: Tensor of shape (B, L, D).
            inputs: Dictionary of tensors, the inputs of the backbone.
        """
        states, _, _ = self._encode(inputs, embedded=embedded)
        return self._make_outputs(states[-1], inputs)

    def add_head_inputs(self, inputs: Mapping, head: Head) -> Mapping:
        """Add inputs needed for the head of a task. By default, no inputs are added.

        Args:
            inputs: Dictionary of tensors, the inputs of the backbone.
            head: The `Head` of the task.
        """
        return inputs

    def text_vectors(self, sequence_output, inputs: Mapping):
        """Return the vector of the first token, (B, D), for heads without a pooler."""
        return sequence_output[:, 0]

    def attention_probabilities(self, inputs: Mapping) -> keras.KerasTensor:
        """Compute the attention probabilities of all blocks.

        Args:
            inputs: Dictionary of tensors, the inputs of the backbone.

        Returns:
            Float tensor of shape (B, num_layers, H, L, L). The last axis sums to 1.
        """
        _, probabilities, _ = self._encode(inputs, return_probabilities=True)
        return ops.stack(probabilities, axis=1)

    @classmethod
    def sharing_embeddings(cls, other: Backbone, **arguments) -> Self:
        """Create a backbone with the same embedding tables as another backbone.

        The tables are no longer shared after saving and loading.

        Args:
            other: A `Backbone` with embeddings of the same width.
            **arguments: Arguments of the new backbone.

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
        backbone = type.__call__(cls, **{**cls.defaults, **arguments})  # the model is not built yet
        embeddings = backbone.make_embeddings()
        embeddings.share_tables(other.embeddings)
        backbone.make_embeddings = lambda: embeddings
        backbone.build((None, None))
        return backbone

    @classmethod
    def count_min_weights(cls, config: Mapping) -> int:
        """Return a lower bound for the number of weights, without creating the model."""
        hidden = config["hidden_dim"]
        tables = {"token": "vocabulary_size", "position": "max_sequence_length"}
        tables["segment"] = "num_segments"
        known = [n for t, n in tables.items() if f"embeddings.{t}_embedding" in cls.family.tensors]
        rows = sum(config.get(name) or 0 for name in known)
        of_tables = rows * (config.get("embedding_dim") or hidden)
        of_block = 2 * hidden * (hidden + config["intermediate_dim"])
        return of_tables + config[cls.family.blocks] * of_block

    def build_from_config(self, config):
        """Do nothing, because the backbone is already built by the metaclass."""

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """The output shape (B, L, D), for `summary()`."""
        return (None, None, self.hidden_dim)

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return the minimum and maximum value for each input.

        Args:
            length: Positive integer. L, the length of the examples.

        Example:
            >>> from encoder_zoo import RobertaBackbone
            >>> backbone = RobertaBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
            >>> backbone.input_ranges(length=3)["token_ids"]
            (0, 29)
        """
        # For a single segment, segment ids are ignored.
        segments = max(self.num_segments, 2 if self.family.uses_segments else 1)
        flag = (0, 1)
        ranges = (0, self.vocabulary_size - 1), flag, (0, segments - 1), (0, length), flag, flag
        named = dict(zip(BACKBONE_INPUTS, ranges, strict=True))
        if not self.family.uses_global_mask:
            del named["global_mask"]
        return named

    if not TYPE_CHECKING:  # hide these names from editors
        from_pretrained = ForeignName("from_preset(source)")
        save_pretrained = ForeignName("save_to_preset(folder)")

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **overrides: Unpack[BackbonePresetArguments]
    ) -> Self:
        """Load a backbone from a bundled preset or a checkpoint folder.

        Args:
            source: String or path. A name from `list_presets()`, a folder in the Hugging Face or
                KerasHub format or from Google's BERT code, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **overrides: Constructor arguments that do not change the shape of any weight, such as
                `dropout=0.0` or `dtype="mixed_bfloat16"`. The options `verify`, `max_bytes` and
                `allow_nonfinite` control the safety checks. See
                `presets.files.folder_files.Safeguards`.

        Returns:
            A backbone of the family in the checkpoint. A custom subclass, for example of
            `BertBackbone`, is loaded with the weights of the checkpoint. Additional weights of the
            subclass keep their initial values, and a message is logged.

        Raises:
            ValueError: If the checkpoint contains a model of another family, or if weights are
                missing or unexpected.
        """
        return loading.load_backbone(cls, source, **overrides)

    @classmethod
    def from_keras_hub(
        cls, model: keras.Model, **overrides: Unpack[BackbonePresetArguments]
    ) -> Self:
        """Convert a KerasHub model to a backbone with the same weights, settings and dtype policy.

        Args:
            model: A backbone or task from `keras_hub.models` whose family is supported here.
            **overrides: See `from_preset`.

        Returns:
            A backbone of the same family, with a copy of the weights.

        Raises:
            TypeError: If `model` is not a model from `keras_hub.models`.
            ValueError: If `model` is quantized. See also `from_preset`.

        Example:
            >>> import keras_hub
            >>> from encoder_zoo import Backbone
            >>> theirs = keras_hub.models.RobertaBackbone(
            ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8,
            ...     intermediate_dim=16)
            >>> Backbone.from_keras_hub(theirs).activation
            'gelu'
        """
        return load_extra("load_from_keras_hub")(cls, model, **overrides)

    @lock_weights
    def save_to_preset(
        self,
        directory: str | os.PathLike[str],
        tokenizer: Tokenizer | None = None,
        dtype: str | None = None,
        format: str = "huggingface",
        **options: Unpack[SaveOptions],
    ) -> None:
        """Save the backbone to a folder in the Hugging Face or KerasHub format.

        The folder is replaced atomically.

        Args:
            directory: String or path. The folder to write or replace. Unrelated files in an
                existing folder are kept.
            tokenizer: Optional tokenizer to save to the same folder, so that tasks can be loaded
                from it.
            dtype: String, "float32", "float16" or "bfloat16". If None, every weight is stored with
                its own dtype.
            format: String, "huggingface" or "keras_hub". A folder in the KerasHub format can be
                loaded with `keras_hub.models.Backbone.from_preset` and gives the same outputs.
                Defaults to "huggingface".
            **options: `shard_bytes` is the maximum size of a weights file in the Hugging Face
                format. Larger files are split.

        Raises:
            ValueError: If the weights are quantized, which neither format supports, or if KerasHub
                would compute other outputs, for example because it uses another variant of GELU.
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
        """Upload the backbone to a repository on the Hugging Face hub. See `Task.push_to_hub`.

        Args:
            repository, private, token, commit_message: See `Task.push_to_hub`.
            tokenizer: Optional tokenizer to save to the same repository, so that tasks can be
                loaded from it.
            **options: Options of `save_to_preset`.

        Returns:
            The address of the commit, for example "hf://user/name@1a2b...", which can be passed to
            `from_preset`.
        """
        options["tokenizer"] = tokenizer
        return pushing.push(self, repository, private, token, commit_message, **options)

    @property
    def trainable(self) -> bool:
        """Boolean. Set to False to freeze all weights, except the weights of a new pooler.

        A frozen pooler with random weights would lose most information in the encoder output.
        """
        return super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.Model.trainable.fset(self, value)
        if self.pooler_is_new:
            self.pooler_dense.trainable = True

    def enable_gradient_checkpointing(self) -> None:
        """Reduce the memory required for training, at the cost of computing time.

        Each block only stores its inputs. For the gradients, all other values are computed again.
        This does not change the results. Call this method before `fit`, which raises a ValueError
        if a block adds losses with `add_loss`, or updates a metric or a weight.

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
        """Create a layout map for `keras.distribution.ModelParallel` on JAX.

        Attention is split by heads, and the feed-forward network is split by its inner width. In
        this way, devices exchange data only once per attention and once per feed-forward network.
        The token table is split by tokens. All other weights are stored on every device. Set the
        distribution before you create the model. All widths must be multiples of the second mesh
        axis.

        Args:
            mesh: `keras.distribution.DeviceMesh` with two axes, one for the batch and one for the
                weights.
            vocabulary_size: Positive integer. The vocabulary size of the backbone. If it is None or
                not a multiple of the second axis, the token table is split by its width instead.

        Raises:
            ValueError: If `mesh` does not have two axes.

        Source: Shoeybi et al. 2019, Megatron-LM, section 3.

        Example:
            >>> from encoder_zoo import Backbone
            >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
            >>> layout = Backbone.layout_map(mesh, vocabulary_size=30522)
            >>> layout["bert_backbone/block_0/attention/query/kernel"].axes
            (None, 'model')
        """
        return make_megatron_layout(mesh, vocabulary_size)

    @validate_arguments
    @hold_lock("exclusive")
    def enable_lora(
        self,
        rank: PositiveInt,
        layers: Sequence[str] | None = None,
        alpha: PositiveFloat | None = None,
    ) -> None:
        """Freeze the backbone, and train low-rank updates (LoRA) of some dense layers instead.

        Calling this method again with the same arguments has no effect.

        Args:
            rank: Positive integer. The rank of the updates.
            layers: List of strings. The names of dense layers in every block. For BERT, these are
                "query", "key", "value", "intermediate" and "output". The name "output" selects the
                output layers of the attention and of the block. If None, the query and value
                projections of the attention are used, as in the paper.
            alpha: Positive float. The updates are multiplied by `alpha / rank`. If None, `rank` is
                used.

        Raises:
            ValueError: If one of the `layers` does not exist or does not support LoRA, or if the
                method was already called with other arguments.

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        chosen = choose_layers(self, layers)
        updates = dict.fromkeys(chosen, (rank, rank if alpha is None else alpha))
        present = find_low_rank_updates(self)
        if present and present != updates:
            ranks, alphas = (sorted(set(values)) for values in zip(*present.values(), strict=True))
            raise ValueError(
                f"This {type(self).__name__} already has low-rank updates of rank "
                f"{', '.join(map(str, ranks))} and alpha {', '.join(map(str, alphas))} in "
                f"{len(present)} layers. To train new updates, first save the model with "
                "`save_to_preset`, which merges the current updates, and load it again with "
                "`from_preset`."
            )
        add_low_rank_updates(self, updates)
