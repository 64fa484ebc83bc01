"""Special tokens to add around texts with a post-processor, and added tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers.steps import get_processor_kind


class Template(NamedTuple):
    """The special tokens to add: `before A alone`, or `before A between B after`.

    Attributes:
        before: Tuple of tokens before the first text. If it is empty, the start token is the last
            token. It has segment id 2 if `uses_segments` is True, and 0 otherwise.
        between: Tuple of tokens between two texts.
        after: Tuple of tokens after the second text.
        alone: Tuple of tokens after a single text.
        uses_segments: Boolean. Whether the second text in a pair has segment id 1.
        num_first: Integer. The number of tokens in `between` that belong to the first text.
            Defaults to 1.
    """

    before: tuple
    between: tuple
    after: tuple
    alone: tuple
    uses_segments: bool
    num_first: int = 1

    @property
    def pair_separators(self) -> int:
        """Number of tokens between two texts."""
        return len(self.between)

    @property
    def first_column(self) -> int:
        """Position where the first text starts."""
        return len(self.before)

    @property
    def num_second_segment_tokens(self) -> int:
        """Number of tokens in `between` that belong to the second text."""
        return len(self.between) - self.num_first

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """Return the tokens in this template that can be the start token and the end token."""
        starts = self.before or self.alone[-1:]
        others = dict.fromkeys((*self.alone, *self.between, *self.after))
        ends = tuple(token for token in others if token not in starts)
        return {"start_token": starts, "end_token": ends}

    @property
    def is_regular(self) -> bool:
        """Return whether there is one start token, and the same end token at all other places."""
        starts, ends = self.roles.values()
        regular = (self.uses_segments, self.pair_separators, self.first_column)
        return len(starts) == len(ends) == 1 and self == make_template(*starts, *ends, *regular)

    def count(self, is_pair: bool) -> int:
        """Return the number of tokens to add to a single text or a pair."""
        return len(self.before) + len((*self.between, *self.after) if is_pair else self.alone)

    def count_first_segment_tokens(self, is_pair: bool) -> int:
        """Return the number of tokens to add to segment 0."""
        return len(self.before) + (
            self.num_first if is_pair else len(self.alone) - (not self.before)
        )

    def map(self, convert: Callable[[str], int]) -> Template:
        """Return a template in which each token is converted, for example to an id."""
        return self._replace(
            **{name: tuple(map(convert, getattr(self, name))) for name in self._fields[:4]}
        )

    def get_parts(self, is_pair: bool) -> list[tuple[bool, object, int]]:
        """Return (is_text, name, segment) for each part of a single text or a pair.

        Example:
            >>> make_template("[CLS]", "[SEP]", True).get_parts(is_pair=False)
            [(False, '[CLS]', 0), (True, 'A', 0), (False, '[SEP]', 0)]
        """
        second = int(self.uses_segments)
        found = [*((False, token, 0) for token in self.before), (True, "A", 0)]
        if is_pair:
            segments = [0] * self.num_first + [second] * len(self.between)
            found += [(False, *part) for part in zip(self.between, segments, strict=False)]
            found += [(True, "B", second), *((False, token, second) for token in self.after)]
        else:
            found += [(False, token, 0) for token in self.alone]
        return found if self.before else [*found[:-1], (False, found[-1][1], 2 * second)]

    def to_step(self, ids: Mapping[str, int]) -> dict:
        """Return a TemplateProcessing step for tokenizer.json, given {token: id}."""
        single, pair = (
            [
                {"Sequence" if is_text else "SpecialToken": {"id": name, "type_id": segment}}
                for is_text, name, segment in self.get_parts(is_pair)
            ]
            for is_pair in (False, True)
        )
        special = {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in dict.fromkeys(itertools.chain(*self[:4]))
        }
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": special,
        }


def make_template(
    start_token: str,
    end_token: str,
    uses_segments: bool,
    pair_separators: int = 1,
    first_column: int = 1,
) -> Template:
    """Return a template with one start token, and an end token after each text.

    Args:
        start_token: String. The token to add before the first text.
        end_token: String. The token to add after each text.
        uses_segments: Boolean. Whether the second text in a pair has segment id 1.
        pair_separators: Integer. The number of end tokens between two texts. Defaults to 1.
        first_column: Integer. 0 to add the start token at the end. Defaults to 1.
    """
    between = (end_token,) * pair_separators
    last = (end_token,) if first_column else (end_token, start_token)
    return Template((start_token,) * first_column, between, last, last, uses_segments)


def read_template(step: Mapping, name: str) -> Template | None:
    """Parse a post-processor in tokenizer.json, or return None if it does not add any tokens.

    Args:
        step: Dict with the post-processor.
        name: String. Name to use in error messages.

    Raises:
        ValueError: If the template does not add a start token, or if its order or segments are not
            supported.

    Example:
        >>> step = {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}
        >>> step |= {"trim_offsets": True, "add_prefix_space": False}
        >>> read_template(step, "post_processor").pair_separators
        2
    """
    kind = get_processor_kind(step)
    if kind == "Sequence":
        steps = step.get("processors")
        inner = [s for s in steps if isinstance(s, Mapping)] if isinstance(steps, list) else []
        found = [template for s in inner if (template := read_template(s, name))]
        if len(found) > 1:
            raise ValueError(
                f"{name} contains {len(found)} steps that add special tokens. Expected at most one."
            )
        return found[0] if found else None
    if kind in ("BertProcessing", "RobertaProcessing"):
        is_bert = kind == "BertProcessing"
        pairs = (step.get("cls"), step.get("sep"))
        tokens = tuple(pair[0] if isinstance(pair, list) and pair else None for pair in pairs)
        if not all(isinstance(token, str) for token in tokens):
            raise ValueError(
                f"{name}: the tokens of `cls` and `sep` are {quote(tokens)}. Expected a list of a "
                "token and its id in each field."
            )
        return make_template(*tokens, is_bert, 1 if is_bert else 2)
    return _read_template_parts(step, name) if kind == "TemplateProcessing" else None


def collect_template_ids(steps: Sequence[Mapping]) -> list[tuple[str, object]]:
    """Return a list of (token, id) for the tokens that post-processors add around texts.

    Example:
        >>> step = {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}
        >>> collect_template_ids([step])
        [('[CLS]', 2), ('[SEP]', 3)]
    """
    found = []
    for step in steps:
        for pair in (step.get("cls"), step.get("sep")):
            if isinstance(pair, list) and pair:
                found.append((pair[0], pair[-1]))
        special = step.get("special_tokens")
        parts = [*_parse_parts(step.get("single")), *_parse_parts(step.get("pair"))]
        used = {name for _, name, _ in parts if isinstance(name, str)}
        for token, entry in special.items() if isinstance(special, Mapping) else ():
            if token not in used:
                continue
            ids = entry.get("ids") if isinstance(entry, Mapping) else None
            found.append((token, ids[0] if isinstance(ids, list) and len(ids) == 1 else ids))
    return found


def _read_template_parts(step: Mapping, name: str) -> Template:
    """Parse a TemplateProcessing step."""
    single, pair = _parse_parts(step.get("single")), _parse_parts(step.get("pair"))
    texts = [i for i, (is_text, *_) in enumerate(pair) if is_text]
    if len(texts) == 2 and all(isinstance(name, str) for _, name, _ in (*single, *pair)):
        first, second = texts
        before, between, after = (
            tuple(name for _, name, _ in part)
            for part in (pair[:first], pair[first + 1 : second], pair[second + 1 :])
        )
        alone = tuple(name for _, name, _ in single[first + 1 :])
        segments = [segment for *_, segment in pair[first + 1 : second]]
        uses_segments = pair[second][2] == 1
        num_first = segments.count(0) if uses_segments else 1
        found = Template(before, between, after, alone, uses_segments, num_first)
        has_start = before or (len(alone) > 1 and alone[-1:] == after[-1:])
        is_same = found.get_parts(False) == single and found.get_parts(True) == pair
        if has_start and between and is_same:
            return found
    raise ValueError(
        f"{name}: single is {_format_parts(single)}, pair is {_format_parts(pair)}. Expected the "
        "same tokens before a single text and before a pair (or none, and the start token at the "
        "end), a token between two texts, segment 0 up to this token, and 0 or 1 after it."
    )


def _parse_parts(parts: object) -> list[tuple[bool, object, object]]:
    """Return (is_text, name, segment) for each part of a template."""
    found = []
    for part in parts if isinstance(parts, list) else ():
        [(kind, said)] = part.items() if isinstance(part, dict) and len(part) == 1 else [("", {})]
        said = said if isinstance(said, dict) else {}
        found.append((kind == "Sequence", said.get("id"), said.get("type_id")))
    return found


def _format_parts(parts: Sequence[tuple[bool, object, object]]) -> str:
    return quote(" ".join(f"{name}:{segment}" for _, name, segment in parts))


# Default options for added tokens in tokenizer.json.
OPTIONS = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
FIELDS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")


def check_token_list(tokens: object) -> None:
    """Raise a ValueError if added tokens are not a list, but for example a string."""
    if not isinstance(tokens, Sequence) or isinstance(tokens, str | bytes):
        raise invalid("added_tokens", tokens, "a list of strings or dicts")


def complete_added_tokens(tokens: Sequence[str | Mapping], ids: Mapping[str, int]) -> list[dict]:
    """Return added tokens with all fields used in tokenizer.json.

    Args:
        tokens: List of strings, or of dicts with "content" and options. See `OPTIONS` for default
            values. "normalized" controls whether to search in normalized texts, and defaults to
            True for tokens that are not special.
        ids: Dict mapping tokens to ids. Tokens in this vocabulary keep their ids, and new tokens
            will be appended after the last id.

    Raises:
        ValueError: If a token is neither a string nor a dict with valid fields, or if two tokens
            have the same content or the same id.

    Example:
        >>> [token] = complete_added_tokens(["<e>"], {"a": 0})
        >>> token["id"], token["normalized"]
        (1, True)
    """
    check_token_list(tokens)
    if not tokens:
        return []
    last = max(ids.values(), default=-1)
    taken = {i: token for token, i in ids.items() if token not in ("", f"[unused id {i}]")}
    found, contents = [], set()
    for i, token in enumerate(tokens):
        if not isinstance(token, str | Mapping):
            raise invalid(f"added_tokens[{i}]", token, "a string, or a dict with the key 'content'")
        given = {"content": token} if isinstance(token, str) else dict(token)
        _check_token_entry(given, f"added_tokens[{i}]")
        entry = {**OPTIONS, "normalized": not given.get("special", False), **given}
        content = entry["content"]
        entry.setdefault("id", ids.get(content, last + 1))
        last = max(last, entry["id"])
        if taken.setdefault(entry["id"], content) != content or content in contents:
            raise ValueError(
                f"added_tokens[{i}] is {quote(content)} with the id {entry['id']}, but this token "
                "or id already exists. Expected a new token and a new id."
            )
        contents.add(content)
        found.append({field: entry[field] for field in FIELDS})
    return found


def merge_added_tokens(tokens: Sequence[str], added: Sequence[Mapping]) -> list[str]:
    """Return model tokens and added tokens, sorted by id.

    Example:
        >>> added = complete_added_tokens([{"content": "<e>", "id": 2}], {"a": 0})
        >>> merge_added_tokens(["a"], added)
        ['a', '[unused id 1]', '<e>']
    """
    size = max(len(tokens), *(token["id"] + 1 for token in added))
    known = dict(enumerate(tokens)) | {token["id"]: token["content"] for token in added}
    return [known.get(i, f"[unused id {i}]") for i in range(size)]


def _check_token_entry(token: Mapping, name: str) -> None:
    """Raise a ValueError if a field of an added token is unknown or has an invalid value."""
    content, token_id = token.get("content"), token.get("id", 0)
    if not set(token) <= set(FIELDS):
        expected = f"a string, or an object with only the fields {', '.join(FIELDS)}"
    elif not isinstance(content, str) or not content:
        expected = "a string that is not empty, or an object with this string as 'content'"
    elif type(token_id) is not int or not 0 <= token_id < 2**21:
        expected = f"an integer from 0 to {2**21 - 1} as 'id'"
    elif not all(type(v) is bool for k, v in token.items() if k not in ("content", "id")):
        expected = "true or false for all fields except 'content' and 'id'"
    else:
        return
    raise invalid(name, token, expected)


def make_added_token(token_id: int, token: str, lstrip: bool = False) -> dict:
    """Return an entry to add a special token to tokenizer.json."""
    own = {"id": token_id, "content": token, "lstrip": lstrip, "special": True}
    entry = {**OPTIONS, **own, "normalized": False}
    return {field: entry[field] for field in FIELDS}
