"""Every step of tokenizer.json, taken away, reduced, repeated or changed: done, or refused by name.

The truth is the library `tokenizers`, which reads the same file. Each case is one change of a file
that a kind of tokenizer writes; the file then opens with the library's ids and offsets, in the
graph and without it, or is refused with the name of the part that was changed.
"""

import copy
import json
import pathlib
import sys
from collections import Counter

import pytest
import tensorflow as tf
from tokenizers import Tokenizer

from encoder_zoo.encoders.tokenizers.choice import choose_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.presets.formats.stored_tokenizer import StoredTokenizer

sys.path.append(str(pathlib.Path(__file__).parent))
from test_library import KINDS, LETTERS, WORDS

pytestmark = pytest.mark.eager

TEXTS = [
    "",
    " ",
    "  a\tb  cafe\u0301 Café  the the ",
    "İstanbul ıI ß ẞ ΣΑΣ Ας",
    "中文 a中b 한국어 カﾞ ﬁ Ⅳ ½",
    "🙂👩‍👩‍👧 a\u200bb\u200d\u0301\u00a0c\u3000d\u2028e\x85f",
    "\x00\x01a\x0bb\x1fc\x7f\ufffd\xad\ufeff",
    "don't I'LL 12345 3.14 a.b,c!! ...--- ``q'' [x] <e>new york</e>",
    "new yorkab NEW YORK b! xb! Ünï\n\n\nab the\r\nthe",
    "x" * 120 + " y",
    "\u0301a \u0323\u0301b a\u0345",
    "".join(LETTERS[:60]),
    " ".join(WORDS[:11]),
]
ROLES = ("[MASK]", "[CLS]", "[SEP]", "[UNK]", "<s>", "<mask>", "</s>", "<unk>", "<bos>", "<pad>")
# BERTweet has no tokenizer.json. With NFC, offsets next to spaces differ from the library if a
# ByteLevel post-processor is added to the file.
FILES = [kind for kind in KINDS if kind not in ("bertweet", "nfc")]
USUAL = ("wordpiece",)
SLOW = ("byte_bpe", "modern_bpe", "xlm_roberta", "albert", "gemma", "bpe")
STEPS = {
    "normalizer": [
        *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b"},
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Nmt"},
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
    ],
    "pre_tokenizer": [
        *({"type": name} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")),
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Digits", "individual_digits": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False},
    ],
    "post_processor": [
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ],
    "decoder": [{"type": "Fuse"}],
}
INNER = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
OTHERS = {  # values of a field to try in place of the present one
    "prepend_scheme": ["always", "first", "never"],
    "max_input_chars_per_word": [3],
    "continuing_subword_prefix": ["@@"],
    "end_of_word_suffix": ["</w>"],
    "unk_token": ["b", None],
    "dropout": [0.0, 1.0],
    "unk_id": [1],
    "strip_accents": [None, False, True],
    "behavior": ["Removed", "MergedWithPrevious", "MergedWithNext"],
    "content": ["", "~"],
    "prepend": ["~"],
    "replacement": ["_"],
}


def sequence(part, steps):
    return {"type": "Sequence", INNER[part]: steps}


def inner(part, step):
    if step and step["type"] == "Sequence":
        return step[INNER[part]]
    return [step] if step else []


def field_changes(step):
    for name, value in step.items():
        others = OTHERS.get(name, [not value] if type(value) is bool else [])
        for other in others:
            if other != value:
                yield f"{name} {other!r}", {**step, name: other}


def part_changes(part, step):
    """(name, changed step) of a part: without it, without one, alone, twice, in another order."""
    steps = inner(part, step)
    yield "null", None
    yield "in a sequence", sequence(part, steps)
    yield "nothing", sequence(part, [])
    yield "nested", sequence(part, [sequence(part, steps)])
    for i, one in enumerate(steps):
        name = f"{i} {one['type']}"
        if len(steps) > 1:
            yield f"without {name}", sequence(part, steps[:i] + steps[i + 1 :])
            yield f"only {name}", one
        yield f"twice {name}", sequence(part, [*steps[:i], one, *steps[i:]])
        for change, other in field_changes(one):
            yield f"{name} {change}", sequence(part, [*steps[:i], other, *steps[i + 1 :]])
    if len(steps) > 1:
        yield "reversed", sequence(part, steps[::-1])
    for other in STEPS[part]:
        yield f"only {other['type']}", other
        yield f"{other['type']} before", sequence(part, [other, *steps])
        yield f"{other['type']} behind", sequence(part, [*steps, other])


def added_changes(content):
    tokens = [*content["added_tokens"]]
    known = content["model"]["vocab"]
    known = known if isinstance(known, dict) else {token: i for i, (token, _) in enumerate(known)}
    last = max([*known.values(), *(token["id"] for token in tokens)])
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for flag in (None, *plain):
        for text in ("the", "É", "new york"):
            entry = {**plain, "content": text, "id": last + 1, **({flag: True} if flag else {})}
            yield f"{text!r} {flag}", [*tokens, {**entry, "id": known.get(text, last + 1)}]


def changes(content):
    """(changed part, name of the change, tokenizer.json) of every change."""
    for part in INNER:
        for name, step in part_changes(part, content[part]):
            yield part, name, {**content, part: step}
    for name, model in field_changes(content["model"]):
        yield "model", name, {**content, "model": model}
    for name, added in added_changes(content):
        yield "added_tokens", name, {**content, "added_tokens": added}
    processor = json.dumps(content["post_processor"])
    yield (
        "post_processor",
        "other ids",
        {**content, "post_processor": other_ids(json.loads(processor))},
    )


def other_ids(step):
    for name in ("cls", "sep"):
        if name in step:
            step[name][1] += 1
    for entry in step.get("special_tokens", {}).values():
        entry["ids"] = [i + 1 for i in entry["ids"]]
    for one in step.get("processors", []):
        other_ids(one)
    return step


def library_reads(content):
    """The library's tokenizer of a file; None if it does not read it."""
    content = copy.deepcopy(content)
    roles = [token for token in content["added_tokens"] if token["content"] not in ROLES]
    content["added_tokens"] = roles  # a special token in a text is ordinary text to us
    try:
        return Tokenizer.from_str(json.dumps(content))
    except BaseException:  # it panics at some
        return None


def opened(content, settings):
    contents = {"tokenizer.json": copy.deepcopy(content), "tokenizer_config.json": settings}
    files = TokenizerFiles("folder", contents)
    stored = StoredTokenizer(choose_tokenizer(files, {}, ["tokenizer.json"]), files)
    return stored.read(**stored.read_arguments(None))


def differences(ours, theirs, engines=("library", "graph")):
    """Names of what differs, of ids and offsets in both engines.

    An engine that lacks a step of the file is left out if it says so by name.
    """
    rows = tf.constant(TEXTS, tf.string)
    found = theirs.encode_batch(TEXTS, add_special_tokens=False)
    # The file's id of an added token counts, where the library numbers it anew.
    named = {theirs.token_to_id(token["content"]): token["id"] for token in ours.added_tokens}
    ids = [[named.get(i, i) for i in e.ids] for e in found]
    expected = ids, [e.offsets for e in found]
    wrong = []
    for name in engines:
        try:
            engine = getattr(ours, name)
        except ValueError as error:
            if name != "graph" or "which TensorFlow graphs" not in str(error):
                wrong.append((name, str(error)))
            continue
        ids, starts, ends = (part.to_list() for part in engine.texts_to_tokens(rows))
        if engine.texts_to_ids(rows).to_list() != ids:
            wrong.append((name, "ids_of_texts"))
        spans = [list(zip(*pair, strict=True)) for pair in zip(starts, ends, strict=True)]
        for what, mine, other in zip(("ids", "offsets"), (ids, spans), expected, strict=True):
            wrong += [
                (name, what, text, m, o)
                for text, m, o in zip(TEXTS, mine, other, strict=True)
                if m != o
            ]
    start = theirs.encode("a", "b", add_special_tokens=True).ids
    if ours.start_token_id not in start:
        wrong.append(("template", start))
    return wrong


def tried(kind):
    """({outcome: number}, silent differences) of all changes of the file of a kind."""
    written = KINDS[kind]().to_files()
    content = json.loads(written["tokenizer.json"])
    settings = json.loads(written["tokenizer_config.json"])
    roles = {name: value for name, value in settings.items() if name.endswith("_token")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    counts, wrong, graphs = Counter(), [], {}
    for part, name, changed in changes(content):
        counts["tried"] += 1
        try:
            ours = opened(changed, settings)
        except ValueError as error:
            counts["refused"] += 1
            if not any(said in str(error) for said in (part, "tokenizer.json", name.split(" ")[0])):
                wrong.append((kind, part, name, f"not named: {error}"))
            continue
        # Not before: some files that are refused here abort the library's process.
        if (theirs := library_reads(changed)) is None:
            counts["not a file"] += 1
            continue
        # One graph for all that opens as the same tokenizer: to trace one takes a second.
        config = type(ours).__name__ + json.dumps(ours.get_config(), sort_keys=True)
        found = differences(graphs.setdefault(config, ours), theirs)
        counts["equal"] += not found
        wrong += [(kind, part, name, *one) for one in found[:1]]
    return counts, wrong


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "kind",
    [
        *USUAL,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW),
        # Variants of these, which take some minutes: `-m peers` and this file.
        *(
            pytest.param(kind, marks=pytest.mark.peers)
            for kind in FILES
            if kind not in (*USUAL, *SLOW)
        ),
    ],
)
def test_every_change_is_done_or_refused(kind):
    counts, wrong = tried(kind)
    print(f"\n{kind} | " + " | ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    assert not wrong, "\n".join(ascii(one) for one in wrong)
    assert counts["equal"] and counts["refused"]
