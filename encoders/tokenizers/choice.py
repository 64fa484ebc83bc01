"""Select the tokenizer class for a checkpoint based on its files, without TensorFlow."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from encoder_zoo.common.wording import quote
from encoder_zoo.encoders import tokenizers as kinds
from encoder_zoo.encoders.tokenizers.files import reading
from encoder_zoo.encoders.tokenizers.steps import get_model_type

logger = logging.getLogger("encoder_zoo")

_SENTENCEPIECE = (
    kinds.XLM_SENTENCEPIECE,
    kinds.CAMEMBERT_SENTENCEPIECE,
    kinds.DEBERTA_SENTENCEPIECE,
)


def choose_tokenizer(
    files: reading.TokenizerFiles,
    config: Mapping,
    names: Collection[str],
    default: kinds.TokenizerClass | None = None,
) -> kinds.TokenizerClass:
    """Select the tokenizer class for a checkpoint based on its files.

    The order of precedence is tokenizer.json, the class in tokenizer_config.json, the class in
    config.json, the vocabulary files, and the default class. However, a BertweetTokenizer is always
    used if it is named, because tokenizer.json cannot store it.

    Args:
        files: `TokenizerFiles` with tokenizer.json and tokenizer_config.json.
        config: Dict. The content of config.json, or {} if the file does not exist.
        names: List with the names of all files in the checkpoint folder.
        default: Optional `TokenizerClass`. The default class of the model family.

    Raises:
        ValueError: If `tokenizer_class` is not supported.
        FileNotFoundError: If the folder does not contain any tokenizer files.

    Example:
        >>> files = reading.TokenizerFiles("preset", {})
        >>> choose_tokenizer(files, {"tokenizer_class": "RobertaTokenizer"}, []).name
        'RobertaTokenizer'
        >>> choose_tokenizer(files, {}, ["vocab.txt", "merges.txt"]).name
        'BertTokenizer'
    """
    named = _get_named_class(files, config)
    if named is kinds.BERTWEET:  # cannot be stored in tokenizer.json
        return named
    if "tokenizer.json" in files:
        described = _rank_classes(files)
        if named and named not in described:
            logger.warning(
                "%s: tokenizer.json describes a %s, but tokenizer_class is %s. The tokenizer in "
                "tokenizer.json is used.",
                files.folder.name,
                described[0].name,
                named.name,
            )
        return named if named in described else described[0]
    if named:
        return named
    present = [kind for kind in kinds.TOKENIZERS if set(kind.files) <= set(names)]
    if kinds.BERTWEET in present and kinds.WORDPIECE in present:  # both vocab.txt and bpe.codes
        present.remove(kinds.WORDPIECE)
    if default and (default in present or not present):
        return default
    if not present:
        vocabularies = dict.fromkeys(" and ".join(kind.files) for kind in kinds.TOKENIZERS)
        raise FileNotFoundError(
            f"{files.folder} has no tokenizer file. Expected tokenizer.json, or "
            f"{', or '.join(vocabularies)}."
        )
    return max(present, key=lambda kind: len(kind.files))


def _get_named_class(files: reading.TokenizerFiles, config: Mapping) -> kinds.TokenizerClass | None:
    """Return the class named in tokenizer_config.json or config.json, if any."""
    first, second = files.tokenizer_class, reading.remove_fast_suffix(config.get("tokenizer_class"))
    if first is None:
        return _get_class(second, files.folder / "config.json")
    if second not in (None, first):
        logger.warning(
            "%s: tokenizer_class is %s in tokenizer_config.json and %s in config.json. The class "
            "in tokenizer_config.json is used.",
            files.folder.name,
            quote(first),
            quote(second),
        )
    return _get_class(first, files.folder / "tokenizer_config.json")


def _get_class(name: object, path: Path) -> kinds.TokenizerClass | None:
    """Return the class for a transformers class name, or None for a generic name."""
    if name is None or name in reading.GENERIC_CLASSES:
        return None
    for kind in kinds.TOKENIZERS:
        if name in kind.checkpoint_names:
            return kind
    known = {n for kind in kinds.TOKENIZERS for n in kind.checkpoint_names}
    raise ValueError(
        f"{path}: tokenizer_class is {quote(name)}, which is not supported. Expected one of "
        f"{', '.join(sorted(known - {*reading.GENERIC_CLASSES}))}. If tokenizer.json contains all "
        'steps, set tokenizer_class to "PreTrainedTokenizerFast". To open the model without a '
        "tokenizer, use Backbone.from_preset."
    )


def _rank_classes(files: reading.TokenizerFiles) -> tuple[kinds.TokenizerClass, ...]:
    """Return the classes that may support the steps in tokenizer.json, most likely class first."""
    model = files.get_part("model")
    kind = get_model_type(model)
    if kind == "WordPiece":
        both = (kinds.WORDPIECE, kinds.MPNET_WORDPIECE)
        return both[::-1] if {"<mask>", "</s>"} <= _list_tokens(model) else both
    normalizers = files.get_steps("normalizer")
    splits = [step.get("type") for step in files.get_steps("pre_tokenizer")]
    if kind == "BPE":
        if "ByteLevel" in splits and "Split" in splits:
            return (kinds.LLAMA_BPE,)
        if "ByteLevel" in splits:
            return (kinds.MODERN_BPE,) if {"type": "NFC"} in normalizers else (kinds.BYTE_BPE,)
        if [step.get("type") for step in normalizers] == ["Replace"]:
            return (kinds.GEMMA_BPE,)
    elif kind == "WordLevel" and splits == ["WhitespaceSplit", "Split"]:
        return (kinds.ESM_RESIDUES,)
    elif kind != "Unigram":
        return (kinds.ANY_STEPS,)
    tokens = _list_tokens(model)
    if any(step.get("pattern") == {"String": "``"} for step in normalizers):
        return (kinds.XLNET_SENTENCEPIECE if "<cls>" in tokens else kinds.ALBERT_SENTENCEPIECE,)
    if "<s>NOTUSED" in tokens:
        likeliest = kinds.CAMEMBERT_SENTENCEPIECE
    else:
        likeliest = kinds.DEBERTA_SENTENCEPIECE if "[CLS]" in tokens else kinds.XLM_SENTENCEPIECE
    return (likeliest, *(kind for kind in _SENTENCEPIECE if kind is not likeliest))


def _list_tokens(model: Mapping) -> set[str]:
    """Return all strings in the vocabulary. This works for all model types."""
    vocabulary = model.get("vocab")
    entries = vocabulary if isinstance(vocabulary, dict | list) else ()
    tokens = (entry[0] if isinstance(entry, list) and entry else entry for entry in entries)
    return {token for token in tokens if isinstance(token, str)}
