"""Methods of backbones that load and save presets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack

import keras

from encoder_zoo.common.foreign_method import ForeignMethod
from encoder_zoo.common.hub_names import CommitMessage, Repository
from encoder_zoo.common.lazy import loading, pushing, saving
from encoder_zoo.common.preset_arguments import BackbonePresetArguments, SaveOptions
from encoder_zoo.common.validation import validate_arguments

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


class BackbonePresets:
    """Mixin of `Backbone`: loading from and saving to presets."""

    if not TYPE_CHECKING:  # so that editors do not offer them
        from_pretrained = ForeignMethod("from_preset(source)")
        save_pretrained = ForeignMethod("save_to_preset(folder)")

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
            A backbone of the checkpoint's family.

        Raises:
            ValueError: if the checkpoint is of another family than the class, or has missing or
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
            TypeError: "BertBackbone.from_keras_hub takes a model of keras_hub.models ..."
            ValueError: as for `from_preset`, and for quantized models.

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
            ValueError: for quantized weights, which neither format supports; and for models that
                KerasHub's class computes differently: "KerasHub's BertBackbone has
                activation='gelu_pytorch_tanh' built in ..."
            OSError: "The disk is full: ... was not saved."
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
