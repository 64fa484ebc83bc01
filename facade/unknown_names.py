"""Error messages for unknown names, including typos and names from other libraries."""

from collections.abc import Iterable

from encoder_zoo.common.wording import find_close_names, read_other_names, suggest_names

# {name in transformers, sentence-transformers, KerasHub or spaCy: code in this package}
EQUIVALENTS = read_other_names("public_names")
# {suffix of a class name: class for all families in this package}
GENERAL_CLASSES = read_other_names("general_classes")
# {suffix of a class name in other packages: suffix in this package}
RENAMED_SUFFIXES = read_other_names("renamed_suffixes")


def explain_unknown_name(name: str, public: Iterable[str]) -> str:
    """Create the error message for an unknown name, with a suggestion if possible.

    Example:
        >>> explain_unknown_name("Clasifier", ["Classifier", "SpanQA"])
        "module 'encoder_zoo' has no attribute 'Clasifier'. Did you mean 'Classifier'?"
        >>> explain_unknown_name("AutoModel", [])
        "module 'encoder_zoo' has no attribute 'AutoModel'. Use Backbone.from_preset(source)."
    """
    message = f"module 'encoder_zoo' has no attribute {name!r}."
    public = list(public)
    if name in EQUIVALENTS:
        return f"{message} Use {EQUIVALENTS[name]}."
    if meant := find_similar_names(name, public):
        return message + suggest_names(meant)
    if meant := _find_general_class(name, public):
        return f"{message} Use {meant}.from_preset(source)."
    return message


def find_similar_names(name: str, public: Iterable[str]) -> list[str]:
    """Find up to two similar public names, ignoring case.

    Example:
        >>> find_similar_names("bertbackbone", ["BertBackbone", "AlbertBackbone", "SpanQA"])
        ['BertBackbone']
    """
    by_lower = {each.lower(): each for each in public}
    if name.lower() in by_lower:
        return [by_lower[name.lower()]]
    close = find_close_names(name.lower(), by_lower, max_names=2, cutoff=0.88)
    return [by_lower[each] for each in close]


def _find_general_class(name: str, public: list[str]) -> str | None:
    """Return the class that corresponds to a class in another package, or None."""
    for end, here in RENAMED_SUFFIXES.items():
        if name.endswith(end) and name.removesuffix(end) + here in public:
            return name.removesuffix(end) + here
    for end, here in GENERAL_CLASSES.items():
        if name.endswith(end):
            return here
    return None
