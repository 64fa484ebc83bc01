"""Tokenizer for the protein sequences of ESM-2, with one token per residue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders.tokenizers import ESM_RESIDUES
from encoder_zoo.encoders.tokenizers.files.vocab_txt import check_no_line_breaks, format_vocabulary
from encoder_zoo.encoders.tokenizers.steps import make_split_step
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@serializable
class EsmTokenizer(Tokenizer):
    """Tokenizer for ESM-2, with one token per residue.

    Sequences are split at white space, and then at every token of the vocabulary. Longer tokens
    take precedence. Text between two tokens, for example lower-case letters, is converted to the
    unknown token. Each residue is a word, so that `TokenClassifier` has a label for each residue.

    Args:
        vocabulary: List of tokens in the order of their ids.
        **options: Other arguments for `Tokenizer`.

    Raises:
        ValueError: If the vocabulary does not contain a special token.

    Source: Lin et al. 2023, Evolutionary-scale prediction of atomic-level protein structure with a
        language model, and the released code.

    Example:
        >>> special = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>"]
        >>> tokenizer = EsmTokenizer([*special, "L", "A", "G"])
        >>> tokenizer.tokenize(["GALA", "G A x"]).to_list()
        [[7, 6, 5, 6], [7, 6, 3]]
    """

    kind = ESM_RESIDUES

    @validate_arguments
    def __init__(self, vocabulary: Sequence[str], **options):
        check_no_line_breaks(vocabulary)
        super().__init__(vocabulary, **options)
        self.hidden_ids = self.special_token_ids[:5]

    def _make_steps(self) -> dict:
        residues = {token for token in self.vocabulary if token} - {*self.special_tokens}
        longest_first = sorted(residues, key=lambda token: (-len(token), token))
        words = [{"type": "WhitespaceSplit"}]
        if longest_first:
            words.append(make_split_step("|".join(map(re.escape, longest_first))))
        return {
            **super()._make_steps(),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": words},
        }

    # -- files -------------------------------------------------------------------------------------

    def _make_vocabulary_files(self) -> dict[str, str]:
        return {"vocab.txt": format_vocabulary(self.vocabulary)}
