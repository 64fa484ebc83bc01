"""Write `encoders/tokenizers/text/data/unicode.json` with the Unicode tables of `tokenizers`.

The vocabularies of checkpoints were trained with the library `tokenizers`, which mixes four
versions of Unicode. For this reason, the tables are measured by running the library on every code
point.

    python tests/make_unicode_tables.py
"""

import array
import json
import struct
import unicodedata
from collections.abc import Callable, Iterable

from encoder_zoo.encoders.tokenizers.text.characters import DATA_FILE, HANGUL_SYLLABLES

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(belongs: Callable[[str], bool]) -> list[list[int]]:
    """Return closed ranges [first, last] of the code points for which `belongs` is true."""
    found: list[list[int]] = []
    for code_point in CODE_POINTS:
        if belongs(chr(code_point)):
            if found and found[-1][1] == code_point - 1:
                found[-1][1] = code_point
            else:
                found.append([code_point, code_point])
    return found


def mapping(function: Callable[[str], str], leave_out: range = range(0)) -> dict[str, list[int]]:
    """Return {code point: code points} for all characters that the function changes."""
    pairs = ((c, function(chr(c))) for c in CODE_POINTS if c not in leave_out)
    return {str(c): [ord(x) for x in text] for c, text in pairs if text != chr(c)}


def differing(function: Callable[[str], str], other: Callable[[str], str]) -> dict[str, list[int]]:
    """Return {code point: code points} for all characters with different results in `other`."""
    pairs = ((c, function(chr(c)), other(chr(c))) for c in CODE_POINTS)
    return {str(c): [ord(x) for x in text] for c, text, others in pairs if text != others}


def combining_classes(decompose: Callable[[str], str]) -> dict[str, int]:
    """Return the canonical combining classes of the marks that the library reorders."""
    low, high = "\u0334", "\u0345"  # marks of the classes 1 and 240

    def moves(mark: str) -> bool:
        return decompose("a" + high + mark)[-1] == high or decompose("a" + mark + low)[1] == low

    marks = (c for c in CODE_POINTS if unicodedata.combining(chr(c)) and moves(chr(c)))
    return {str(c): unicodedata.combining(chr(c)) for c in marks}


def charsmap(characters: Iterable[str]) -> bytes:
    """Return a charsmap that replaces all given characters by X.

    A node of the trie has two pages of 256 units: one for children, and one for the ends of keys.
    """
    children: list[dict[int, int]] = [{}]
    ends: list[set[int]] = [set()]
    for character in characters:
        node = 0
        *front, last = character.encode()
        for byte in front:
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
                ends.append(set())
            node = children[node][byte]
        ends[node].add(last)
    units = array.array("I", bytes(4 * 512 * (len(children) + 1)))
    units[0] = 512 << 10
    base = {0: 512}  # of a node's children, each at the offset of its byte by XOR
    for node in range(len(children)):
        for byte, child in children[node].items():
            position = base[node] ^ byte
            base[child] = 512 * (child + 1) | position & 255
            units[position] = _leads(position, base[child]) | byte
        for byte in ends[node]:
            position = base[node] ^ byte
            end = 512 * (node + 1) + 256 | position & 255
            units[position] = _leads(position, end) | 1 << 8 | byte
            units[end] = 1 << 31
    return struct.pack("<I", 4 * len(units)) + units.tobytes() + b"X\0"


def _leads(position: int, to: int) -> int:
    """Return the offset field of a unit, in steps of 256."""
    return (position ^ to) >> 8 << 10 | 1 << 9


def grapheme_classes() -> dict[str, list[list[int]]]:
    """Return ranges to decide if adjacent characters are a grapheme of up to five bytes.

    A charsmap that replaces every character by X also replaces such graphemes by X.
    """
    from tokenizers import normalizers

    crossed = normalizers.Precompiled(charsmap(map(chr, CODE_POINTS[1:]))).normalize_str
    joiner = "\u200d"
    return {
        "extends": ranges(lambda c: c != "\0" and crossed("a" + c) == "X"),
        "ends_grapheme": ranges(lambda c: crossed(c + "\u0301") == "XX" and len(c.encode()) < 4),
        "prepends": ranges(lambda c: c != "\0" and crossed(c + "a") == "X"),
        "pictograph": ranges(lambda c: crossed("\u00a9" + joiner + c) == "XXX"),
    }


