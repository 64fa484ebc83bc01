"""Train vocabularies with the libraries `tokenizers` and `sentencepiece`."""

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.common.validation import Rule, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.files.reading import MAX_TOKENS

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
    from encoder_zoo.encoders.tokenizers.sentencepiece import AlbertTokenizer, XLMRobertaTokenizer
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer

MISSING = "training this vocabulary needs the package {0}: pip install {0}"
tokenizers = LazyModule("tokenizers", MISSING.format("tokenizers"))
sentencepiece = LazyModule("sentencepiece", MISSING.format("sentencepiece"))
BERT_SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_WHITE_SPACE = re.compile("[ \t\n\r]+")  # the trainer splits words further
# Repetitions of a word per text, limited because the trainer copies texts.
MAX_REPETITIONS = 1000
ROBERTA_SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # <mask> has the last id
VocabularySize = Annotated[
    int,
    Rule(lambda v: type(v) is int and 0 < v <= MAX_TOKENS, f"an integer from 1 to {MAX_TOKENS:,}"),
]


@validate_arguments
def train_vocabulary(
    texts: Iterable[str], vocabulary_size: VocabularySize, family: str = "bert", **options: Any
) -> "Tokenizer":
    """Train a vocabulary for a family.

    Args:
        texts: Iterable of strings, which can be a generator.
        vocabulary_size: Positive integer. The maximum number of tokens, including special tokens.
        family: String. "bert", "electra" or "distilbert" (WordPiece), "roberta" (byte-level BPE),
            "xlm-roberta" or "albert" (unigram model of SentencePiece). Defaults to "bert".
        **options: Further arguments: `lowercase` for WordPiece and ALBERT, and `character_coverage`
            for unigram models. See `train_wordpiece` and `train_unigram`.

    Returns:
        A tokenizer for this family, such as `BertTokenizer`.

    Raises:
        ValueError: If `family` is not supported, or if `texts` is a single string.
        ImportError: If tokenizers or sentencepiece is needed but not installed.

    Example:
        >>> tokenizer = train_vocabulary(["low lower lowest"] * 9, 30)
        >>> type(tokenizer).__name__, tokenizer.id_to_token(int(tokenizer.tokenize("low")[0]))
        ('BertTokenizer', 'low')
    """
    if family not in TRAINERS:
        raise invalid("family", family, f"one of {', '.join(TRAINERS)}")
    return TRAINERS[family](texts, vocabulary_size, **options)


def train_wordpiece(
    texts: Iterable[str], vocabulary_size: int, lowercase: bool = True
) -> "BertTokenizer":
    """Train a WordPiece vocabulary. The result is deterministic.

    Args:
        texts: Iterable of strings. See `train_vocabulary`.
        vocabulary_size: Positive integer. The maximum number of tokens, including special tokens.
        lowercase: Boolean. Whether to lowercase texts and remove accents, during training and in
            the tokenizer. Defaults to True.

    Returns:
        A tokenizer whose vocabulary starts with [PAD] [UNK] [CLS] [SEP] [MASK].

    Raises:
        ValueError: If `texts` is a single string.
        ImportError: If tokenizers is not installed.

    Source: Schuster & Nakajima, "Japanese and Korean Voice Search" (2012). Pieces are merged by
    frequency, as in byte pair encoding.

    Example:
        >>> tokenizer = train_wordpiece(["low lower lowest"] * 9, 30)
        >>> tokenizer.id_to_token(int(tokenizer.tokenize("low")[0]))
        'low'
    """
    from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer

    learner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    learner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()

    def train_model(texts: Iterable[str], size: int, known: list[str]) -> dict[str, int]:
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=known, show_progress=False
        )
        learner.train_from_iterator(texts, trainer)
        return learner.get_vocab()

    # The trainer orders letters by a hash table that differs between processes. The order affects
    # merges with equal frequency, so letters are passed in sorted order.
    words = Counter(word for text in _check_texts(texts) for word in BERT_WHITE_SPACE.split(text))
    letters = train_model(words, 0, BERT_SPECIAL_TOKENS).keys() - set(BERT_SPECIAL_TOKENS)
    repeated = (
        " ".join([word] * min(MAX_REPETITIONS, count - done))
        for word, count in words.items()
        for done in range(0, count, MAX_REPETITIONS)
    )
    ids = train_model(repeated, vocabulary_size, BERT_SPECIAL_TOKENS + sorted(letters))
    return BertTokenizer(sorted(ids, key=ids.get), lowercase=lowercase)


