"""Writes the tokenizer files of a Hugging Face checkpoint folder."""

import json
from pathlib import Path

from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer

# our argument: the names of that token in the files, the first of which counts
SPECIAL_TOKENS = {
    "start_token": ("cls_token", "bos_token"),
    "end_token": ("sep_token", "eos_token"),
    "pad_token": ("pad_token",),
    "mask_token": ("mask_token",),
    "unknown_token": ("unk_token",),
}


def write_tokenizer(tokenizer: Tokenizer, folder: str | Path) -> None:
    """Writes a tokenizer so that transformers' AutoTokenizer reads it with the same ids.

    Args:
        tokenizer: a `BertTokenizer` or `RobertaTokenizer`.
        folder: where to write vocab.txt (or vocab.json and merges.txt), tokenizer.json,
            tokenizer_config.json and special_tokens_map.json; made if it does not exist.

    Raises:
        ValueError: "cannot write a NAME; expected a BertTokenizer or a RobertaTokenizer"

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]
        >>> write_tokenizer(BertTokenizer(vocabulary), folder)
        >>> sorted(path.name for path in folder.iterdir())[-1]
        'vocab.txt'
    """
    if not isinstance(tokenizer, BertTokenizer | RobertaTokenizer):
        raise ValueError(
            f"cannot write a {type(tokenizer).__name__}; expected a BertTokenizer or a "
            "RobertaTokenizer"
        )
    is_bert = isinstance(tokenizer, BertTokenizer)
    config = tokenizer.get_config()
    special = {
        name: config[argument]
        for argument, names in SPECIAL_TOKENS.items()
        for name in (names[:1] if is_bert else names)
    }
    settings = bert_settings(config) if is_bert else roberta_settings(config)
    added = [added_token(tokenizer, config, argument) for argument in SPECIAL_TOKENS]
    fast = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        **(bert_pipeline if is_bert else roberta_pipeline)(tokenizer, config),
    }
    contents = {
        **(bert_vocabulary(config) if is_bert else roberta_vocabulary(config)),
        "tokenizer.json": as_json(fast),
        "tokenizer_config.json": as_json({**settings, **special}),
        "special_tokens_map.json": as_json(special),
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (Path(folder) / name).write_text(text, encoding="utf-8", newline="\n")


def as_json(content: object) -> str:
    """JSON that a person can read."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def added_token(tokenizer: Tokenizer, config: dict, argument: str) -> dict:
    """How tokenizer.json describes a special token; RoBERTa's mask takes the space before it."""
    takes_space = argument == "mask_token" and tokenizer.mask_takes_space_before
    return {
        "id": tokenizer.token_to_id(config[argument]),
        "content": config[argument],
        "single_word": False,
        "lstrip": takes_space,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def bert_settings(config: dict) -> dict:
    """What tokenizer_config.json says of a BERT tokenizer."""
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": config["lowercase"],
        "strip_accents": config["strip_accents"],
        "tokenize_chinese_chars": config["split_chinese_characters"],
    }


def bert_vocabulary(config: dict) -> dict[str, str]:
    """vocab.txt."""
    return {"vocab.txt": "".join(f"{token}\n" for token in config["vocabulary"])}


def bert_pipeline(tokenizer: Tokenizer, config: dict) -> dict:
    """The steps of a BERT tokenizer, in the terms of tokenizer.json."""
    start, end = config["start_token"], config["end_token"]
    single = [piece(start, 0), sequence("A", 0), piece(end, 0)]
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config["split_chinese_characters"],
            "strip_accents": config["strip_accents"],
            "lowercase": config["lowercase"],
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, sequence("B", 1), piece(end, 1)],
            "special_tokens": {
                token: {"id": token, "ids": [tokenizer.token_to_id(token)], "tokens": [token]}
                for token in (start, end)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": config["unknown_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in enumerate(config["vocabulary"])},
        },
    }


def piece(token: str, segment: int) -> dict:
    """A special token in a template."""
    return {"SpecialToken": {"id": token, "type_id": segment}}


def sequence(name: str, segment: int) -> dict:
    """A text in a template."""
    return {"Sequence": {"id": name, "type_id": segment}}


def roberta_settings(config: dict) -> dict:
    """What tokenizer_config.json says of a RoBERTa tokenizer."""
    return {
        "tokenizer_class": "RobertaTokenizer",
        "add_prefix_space": config["add_prefix_space"],
        "trim_offsets": True,
    }


def roberta_vocabulary(config: dict) -> dict[str, str]:
    """vocab.json and merges.txt."""
    lines = ["#version: 0.2", *config["merges"]]
    return {
        "vocab.json": as_json(config["vocabulary"]),
        "merges.txt": "".join(f"{line}\n" for line in lines),
    }


def roberta_pipeline(tokenizer: Tokenizer, config: dict) -> dict:
    """The steps of a RoBERTa tokenizer, in the terms of tokenizer.json."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": config["add_prefix_space"],
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": [config["end_token"], tokenizer.end_token_id],
            "cls": [config["start_token"], tokenizer.start_token_id],
            "trim_offsets": True,
            "add_prefix_space": config["add_prefix_space"],
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": config["vocabulary"],
            "merges": [merge.split(" ") for merge in config["merges"]],
        },
    }