def word_characters() -> list[list[int]]:
    """Return the characters next to which a token with `single_word` is not found."""
    from tokenizers import AddedToken, Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.add_tokens([AddedToken("@", single_word=True)])
    return ranges(lambda c: c != "@" and len(tokenizer.encode(c + "@").ids) == 1)


def removed(pattern: str) -> Callable[[str], bool]:
    """Return a function that checks whether a regular expression matches a character."""
    from tokenizers import Regex, pre_tokenizers

    found = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str
    return lambda c: not found(c)


def scripts() -> list[list[int]]:
    """Return [first, last, number] for the code points of each script. Numbers start at 2.

    Code points that occur in any script are omitted, because the library never splits at them.
    """
    from tokenizers import pre_tokenizers

    found = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    known: list[str] = []  # a character of each script
    parts: list[list[int]] = []
    last = ""  # the character before, if it has a script
    for code_point in CODE_POINTS:
        c = chr(code_point)
        if not found(c):
            last = ""
            continue
        if last and len(found(last + c)) == 1:
            parts[-1][1] = code_point
        else:
            alike = (i for i, other in enumerate(known) if len(found(other + c)) == 1)
            number = next(alike, len(known))
            known += [c] if number == len(known) else []
            parts.append([code_point, code_point, number + 2])
        last = c
    return parts


def measure() -> dict:
    """Measure every table from the installed library `tokenizers`."""
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

    off = {"clean_text": False, "handle_chinese_chars": False, "lowercase": False}
    off["strip_accents"] = False

    def bert(**on: bool) -> Callable[[str], str]:
        return normalizers.BertNormalizer(**{**off, **on}).normalize_str

    clean, strip, chinese = bert(clean_text=True), bert(strip_accents=True), bert
    chinese = bert(handle_chinese_chars=True)
    decompose = normalizers.NFD().normalize_str
    bert_split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    byte_split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str

    def joins(letter: str) -> Callable[[str], bool]:
        return lambda c: len(byte_split(letter + c + letter)) == 1

    compose = normalizers.NFC().normalize_str
    compatible = normalizers.NFKD().normalize_str
    whole = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]).normalize_str
    spaced = pre_tokenizers.WhitespaceSplit().pre_tokenize_str
    digits = pre_tokenizers.Digits().pre_tokenize_str
    return {
        "source": f"tokenizers {tokenizers.__version__}",
        "dropped": ranges(lambda c: clean(c) == ""),
        "space": ranges(lambda c: clean(c) == " "),
        "chinese": ranges(lambda c: chinese(c) != c),
        "mark": ranges(lambda c: strip(c) == "" and decompose(c) == c),
        "punctuation": ranges(lambda c: len(bert_split("a" + c + "a")) == 3),
        "decomposition": mapping(decompose, leave_out=HANGUL_SYLLABLES),
        "lowercase": mapping(bert(lowercase=True)),
        "combining_class": combining_classes(decompose),
        "bpe_letter": ranges(joins("a")),
        "bpe_number": ranges(joins("1")),
        "white_space": ranges(lambda c: len(spaced("a" + c + "a")) == 2),
        "any_mark": ranges(lambda c: whole("a" + c) == "a"),
        "compatible": differing(compatible, decompose),
        "never_composed": ranges(lambda c: compose(c) != c),
        **grapheme_classes(),
        "bpe_space": ranges(lambda c: not (joins("a")(c) or joins("1")(c) or joins("!")(c))),
        "word_character": word_characters(),
        "pattern_word": ranges(removed(r"\w")),
        "pattern_digit": ranges(removed(r"\d")),
        "numeric": ranges(lambda c: len(digits("a" + c + "a")) == 3),
        "script": scripts(),
    }


def main() -> None:
    """Measure the tables and write the data file, one line per table."""
    lines = [
        f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in measure().items()
    ]
    DATA_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
