"""Masked language modelling: pretraining, and filling in missing words.

Comment letters: B batch, L sequence, D hidden, M masked positions, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack, overload

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import Fraction, PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.layers import Activation, initializer
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.head import HiddenLayer, make_hidden
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.records import padded_columns, records
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.inputs import as_column
from encoder_zoo.tasks.preprocessing.packing import kept_tokens
from encoder_zoo.tasks.preprocessing.preprocessor import as_valid_text
from encoder_zoo.tasks.preprocessing.tokenized_texts import following, row_begins
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
from encoder_zoo.tasks.training.logit_metrics import by_token

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLMHead(ConfigFromSignature, keras.layers.Layer):
    """The layers between the backbone and the projection onto the token embedding.

    Args:
        vocabulary_size: V.
        hidden: the layer that makes the token embedding's width of the backbone's; None: there is
            none, and the widths are equal.
        bias_axes: number of the bias's axes; those before the last have size 1.
        tied: whether the projection is the token embedding's transpose; else it is a layer of the
            head, without a bias.

    Call arguments:
        x: (B, M, D).

    Returns:
        (B, M, E), to be multiplied by the token embedding's transpose; `bias` (V,) is then added.

    Source: Devlin et al. 2019, released code, `get_masked_lm_output`.

    Example:
        >>> import numpy as np
        >>> head = MaskedLMHead(11, HiddenLayer(4, "gelu", layer_norm_epsilon=1e-12))
        >>> keras.ops.shape(head(np.zeros((1, 2, 6), "float32"))), tuple(head.bias.shape)
        ((1, 2, 4), (11,))
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden: HiddenLayer | None,
        bias_axes: int = 1,
        tied: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden = hidden
        self.bias_axes = bias_axes
        self.tied = tied

    def build(self, input_shape):
        width = input_shape[-1]
        if self.hidden is not None:
            self.hidden.build(input_shape)
            width = self.hidden.units
        shape = (*[1] * (self.bias_axes - 1), self.vocabulary_size)
        if self.tied:
            self.bias = self.add_weight(shape=shape, initializer="zeros", name="bias")
        else:
            self.output_dense = keras.layers.Dense(
                self.vocabulary_size,
                use_bias=False,
                kernel_initializer=initializer(),
                name="output",
                dtype=self.dtype_policy,
            )
            self.output_dense.build((*input_shape[:-1], width))
        self.output_shape = (*input_shape[:-1], width)  # for `summary()`

    def call(self, x):
        return x if self.hidden is None else self.hidden(x)


def make_masked_lm_head(
    record: Head,
    backbone: Backbone,
    dtype: keras.DTypePolicy,
    activation: str | None = None,
    layer_norm_epsilon: float | None = None,
) -> MaskedLMHead:
    """Return a family's head, built.

    Args:
        record: the family's of it.
        backbone: whose tokens it fills in.
        dtype: of the task.
        activation, layer_norm_epsilon: instead of the family's.

    Raises:
        ValueError: If the family's head has no layer that the arguments would change.
    """
    hidden = None
    if record.hidden:
        width = backbone.embeddings.token_embedding.output_dim
        hidden = make_hidden(record.hidden, backbone, width, dtype, activation, layer_norm_epsilon)
    elif activation or layer_norm_epsilon:
        name, value = "head_activation", activation
        if not activation:
            name, value = "head_layer_norm_epsilon", layer_norm_epsilon
        expected = f"None: the head of {backbone.family.name} has only the output projection"
        raise invalid(name, value, expected)
    axes = record.tied_bias_axes
    tied = record.tied_bias is not None
    head = MaskedLMHead(backbone.vocabulary_size, hidden, axes, tied, name="head", dtype=dtype)
    head.build((None, None, backbone.hidden_dim))
    return head


def token_logits(backbone: Backbone, head: MaskedLMHead, x, positions=None):
    """Return logits of all tokens, float32 (B, L, V), or at some positions (B, M, V).

    Args:
        backbone: with the token embedding.
        head: of the task.
        x: (B, L, D), the backbone's output.
        positions: (B, M) int, or None.
    """
    if positions is not None:
        x = take_positions(x, positions)  # (B, M, D)
    return with_bias(head, project(backbone, head, x))


def project(backbone: Backbone, head: MaskedLMHead, x) -> keras.KerasTensor:
    """Return logits of all tokens without their bias, (B, M, V), of the backbone's output."""
    if not head.tied:
        return head.output_dense(head(x))
    return backbone.embeddings.token_embedding(head(x), reverse=True)


