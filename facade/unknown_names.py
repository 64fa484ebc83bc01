"""Error messages for unknown names, including typos and names from other libraries."""

from collections.abc import Iterable

from encoder_zoo.common.wording import find_close_names, suggest_names

# {name in transformers, sentence-transformers, KerasHub or spaCy: code in this package}
EQUIVALENTS = {
    "pipeline": "a task: SequenceClassifier.from_preset(...).classify(texts), "
    "TokenClassifier.from_preset(...).extract_entities(texts), "
    "SpanQA.from_preset(...).answer(question, context), "
    "MaskedLM.from_preset(...).fill_mask(texts), or TextEmbedder.from_preset(...).embed(texts)",
    "AutoModel": "Backbone.from_preset(source)",
    "AutoTokenizer": "Tokenizer.from_preset(source)",
    "AutoConfig": "Backbone.from_preset(source).get_config()",
    "from_pretrained": "from_preset of a task, such as SequenceClassifier.from_preset(source)",
    "load": "from_preset of a task, such as SequenceClassifier.from_preset(source)",
    "load_model": "from_preset of a task, or keras.saving.load_model(file)",
    "Trainer": "compile and fit of a task, as in any Keras model",
    "TrainingArguments": "the arguments of a task's compile and fit",
    "DataCollatorWithPadding": "texts, because fit pads each batch to its longest text",
    "SentenceTransformer": "TextEmbedder.from_preset(source).embed(texts)",
    "CrossEncoder": "Reranker.from_preset(source).rank(query, texts)",
    "SentenceTransformerTrainer": "compile and fit of TextEmbedder, as in any Keras model",
    "GLiNER": "EntityExtractor.from_preset(source)",
    "SetFitModel": "FewShotClassifier.from_preset(source)",
    "InputExample": "columns of texts: TextEmbedder.fit((queries, documents)), or with scores as y",
    "MultipleNegativesRankingLoss": "losses.InfoNCE, the default for pairs in TextEmbedder.fit",
    "util": "TextEmbedder.similarity(a, b) for cos_sim, TextEmbedder.index(texts).search(query) "
    "for semantic_search and paraphrase_mining, TextEmbedder.mine_negatives for hard negatives",
    "cos_sim": "TextEmbedder.similarity(a, b)",
    "InformationRetrievalEvaluator": "TextEmbedder.evaluate_retrieval(queries, corpus, relevant)",
    "DocBin": "read_annotations(path)",
    "TextClassifier": "SequenceClassifier.from_preset(source)",
}
# {suffix of a class name: class for all families in this package}
GENERAL_CLASSES = {
    "ForSequenceClassification": "SequenceClassifier",
    "ForTokenClassification": "TokenClassifier",
    "ForQuestionAnswering": "SpanQA",
    "ForMaskedLM": "MaskedLM",
    "ForPreTraining": "Pretraining",
    "ForMultipleChoice": "MultipleChoice",
    "TextClassifierPreprocessor": "SequenceClassifierPreprocessor",
    "TextClassifier": "SequenceClassifier",
    "MaskedLMPreprocessor": "MaskedLMPreprocessor",
    "MaskedLM": "MaskedLM",
    "Classifier": "SequenceClassifier",
}
# {suffix of a class name in other packages: suffix in this package}
RENAMED_SUFFIXES = {"TokenizerFast": "Tokenizer", "Model": "Backbone", "Config": "Backbone"}


def explain(name: str, public: Iterable[str]) -> str:
    """Create the error message for an unknown name, with a suggestion if possible.

    Example:
        >>> explain("Clasifier", ["Classifier", "SpanQA"])
        "module 'encoder_zoo' has no attribute 'Clasifier'. Did you mean 'Classifier'?"
        >>> explain("AutoModel", [])
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
    """Return the class for all families that replaces a class for one family, or None."""
    for end, here in RENAMED_SUFFIXES.items():
        if name.endswith(end) and name.removesuffix(end) + here in public:
            return name.removesuffix(end) + here
    for end, here in GENERAL_CLASSES.items():
        if name.endswith(end):
            return here
    return None
