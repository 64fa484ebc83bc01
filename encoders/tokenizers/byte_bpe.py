"""RoBERTa's tokenizer: byte-level byte pair encoding, as in GPT-2."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import decoded
from encoder_zoo.encoders.tokenizers.files.byte_alphabet import byte_alphabet, spelled_bytes
from encoder_zoo.encoders.tokenizers.files.byte_bpe import ByteBPEFiles, parse_merges
from encoder_zoo.encoders.tokenizers.files.vocabularies import check_merges, checked_vocabulary
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaTokenizer(ByteBPEFiles, Tokenizer):
    """Tokenizes texts by byte-level BPE, with the ids that RoBERTa checkpoints were trained with.

    Args:
        vocabulary: {token: id}, or the path of a vocab.json. Bytes without a token become the
            unknown token.
        merges: "a b" pairs in the order in which they were learned, or the path of a merges.txt.
        add_prefix_space: tokenize the first word like one after a space.
        trim_offsets: leave the spaces around tokens out of their spans; None for what the class's
            own checkpoints do.
        **options: the other arguments of `Tokenizer`.

    Raises:
        ValueError: "'<s>' is not among the 3 tokens ...", "merges[0] is 'ab'; expected two ...",
            "vocabulary has the id 4000000000 among 50265 tokens. Expected ids below 101530."

    Source: Liu et al., "RoBERTa" (2019), section 4.4; Radford et al., "Language Models are
        Unsupervised Multitask Learners" (2019), section 2.2.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.byte_alphabet import byte_alphabet
        >>> tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *byte_alphabet(), "Ġh", "Ġhi"]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = RobertaTokenizer(vocabulary, ["Ġ h", "Ġh i"], add_prefix_space=True)
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("hi hi!")
        >>> [tokenizer.id_to_token(i) for i in ids], starts.numpy().tolist()
        (['Ġhi', 'Ġhi', '!'], [0, 3, 5])
    """

    lstrip_mask = True

    @validate_arguments
    def __init__(
        self,
        vocabulary: Mapping[str, int] | str | Path,
        merges: Sequence[str] | str | Path,
        add_prefix_space: bool = False,
        trim_offsets: bool | None = None,
        **options,
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = json.loads(decoded(Path(vocabulary).read_bytes(), vocabulary))
        if isinstance(merges, str | Path):
            merges = parse_merges(decoded(Path(merges).read_bytes(), merges))
        vocabulary = checked_vocabulary(vocabulary, "vocabulary")
        tokens = [""] * (max(vocabulary.values()) + 1)  # "" for ids without a token
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
        super().__init__(tokens, **options)
        self.add_prefix_space = add_prefix_space
        self.trim_offsets = self.trims_spans if trim_offsets is None else trim_offsets
        self._merges = list(merges)
        check_merges(merges, vocabulary)

    def _make_graph(self) -> TokenizerGraph:
        from encoder_zoo.encoders.tokenizers.graphs.byte_bpe import ByteBPEGraph

        return ByteBPEGraph(self)

    def spelling(self) -> list[bytes]:
        """Return the text of each id."""
        return [spelled_bytes(token) for token in self.get_vocabulary()]

    @property
    def vocabulary(self) -> dict[str, int]:
        """{token: id} of the model."""
        return {token: i for i, token in enumerate(self._vocabulary.tokens) if token}

    @property
    def unknown_bytes(self) -> bool:
        """Whether a byte has no token."""
        return not set(byte_alphabet()) <= set(self._vocabulary.tokens)

    @property
    def merges(self) -> list[str]:
        """Pairs of tokens in the order in which they were learned."""
        return list(self._merges)

    def starts_word(self, token: str) -> bool:
        """Return whether a token begins a word after a space."""
        return token.startswith("Ġ")
