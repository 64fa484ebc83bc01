"""Methods of tasks that load and save presets and adapters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras

from encoder_zoo.common.foreign_method import ForeignMethod
from encoder_zoo.common.hub_names import CommitMessage, Repository
from encoder_zoo.common.lazy import loading, pushing, saving
from encoder_zoo.common.preset_arguments import SaveOptions
from encoder_zoo.common.validation import PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import changes_weights, reads_weights

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.formats.checkpoint import Checkpoint


class TaskPresets:
    """Mixin of `Task`: loading from and saving to presets, low-rank updates.

    Attributes:
        settings_in_files: arguments of the task and its preprocessor that `files_to_save` or
            `extra_config` writes; they are not repeated in `encoder_zoo.json`, and `from_preset`
            does not pass them to the backbone.
        sentence_transformers_class: of sentence-transformers, which opens the presets of the task;
            None: transformers opens them.
    """

    settings_in_files: tuple[str, ...] = ()
    sentence_transformers_class: str | None = None
    if not TYPE_CHECKING:  # so that editors do not offer them
        from_pretrained = ForeignMethod("from_preset(source)")
        save_pretrained = ForeignMethod("save_to_preset(folder)")

    @classmethod
    def arguments_from_files(cls, checkpoint: Checkpoint, given: dict) -> dict:
        """Return arguments of the constructor that other files than config.json hold.

        Those of the caller count more, and so do those in `encoder_zoo.json`.

        Args:
            checkpoint: the opened preset.
            given: arguments of the caller.

        Raises:
            ValueError: naming the file and what is expected there.
        """
        return {}

    @classmethod
    def tokens_to_add(
        cls, checkpoint: Checkpoint, tokenizer: Tokenizer, given: dict
    ) -> Sequence[str]:
        """Return the tokens that the task needs and a preset's tokenizer lacks.

        Args:
            checkpoint, given: as of `arguments_from_files`.
            tokenizer: of the preset.
        """
        return ()

    @validate_arguments
    def load_from_files(
        self, checkpoint: Checkpoint, given: dict, allow_nonfinite: bool
    ) -> set[str] | None:
        """Load the weights of layers after the backbone that `Family.heads` does not name.

        Args:
            checkpoint, given: as of `arguments_from_files`.
            allow_nonfinite: see `presets.opening.Safeguards`.

        Returns:
            The names of those that are among the checkpoint's tensors, not in files of their own.
        """

    @property
    def weights_in_files(self) -> list[keras.Variable]:
        """Return the trained weights that `files_to_save` writes, which no head has."""
        return []

    def files_to_save(self, dtype: object) -> dict[str, bytes]:
        """Return further files of a preset.

        Args:
            dtype: of the weights in them; None for their own.

        Returns:
            {path in the folder: contents}; they replace files of the tokenizer of the same name.
        """
        return {}

    def extra_config(self) -> dict:
        """Return further fields of config.json."""
        return {}

    @classmethod
    def from_preset(cls, source: str | os.PathLike[str], **arguments: Any) -> Self:
        """Load backbone, tokenizer and, if the checkpoint has one for this task, the head.

        Logs one line for new and one for unused weights.

        Args:
            source: a name of `list_presets()`, a folder in the Hugging Face format, of KerasHub or
                of Google's BERT code, `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: of the task (`labels=[...]`), its preprocessor (`sequence_length=128`)
                or the backbone (`dropout=0.0`, `dtype="mixed_bfloat16"`); `added_tokens`, words or
                markers to add to the vocabulary, see `BertTokenizer`, for which the embedding gets
                new rows, the mean of the others; and how much to check: `verify`, `max_bytes`,
                `allow_nonfinite`, see `presets.opening.Safeguards`.

        Raises:
            ValueError: if the preset does not exist or its files do not fit together.
            TypeError: if an argument is unknown.
        """
        return loading.load_task(cls, source, **arguments)

    @classmethod
    def from_keras_hub(cls, model: keras.Model, **arguments: Any) -> Self:
        """Make a task from one of KerasHub's in memory: weights, tokenizer, classes, dtype policy.

        The head is taken over where it is one for this task; otherwise it is new, so that a
        classifier of KerasHub becomes a token classifier here, which KerasHub does not have.

        KerasHub's tokenizers case-fold instead of lower-casing, so that a few texts, such as those
        with "ß", have other ids there.

        Args:
            model: a task of `keras_hub.models`, or a backbone, of a family that is here too. Of
                one without a preprocessor a task is made that takes prepared inputs only.
            **arguments: as for `from_preset`, such as `labels=[...]`, which KerasHub does not
                know.

        Returns:
            A task that shares no weights with the model. Its outputs are logits, also where
            those of KerasHub's classifier go through a softmax or sigmoid.

        Raises:
            TypeError: "SequenceClassifier.from_keras_hub takes a model of keras_hub.models ..."
            ValueError: as for `from_preset`, and for quantized models.

        Example:
            >>> import keras_hub
            >>> from encoder_zoo import SequenceClassifier
            >>> backbone = keras_hub.models.RobertaBackbone(
            ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8,
            ...     intermediate_dim=16)
            >>> theirs = keras_hub.models.RobertaTextClassifier(backbone, num_classes=2)
            >>> SequenceClassifier.from_keras_hub(theirs, labels=["ham", "spam"]).num_classes
            2
        """
        return loading.load_from_keras_hub(cls, model, **arguments)

    @reads_weights
    def save_to_preset(
        self,
        directory: str | os.PathLike[str],
        dtype: str | None = None,
        format: str = "huggingface",
        **options: Unpack[SaveOptions],
    ) -> None:
        """Save backbone, head, tokenizer and settings as a folder that other libraries open too.

        In the Hugging Face format transformers opens it with the class of the same task, in
        KerasHub's format KerasHub does, with the same outputs. The folder is replaced atomically:
        on failure it is unchanged.

        Args:
            directory: folder to write or to replace; files of other kinds in it are kept.
            dtype: "float32", "float16" or "bfloat16"; None stores every weight in its own.
            format: "huggingface", or "keras_hub" for a folder that the task's class in
                `keras_hub.models` opens. KerasHub pads every batch to `sequence_length`, and has
                other ids for texts that it case-folds, such as "ß" to "ss". It keeps no labels:
                this package reads them back from `encoder_zoo.json` in the folder.
            **options: `shard_bytes`, the largest weights file in the Hugging Face format; what is
                more is split.

        Raises:
            ValueError: for quantized weights, which neither format holds; and where KerasHub has
                no such task, or would compute something else: "KerasHub has no TokenClassifier
                ...", "KerasHub's BertBackbone has activation='gelu_pytorch_tanh' built in ..."
            OSError: "The disk is full: ... was not saved."
        """
        saving.save_task(self, directory, dtype, format, **options)

    @validate_arguments
    def push_to_hub(
        self,
        repository: Repository,
        private: bool | None = None,
        token: str | None = None,
        commit_message: CommitMessage = "Upload with encoder_zoo",
        **options: Any,
    ) -> str:
        """Save the task to a repository of the Hugging Face hub, which is made if there is none.

        All files come in one commit. They replace those of an earlier preset there; other files,
        and a model card that a user wrote, are kept. `HF_ENDPOINT` and `HF_TOKEN` apply.

        Args:
            repository: 'user/name' or 'organisation/name'.
            private: whether a new repository is private; None is the owner's default.
            token: that may write there; None is that of `HF_TOKEN` or of `hf auth login`.
            commit_message: of the commit.
            **options: those of `save_to_preset`, such as `dtype="bfloat16"`.

        Returns:
            The address of the commit, for `from_preset`: "hf://user/name@1a2b...".

        Raises:
            ValueError: "hf://user/name: the hub asks for a token (401). Set HF_TOKEN, or ...",
                "...: the model was not pushed. It was: ..."; and as `save_to_preset`.
        """
        return pushing.push(self, repository, private, token, commit_message, **options)

    @validate_arguments
    @changes_weights
    def enable_lora(
        self,
        rank: PositiveInt,
        layers: Sequence[str] | None = None,
        alpha: PositiveFloat | None = None,
    ) -> None:
        """Freeze the backbone and train low-rank updates of some of its layers, and the head with
        its pooler.

        Args:
            rank, layers, alpha: see `Backbone.enable_lora`.

        Raises:
            ValueError: "There is no layer keys. Expected some of intermediate, key, output, ..."

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        self.backbone.enable_lora(rank, layers, alpha)
        self.train_pooler()

    def train_pooler(self) -> None:
        """Unfreeze the pooler if the head reads its output."""
        if self.head_record.pooled:
            self.backbone.pooler_dense.trainable = True

    @reads_weights
    def save_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Save only the low-rank updates, the head and its pooler, as peft's files.

        `peft.PeftModel.from_pretrained` opens them on the model that this one began from, as
        `load_adapters` does.

        Raises:
            ValueError: "There are no low-rank updates to save. ...", "Adapters alone are saved of
                a SequenceClassifier or a TokenClassifier. ..."
        """
        from encoder_zoo.presets.adapters import save_adapters

        save_adapters(self, folder)

    @changes_weights
    def load_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Load low-rank updates, and the weights saved with them, from peft's files.

        Raises:
            ValueError: "... Only plain LoRA is supported ...", "... the adapters are not of this
                model. ..." with the tensors that do not fit.
        """
        from encoder_zoo.presets.adapters import load_adapters

        load_adapters(self, folder)
