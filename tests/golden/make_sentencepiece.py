"""Write `sentencepiece/` with small models, and the token ids of two other implementations.

SentencePiece trains the models on the texts. Ids and offsets are computed by the library
`tokenizers` with the steps from transformers 5, and ids also by `sentencepiece`.

    python tests/golden/make_sentencepiece.py
"""

import json
import pathlib
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import generate_merges

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_tokens import TEXTS as COMMON

FOLDER = pathlib.Path(__file__).parent / "sentencepiece"
TEXTS = [
    *COMMON,
    "``quoted'' '''three''' `one`",
    "▁ a▁b▁▁c ▁",
    "l'été à l'œuvre, où ça ?",
    "e\u0301 e\u0323\u0301 \ufb01\u0301 \u0600 a \u0600a a\u200db \u00bd\u200d \r\n\r\n\t\u0301x",
    "\x01\x02a\x03 \x01 b\x02 \u00bd\x01 c",
    "がぎぐ か\u3099 ｶﾞ ﷺ ㍿ ①",
    "1,000 10,5 (state-of-the-art) £5–€7.",
    "ha" * 80 + "." * 70 + "ab",
    "吾輩は猫である。名前はまだ無い。" * 12,
]
# Custom rules in the format of SentencePiece: code points, and their replacements.
RULES = {"½": "1/2", "e\u0301": "é", "\x01": "", "\u200b": " ", "ﬁ": "fi", "Å": "å", "\t": " "}
SPECIAL = ["[CLS]", "[SEP]", "[MASK]"]
MODELS = {
    "nmt_nfkc": {"vocab_size": 700, "normalization_rule_name": "nmt_nfkc"},
    "albert": {
        "vocab_size": 600,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": SPECIAL,
        "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
    },
    "bytes": {
        "vocab_size": 600,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
    },
    "bpe": {"model_type": "bpe", "vocab_size": 500, "user_defined_symbols": ["<entity>", "C++"]},
    "bpe_spaces": {
        "model_type": "bpe",
        "vocab_size": 700,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
    },
}


def train(name: str, options: dict) -> None:
    """Train a model on the texts and their words."""
    if "normalization_rule_name" not in options:
        tsv = FOLDER / "rules.tsv"
        lines = [f"{hexadecimal(key)}\t{hexadecimal(text)}\n" for key, text in RULES.items()]
        tsv.write_text("".join(lines), encoding="utf-8")
        options = {**options, "normalization_rule_tsv": str(tsv)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.replace("\0", "") for text in TEXTS for _ in range(5)),
        model_prefix=str(FOLDER / name),
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    (FOLDER / f"{name}.vocab").unlink()
    (FOLDER / "rules.tsv").unlink(missing_ok=True)


def hexadecimal(text: str) -> str:
    """Format code points as in the rules of SentencePiece."""
    return " ".join(f"{ord(c):X}" for c in text)


def proto(name: str) -> object:
    """Read a model file with the classes of SentencePiece."""
    from sentencepiece import sentencepiece_model_pb2

    found = sentencepiece_model_pb2.ModelProto()
    found.ParseFromString((FOLDER / f"{name}.model").read_bytes())
    return found


def library(name: str, front: list, skipped: int, behind: list, steps: list) -> Tokenizer:
    """Create a tokenizer with the steps of transformers 5 and the pieces of a model."""
    model = proto(name)
    pieces = [(p.piece, p.score, p.type in (2, 3)) for p in model.pieces[skipped:]]
    special = [[(token, score, True) for token, score in tokens] for tokens in (front, behind)]
    # Texts must not be read as special tokens, so each special token contains a space.
    entries = [
        (f" {token}" if is_special else token, score)
        for token, score, is_special in [*special[0], *pieces, *special[1]]
    ]
    unknown = next(i for i, (token, _) in enumerate(entries) if token == " <unk>")
    fallback = model.trainer_spec.byte_fallback
    tokenizer = Tokenizer(models.Unigram(entries, unknown, byte_fallback=fallback))
    charsmap = model.normalizer_spec.precompiled_charsmap
    steps = [*steps, *([normalizers.Precompiled(charsmap)] if charsmap else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    return tokenizer


def pairs(name: str, words: bool) -> Tokenizer:
    """Create a BPE tokenizer with the ids of XLM-RoBERTa and the steps of transformers.

    Args:
        name: String. Name of the model.
        words: Boolean. Whether whitespace separates words. If False, whitespace is kept, as for
            Llama.
    """
    model = proto(name)
    front = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    scores = [*front, *((p.piece, p.score) for p in model.pieces[3:]), ("<mask>", 0.0)]
    ids = {token: i for i, (token, _) in enumerate(scores)}
    symbols = [p.piece for p in model.pieces if p.type == 4]
    merges = generate_merges(ids, scores, skip_tokens=[*(t for t, _ in front), "<mask>", *symbols])
    fallback = model.trainer_spec.byte_fallback
    tokenizer = Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback)
    )
    charsmap = model.normalizer_spec.precompiled_charsmap
    steps = [normalizers.Precompiled(charsmap)] if charsmap else []
    if words:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
        )
    else:
        steps += [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in symbols])
    return tokenizer


def xlm_roberta(name: str) -> Tokenizer:
    """Create a tokenizer with the id order of XLM-RoBERTa."""
    front = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    return library(name, front, 3, [("<mask>", 0.0)], [])


def camembert(name: str) -> Tokenizer:
    """Create a tokenizer with the id order of CamemBERT."""
    front = [(token, 0.0) for token in ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")]
    return library(name, [*front, ("<unk>NOTUSED", -100.0)], 1, [("<mask>", 0.0)], [])


def albert(name: str, lowercase: bool = True, keep_accents: bool = False) -> Tokenizer:
    """Create a tokenizer with the steps of ALBERT."""
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    return library(name, [], 0, [], [*steps, normalizers.Replace(Regex(" {2,}"), " ")])


def expected(tokenizer: Tokenizer) -> list[dict]:
    """Return the ids and offsets of every text."""
    encodings = tokenizer.encode_batch(TEXTS, add_special_tokens=False)
    return [{"ids": e.ids, "offsets": e.offsets} for e in encodings]


def main() -> None:
    """Write the models and the expected results."""
    FOLDER.mkdir(exist_ok=True)
    for name, options in MODELS.items():
        train(name, options)
    originals = {
        name: sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / f"{name}.model"))
        for name in MODELS
    }
    content = {
        "texts": TEXTS,
        "xlm_roberta": expected(xlm_roberta("nmt_nfkc")),
        "camembert": expected(camembert("nmt_nfkc")),
        "albert": expected(albert("albert")),
        "albert_cased": expected(albert("albert", lowercase=False, keep_accents=True)),
        "bytes": expected(xlm_roberta("bytes")),
        "bpe": expected(pairs("bpe", words=True)),
        "bpe_spaces": expected(pairs("bpe_spaces", words=False)),
        "sentencepiece": {name: model.encode(TEXTS) for name, model in originals.items()},
    }
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in content.items()]
    (FOLDER / "answers.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
