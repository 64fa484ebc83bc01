"""Prompts: texts that a model expects before a query or a document."""

from __future__ import annotations

import re
from collections.abc import Mapping

from encoder_zoo.common.wording import with_type

# The names that models give to the prompt of a document, which mean the same; the default first.
DOCUMENT_NAMES = ("document", "passage", "corpus")
# Names that mean no prompt where a model has none, as do the others of `DOCUMENT_NAMES`.
ROLES = ("query", "document")


def checked_prompts(prompts: Mapping[str, str] | None, default_prompt: str | None) -> dict:
    """Return the prompts by name.

    Raises:
        ValueError: "prompts['query'] is 3. Expected a text.", "default_prompt is 'q'. Expected one
            of query, passage."
    """
    prompts = dict(prompts or {})
    for name, text in prompts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"prompts[{name!r}] is {text!r}. Expected names and texts.")
    if default_prompt is not None and default_prompt not in prompts:
        raise ValueError(
            f"default_prompt is {default_prompt!r}. Expected one of {', '.join(prompts)}."
            if prompts
            else f"default_prompt is {default_prompt!r}, and there are no prompts."
        )
    return prompts


def prompt_text(prompts: Mapping[str, str], prompt: str | None, default: str | None) -> str:
    """Return the text that is put before every text.

    Args:
        prompts: {name: text} of the model.
        prompt: a name; "query" or "document", which mean no prompt where the model has none;
            "passage" or "corpus", which are "document" where no prompt has that name, and the other
            way round; a text that is no word, such as "query: "; or None for the default.
        default: name of the model's default prompt, or None for no prompt.

    Raises:
        ValueError: "There is no prompt 'qeury'. Expected query, document, ... or the text itself,
            such as 'query: '."

    Example:
        >>> prompts = {"query": "query: ", "passage": "passage: "}
        >>> [prompt_text(prompts, p, None) for p in ("query", "document", "search: ", None)]
        ['query: ', 'passage: ', 'search: ', '']
    """
    name = default if prompt is None else prompt
    if name is None:
        return ""
    if not isinstance(name, str):
        raise ValueError(f"prompt is {with_type(name)}. Expected its name, or its text.")
    for known in (name, *(DOCUMENT_NAMES if name in DOCUMENT_NAMES else ())):
        if known in prompts:
            return prompts[known]
    if name in (*ROLES, *DOCUMENT_NAMES) or not name:
        return ""
    if re.fullmatch(r"\w+", name):
        names = ", ".join(dict.fromkeys([*prompts, *ROLES]))
        raise ValueError(
            f"There is no prompt {name!r}. Expected {names}, or the text itself, such as 'query: '."
        )
    return name