def train_byte_bpe(texts: Iterable[str], vocabulary_size: int) -> "RobertaTokenizer":
    """Train a byte-level byte pair encoding.

    Args:
        texts: Iterable of strings. See `train_vocabulary`.
        vocabulary_size: Integer of 261 or more. Maximum number of tokens, including 256 bytes and 5
            special tokens.

    Returns:
        A tokenizer whose vocabulary starts with <s> <pad> </s> <unk> and ends with <mask>.

    Raises:
        ValueError: If `vocabulary_size` is less than 261, or if `texts` is a single string.
        ImportError: If tokenizers is not installed.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), 2.2.

    Example:
        >>> tokenizer = train_byte_bpe(["low lower lowest"] * 9, 270)
        >>> tokenizer.id_to_token(int(tokenizer.tokenize(" low")[0]))
        'Ġlow'
    """
    from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer

    if vocabulary_size < 261:
        raise invalid(
            "vocabulary_size", vocabulary_size, "at least 261, for 256 bytes and 5 special tokens"
        )
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    *first, mask = ROBERTA_SPECIAL_TOKENS
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size - 1,
        special_tokens=first,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(_check_texts(texts), trainer)
    model = json.loads(learner.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return RobertaTokenizer({**model["vocab"], mask: len(model["vocab"])}, merges)


def train_unigram(
    texts: Iterable[str], vocabulary_size: int, character_coverage: float = 0.9995
) -> "XLMRobertaTokenizer":
    """Train a unigram model with SentencePiece. The ids are ordered as in XLM-RoBERTa.

    Args:
        texts: Iterable of strings. See `train_vocabulary`.
        vocabulary_size: Positive integer. The maximum number of tokens, including special tokens.
        character_coverage: Float between 0 and 1. Fraction of the characters in the texts that the
            vocabulary covers. Defaults to 0.9995.

    Returns:
        A tokenizer whose vocabulary starts with <s> <pad> </s> <unk> and ends with <mask>.

    Raises:
        ValueError: If `texts` is a single string, or if SentencePiece raises an error, for example
            because the texts contain more than `vocabulary_size` distinct characters.
        ImportError: If sentencepiece is not installed.

    Source: Kudo, "Subword Regularization" (2018), section 3.2.

    Example:
        >>> tokenizer = train_unigram(["low lower lowest"] * 9, 20)
        >>> tokenizer.id_to_token(int(tokenizer.tokenize("low")[0]))
        '▁low'
    """
    from encoder_zoo.encoders.tokenizers.sentencepiece import XLMRobertaTokenizer

    # The ids of fairseq include <pad> and <mask> in addition to <unk>, <s> and </s> of the model.
    content = _train_sentencepiece(texts, vocabulary_size - 2, character_coverage)
    return XLMRobertaTokenizer.from_sentencepiece(content)


def train_albert_unigram(
    texts: Iterable[str],
    vocabulary_size: int,
    lowercase: bool = True,
    character_coverage: float = 0.9995,
) -> "AlbertTokenizer":
    """Train a unigram model for ALBERT with SentencePiece.

    Args:
        texts: Iterable of strings. See `train_vocabulary`.
        vocabulary_size: Positive integer. The maximum number of tokens, including special tokens.
        lowercase: Boolean. Whether to lowercase texts and remove accents, during training and in
            the tokenizer. Defaults to True.
        character_coverage: Float between 0 and 1. See `train_unigram`. Defaults to 0.9995.

    Returns:
        A tokenizer whose vocabulary starts with <pad> <unk> [CLS] [SEP] [MASK].

    Raises:
        ValueError, ImportError: See `train_unigram`.

    Source: Lan et al., "ALBERT" (2020), section 4.1.

    Example:
        >>> tokenizer = train_albert_unigram(["Low lower lowest"] * 9, 20)
        >>> tokenizer.id_to_token(int(tokenizer.tokenize("Low")[0]))
        '▁low'
    """
    from encoder_zoo.encoders.tokenizers.sentencepiece import AlbertTokenizer
    from encoder_zoo.encoders.tokenizers.text.normalization import fold_text

    content = _train_sentencepiece(
        (fold_text(text, lowercase, keep_accents=not lowercase) for text in _check_texts(texts)),
        vocabulary_size,
        character_coverage,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    )
    return AlbertTokenizer.from_sentencepiece(
        content, lowercase=lowercase, keep_accents=not lowercase
    )


def _train_sentencepiece(
    texts: Iterable[str], vocabulary_size: int, character_coverage: float, **options: object
) -> bytes:
    """Train a SentencePiece model, and return the model file as bytes."""
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_check_texts(texts)),
            model_writer=written,
            model_type="unigram",
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            minloglevel=2,
            **options,
        )
    except (OSError, RuntimeError) as error:
        reason = str(error).split("\n")[0]  # other lines name positions in the code
        raise ValueError(f"Training with sentencepiece failed: {reason}") from None
    return written.getvalue()


def _check_texts(texts: Iterable[str]) -> Iterable[str]:
    """Create an iterator that validates texts. Raise a ValueError for a single string."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise invalid("texts", texts, "an iterable of strings")
    return _check_each(texts)


def _check_each(texts: Iterable[str]) -> Iterator[str]:
    """Validate and yield all texts.

    Raises:
        ValueError: If a text is not a string, or if no text contains a word.
    """
    has_words = False
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(f"texts[{i}]", text, "a string")
        has_words = has_words or bool(text.strip())
        yield text
    if not has_words:
        raise ValueError(
            "`texts` does not contain any words. Pass texts to learn a vocabulary from."
        )


TRAINERS = {
    "bert": train_wordpiece,
    "electra": train_wordpiece,
    "distilbert": train_wordpiece,
    "roberta": train_byte_bpe,
    "xlm-roberta": train_unigram,
    "albert": train_albert_unigram,
}
