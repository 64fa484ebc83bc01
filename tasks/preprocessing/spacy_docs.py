"""Documents of spaCy as texts, as lists of words, and their entities as spans of characters.

spaCy is not imported: a `Doc` or `Span` is what has its attributes.
"""

from __future__ import annotations


def is_doc(value: object) -> bool:
    """Return whether this is a `Doc`, or a `Span` of one, which is a text in tokens."""
    return hasattr(value, "ents") and hasattr(value, "text") and hasattr(value, "__iter__")


def are_documents(values: object) -> bool:
    """Return whether this is a list of documents."""
    return isinstance(values, list | tuple) and len(values) > 0 and is_doc(values[0])


def text_of(value):
    """Return the text of a document; anything else unchanged."""
    return value.text if is_doc(value) else value


def doc_words(value):
    """Return the words of a document, one for each of its tokens; anything else unchanged."""
    return [token.text for token in value] if is_doc(value) else value


def is_span(value: object) -> bool:
    """Return whether this is a `Span`."""
    return hasattr(value, "start_char") and hasattr(value, "end_char")


def spans_in(document, spans) -> list[tuple[int, int, str]]:
    """Return spans as (start, end, label), in characters of a document's text.

    Args:
        document: a `Doc`, or a `Span` of the same.
        spans: `Span`s, such as `document.ents`.
    """
    begin = getattr(document, "start_char", 0)
    return [(span.start_char - begin, span.end_char - begin, span.label_) for span in spans]


def reference_of(value):
    """Return the annotated document of an `Example`; anything else unchanged."""
    return value.reference if hasattr(value, "reference") and hasattr(value, "predicted") else value