def with_bias(head: MaskedLMHead, logits) -> keras.KerasTensor:
    """Return logits (..., V) plus the head's bias, if it has one, float32."""
    # The loss is taken in float32 also under mixed precision.
    logits = ops.cast(logits, "float32")
    return logits + ops.cast(head.bias, "float32") if head.tied else logits


def check_head_representable(task: keras.Model) -> None:
    """Raise an error if the Hugging Face format has no field for a setting of a task's head.

    Args:
        task: with a `MaskedLMHead`, and `head_activation` and `head_layer_norm_epsilon`.

    Raises:
        ValueError: If the Hugging Face format has no field for a setting of the head.
    """
    if task.head.hidden is None:
        return
    default = make_hidden(task.head_record.hidden, task.backbone, 1, task.dtype_policy)
    for name in ("activation", "layer_norm_epsilon"):
        found, expected = getattr(task, f"head_{name}"), getattr(default, name)
        if found != expected:
            raise invalid(
                f"head_{name}",
                found,
                f"{expected!r}, for which the Hugging Face format has no other field. Save with "
                f'format="keras_hub", or load with from_preset(..., head_{name}={expected!r})',
            )


def masked_lm_loss() -> keras.losses.Loss:
    """Return the cross-entropy over real predictions: examples have different numbers of them."""
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )


def token_metrics() -> list[keras.metrics.Metric]:
    """Return loss and accuracy of one of several outputs."""
    loss = keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)
    return [loss, keras.metrics.SparseCategoricalAccuracy("accuracy")]


class FilledMask(TypedDict):
    """A token for a mask, the text with it filled in, and its probability."""

    token: str
    text: str
    score: float


class MaskingPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments that the preprocessors of pretraining share."""

    mask_rate: float
    whole_words: bool
    dynamic: bool
    pack_texts: bool
    across_documents: bool
    seed: int


class MaskedLMPresetArguments(MaskingPresetArguments, total=False):
    """Keyword arguments of `MaskedLM.from_preset`."""

    head_activation: str | None
    head_layer_norm_epsilon: float | None


class Masks(NamedTuple):
    """The masks of texts.

    Attributes:
        starts: ragged (N, None) int32, where the masks begin.
        ends: ragged (N, None) int32, where they end.
        word_follows: ragged (N, None) bool, whether the token after a mask begins a word.
    """

    starts: array_ops.RaggedTensor
    ends: array_ops.RaggedTensor
    word_follows: array_ops.RaggedTensor


class Spellings(NamedTuple):
    """Of each token its name, its text without a space before it, and whether it begins a word."""

    names: list[str]
    words: list[str]
    begins: list[bool]


# The characters that Python's `str.rstrip` removes.
SPACES = r"[\t-\r\x{1c}-\x{1f}\x{85}\pZ]"
SPACE_AT_END = f"{SPACES}+$"
SPACE_AT_BEGIN = f"(?s)({SPACES}.*)?"  # or no text at all
OF_WORD = r"[\p{L}\p{M}\p{N}]"
WORD_BY_ITSELF = r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}]"  # Chinese characters


def touches_word(texts: array_ops.Tensor, at_end: bool) -> array_ops.Tensor:
    """Return whether the first, or the last, character of texts is of a word that a letter next to
    it would be a part of."""
    of_word, alone = (
        array_ops.strings.regex_full_match(texts, f"(?s).*{kind}" if at_end else f"(?s){kind}.*")
        for kind in (OF_WORD, WORD_BY_ITSELF)
    )
    return of_word & ~alone


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLM(Task):
    """Predicts masked tokens, the pretraining of BERT and RoBERTa; for XLNet, tokens in an order.

    XLNet's tokens are not replaced: each is predicted by a stream of its own, from the tokens that
    are not to be predicted and from those that come before it in a random order, the input
    "prediction_order" (B, L), see `XLNetBackbone.predictions`. `fill_mask` predicts all masks at
    once.

    Args:
        backbone: any `Backbone`.
        preprocessor: a `MaskedLMPreprocessor`, for raw text.
        head_activation: of the layer before the output projection; None is the family's, which is
            mostly that of the backbone. KerasHub's heads have one of their own.
        head_layer_norm_epsilon: likewise; None is the backbone's.

    Call arguments:
        inputs: the preprocessor's outputs; without "mask_positions" there are logits for every
            position.

    Returns:
        (B, M, V) float32 logits at the masked positions, or (B, L, V).

    Source: Devlin et al. 2019, section 3.1.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> inputs = {"token_ids": np.array([[2, 4, 7, 3]]), "mask_positions": np.array([[1]])}
        >>> keras.ops.shape(MaskedLM(backbone)(inputs))
        (1, 1, 30)
    """

    record = TaskRecord(
        "masked_lm",
        MaskedLMPreprocessor,
        head="ForMaskedLM",
        pipeline_tag="fill-mask",
        text_method="fill_mask",
        instead_of_predict="fill_mask(texts)",
        labels_tokens=True,
        pretrains=True,
        learns_soft_labels=True,
    )
    output_activation = "softmax"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: MaskedLMPreprocessor | None = None,
        head_activation: Activation | None = None,
        head_layer_norm_epsilon: Fraction | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.head = make_masked_lm_head(
            self.head_record, backbone, self.dtype_policy, head_activation, head_layer_norm_epsilon
        )
        if self._in_order:
            backbone.embeddings.mask_embedding.trainable = True  # other tasks do not use it
        hidden = self.head.hidden
        self.head_activation = hidden and hidden.activation
        self.head_layer_norm_epsilon = hidden and hidden.layer_norm_epsilon
        self._finish_building()

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[MaskedLMPresetArguments]
    ) -> Self:
        """Load a masked language model; see `Task.from_preset`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `head_activation`, `head_layer_norm_epsilon`; of the preprocessor
                `sequence_length`, `mask_rate`, `whole_words`, `dynamic`, `pack_texts`,
                `across_documents`, `seed`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)

    def tiny_questions(self) -> tuple:
        return ([f"{text} {self.served_tokenizer.mask_token}" for text in self.tiny_data().x],)

    def encoded(self, inputs, training=None):
        if not self._in_order:
            return super().encoded(inputs, training)
        return {"predictions": self.backbone.predictions(inputs, training)}

    def logits_of(self, encoded, inputs, training=None):
        name = "predictions" if self._in_order else "sequence_output"
        if name not in encoded:
            raise ValueError(
                f"A MaskedLM of {self.backbone.family.name} predicts by a stream of its own, which "
                "Distillation does not run. Use another objective or family."
            )
        return token_logits(self.backbone, self.head, encoded[name], inputs.get("mask_positions"))

    def compute_output_spec(self, inputs, training=None):
        positions = inputs.get("mask_positions", inputs["token_ids"])
        return keras.KerasTensor((*positions.shape, self.backbone.vocabulary_size), "float32")

    def config_fields(self) -> dict:
        check_head_representable(self)
        return {}

    def default_loss(self) -> keras.losses.Loss:
        return masked_lm_loss()

    def default_metrics(self) -> list:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, *by_token(y, y_pred, sample_weight))

    @overload
    def fill_mask(
        self, texts: str, top_k: int = 5, batch_size: int | None = None
    ) -> list[FilledMask]: ...
    @overload
    def fill_mask(
        self, texts: object, top_k: int = 5, batch_size: int | None = None
    ) -> list[list[FilledMask]]: ...
    @overload
    def fill_mask(
        self, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    @skips_missing("texts")
    def fill_mask(
        self,
        texts,
        top_k: PositiveInt = 5,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
        targets: Sequence[str] | None = None,
    ) -> list[FilledMask] | list[list[FilledMask]]:
        """Return the most probable tokens at the mask tokens of each text.

        Args:
            texts: a text or a list of texts; each holds the family's mask token (`[MASK]`,
                `<mask>`) at least once.
            top_k: how many tokens for each mask.
            batch_size: default 32.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for an
                answer of None; "error", the default, for an error that names the first of them.
            targets: List of strings or None. Words or tokens to choose among, each a single token
                of the vocabulary. Scores stay probabilities among all tokens. Defaults to None,
                which means all tokens.

        Returns:
            For each text the `top_k` best as `{"token", "text", "score"}`, the best first: the
            token, the text with it filled in, its probability. For a text with several masks a
            list of such lists, each with one mask filled in: a type checker takes it for one mask.
            For a single text its list alone.

        Raises:
            ValueError: If a text holds no mask token, or if a target is not a single token.
        """
        if isinstance(texts, str):
            return self.fill_mask([texts], top_k, batch_size, targets=targets)[0]
        chosen = None if targets is None else self._find_tokens(targets)
        tensor = as_column(texts)
        if not tensor.shape[0]:
            return []
        tokens = self.served_tokenizer.tokenize_with_offsets(tensor)
        self._check_masks(tokens[0])
        examples, masks = self._examples_with_masks(*tokens)
        inputs, real = self._mask_inputs(examples)
        inputs = {name: values.numpy() for name, values in inputs.items()}
        logits = self.predict(inputs, batch_size, verbose=0)  # (B, M, V)
        fills = records(self._filled(tensor, masks, logits[real.numpy()], top_k, chosen))
        by_text = [fills[i:j] for i, j in itertools.pairwise(masks.starts.row_splits.numpy())]
        return [masks[0] if len(masks) == 1 else masks for masks in by_text]

    @validate_arguments
    def signatures(self, top_k: PositiveInt = 5) -> dict[str, Callable]:
        """Return `fill_mask` of "text" for exports.

        Args:
            top_k: as for `fill_mask`.

        Returns:
            A function whose results are "count" (N,), the number of masks of every text, and
            "token", "text" and "score", (N, M, top_k) with M the most masks of a text. Masks after
            the model's longest are not counted.
        """

        def fill(text):
            text = as_valid_text(text)
            tokens = self.served_tokenizer.tokenize_with_offsets(text)
            examples, masks = self._examples_with_masks(*tokens)
            counts = masks.starts.row_lengths()
            logits = in_graph_batches(
                self._mask_logits, examples, counts, self.backbone.vocabulary_size
            )
            filled = self._filled(text, masks, logits.flat_values, top_k)
            return padded_columns({n: masks.starts.with_values(v) for n, v in filled.items()})

        return {"serving_default": fill}

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        ranges = {**super().input_ranges(length), "mask_positions": (0, length - 1)}
        return ranges | ({"prediction_order": (0, length)} if self._in_order else {})

    def prepared_inputs(self) -> list[str]:
        order = ["prediction_order"] if self._in_order else []
        return [*super().prepared_inputs(), "mask_positions", *order]

    @property
    def _in_order(self) -> bool:
        return self.backbone.predicts_in_order

    def _check_masks(self, ids: array_ops.RaggedTensor) -> None:
        tokenizer, limit = self.preprocessor.tokenizer, self._most_tokens
        from_left = tokenizer.truncation_side == "left"
        for row, tokens in enumerate(ids.numpy()):
            found = np.flatnonzero(tokens == tokenizer.mask_token_id)
            if from_left:
                found = len(tokens) - 1 - found[::-1]  # counted from the end
            if not found.size or found[-1] >= limit:
                cut = f"before its last {limit}" if from_left else f"after its first {limit}"
                where = "holds no" if not found.size else f"has {cut} tokens a"
                raise ValueError(
                    f"texts[{row}] {where} {tokenizer.mask_token}. Expected it where a word is "
                    "missing."
                )

    @property
    def _most_tokens(self) -> int:
        return self.preprocessor.max_sequence_length - 2

    def _examples_with_masks(self, ids, starts, ends) -> tuple[dict, Masks]:
        """Return encoded examples with their masks' columns, and the masks in the texts."""
        tokenizer, longest = self.preprocessor.tokenizer, self.preprocessor.max_sequence_length
        [(begin, count)] = kept_tokens([ids], 1, longest, tokenizer.truncation_side)
        begin, count = (array_ops.cast(values, "int64") for values in (begin, count))
        row = ids.value_rowids()
        column = array_ops.ragged.range(ids.row_lengths()).values - array_ops.gather(begin, row)
        is_mask = (ids.values == tokenizer.mask_token_id) & (column >= 0)
        is_mask = ids.with_values(is_mask & (column < array_ops.gather(count, row)))
        begins = array_ops.gather(array_ops.constant(self._spellings.begins), ids.values)
        begins &= (ids.values != tokenizer.mask_token_id) & ~row_begins(ids)
        columns, *found = (
            array_ops.ragged.boolean_mask(ids.with_values(values), is_mask)
            for values in (column, starts.values, ends.values, following(begins, False))
        )
        positions = array_ops.cast(columns + tokenizer.first_column, array_ops.int32)
        return {**self.preprocessor.pack([ids]), "mask_positions": positions}, Masks(*found)

    def _mask_inputs(self, examples: dict) -> tuple[dict, array_ops.Tensor]:
        """Return the model's inputs, and which of their mask positions (B, M) are real."""
        positions = examples["mask_positions"]
        inputs = {**self.preprocessor.pad(examples), "mask_positions": positions.to_tensor()}
        if self._in_order:
            is_mask = inputs["token_ids"] == self.preprocessor.tokenizer.mask_token_id
            inputs["prediction_order"] = array_ops.cast(is_mask, array_ops.int32)
        return inputs, array_ops.sequence_mask(positions.row_lengths())

    def _mask_logits(self, examples: dict) -> array_ops.Tensor:
        """Return the logits (masks, V) in all examples."""
        inputs, real = self._mask_inputs(examples)
        return array_ops.boolean_mask(self(inputs, training=False), real)

    def _find_tokens(self, targets: Sequence[str]) -> list[int]:
        """Return the ids of words or tokens; of two tokens with one text, that of a whole word."""
        if isinstance(targets, str) or not len(targets):
            raise invalid("targets", targets, "a list of words, such as ['good', 'bad']")
        names, words, begins = self._spellings
        known = {word: i for i, word in enumerate(words) if not begins[i]}
        known |= {word: i for i, word in enumerate(words) if begins[i]}
        known = {name: i for i, name in enumerate(names)} | known
        for i, target in enumerate(targets):
            if not isinstance(target, str) or target.strip() not in known:
                expected = "a single token of the vocabulary; a longer word has several"
                raise invalid(f"targets[{i}]", target, expected)
        return list(dict.fromkeys(known[target.strip()] for target in targets))

    def _filled(
        self, texts, masks: Masks, logits, top_k: int, chosen: Sequence[int] | None = None
    ) -> dict[str, array_ops.Tensor]:
        """Return "token", "text" and "score" (masks, top_k), the best first.

        Blanks next to a token are such that the text has the tokens that were scored.

        Args:
            texts: (N,) strings.
            masks: of the texts.
            logits: (masks, V), of all texts.
            top_k: how many.
            chosen: List of integers or None. Ids of the tokens to choose among.
        """
        strings = array_ops.strings
        names, words, begins = (array_ops.constant(column) for column in self._spellings)
        probabilities = array_ops.nn.softmax(logits)[:, : array_ops.size(names)]
        if chosen is not None:
            names, words, begins = (array_ops.gather(c, chosen) for c in (names, words, begins))
            probabilities = array_ops.gather(probabilities, chosen, axis=1)
        scores, best = array_ops.math.top_k(probabilities, min(top_k, names.shape[0]))
        texts = array_ops.gather(texts, masks.starts.value_rowids())
        start, end = masks.starts.values, masks.ends.values
        before = strings.substr(texts, array_ops.zeros_like(start), start, unit="UTF8_CHAR")
        length = strings.length(texts, unit="UTF8_CHAR")
        after = strings.substr(texts, end, length - end, unit="UTF8_CHAR")
        joined = strings.regex_replace(before, SPACE_AT_END, "")  # to the word before
        words, begins = array_ops.gather(words, best), array_ops.gather(begins, best)

        # Whether a blank must be between the token and the text around it.
        before_it = (before == joined) & (strings.length(before) > 0)
        behind_it = masks.word_follows.values & ~strings.regex_full_match(after, SPACE_AT_BEGIN)
        before_it, behind_it = before_it[:, None], behind_it[:, None]
        if self._spaces_are_tokens:
            before, before_it, behind_it = joined, True, False
        elif self._symbols_are_words:
            before_it = before_it & touches_word(before, True)[:, None] & touches_word(words, False)
            behind_it = behind_it & touches_word(after, False)[:, None] & touches_word(words, True)
        blank, nothing = (array_ops.constant(text) for text in (" ", ""))
        words = array_ops.where(begins & before_it, blank, nothing) + words
        words += array_ops.where(behind_it, blank, nothing)
        before = array_ops.where(begins, before[:, None], joined[:, None])
        texts = before + words + after[:, None]
        return {"token": array_ops.gather(names, best), "text": texts, "score": scores}

    @functools.cached_property
    def _spellings(self) -> Spellings:
        tokenizer = self.preprocessor.tokenizer
        tokens = tokenizer.get_vocabulary()
        words = [word.removeprefix(" ").removeprefix("##") for word in self._detokenized]
        begins = [tokenizer.starts_word(token) or tokenizer.ends_word(token) for token in tokens]
        return Spellings(tokens, words, begins)

    @functools.cached_property
    def _detokenized(self) -> list[str]:
        tokenizer = self.preprocessor.tokenizer
        with array_ops.init_scope():
            ids = array_ops.range(len(tokenizer.get_vocabulary()))[:, None]
            words = tokenizer.detokenize(ids).numpy()
        return [word.decode(errors="replace") for word in words]

    @property
    def _spaces_are_tokens(self) -> bool:
        """Return whether a space is part of the token behind it, as in byte-level BPE."""
        return any(word.startswith(" ") for word in self._detokenized)

    @property
    def _symbols_are_words(self) -> bool:
        """Return whether words end also where no space is, as in WordPiece."""
        return self.preprocessor.tokenizer.starts_word("a")

    @functools.cached_property
    def served_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, but with mask tokens in texts read as such."""
        tokenizer = self.preprocessor.tokenizer
        with array_ops.init_scope():
            return type(tokenizer)(**{**tokenizer.get_config(), "special_tokens_in_text": True})
