"""Where the names of this package are: {module: names in it}."""

from encoder_zoo.encoders import FAMILIES, family_module


def _inside(module: str) -> str:
    return module.removeprefix("encoder_zoo.")


# Classes that Keras writes into files, such as `.keras`, and opens again by their names.
SAVED = {
    "encoders.backbone": ["Backbone"],
    **{_inside(family_module(name)): [backbone] for name, backbone in FAMILIES.items()},
    "encoders.tokenizers.wordpiece": ["BertTokenizer"],
    "encoders.tokenizers.bertweet": ["BertweetTokenizer"],
    "encoders.tokenizers.byte_bpe": ["RobertaTokenizer"],
    "encoders.tokenizers.gemma": ["GemmaTokenizer"],
    "encoders.tokenizers.modern_bpe": ["ModernBertTokenizer"],
    "encoders.tokenizers.sentencepiece": [
        "AlbertTokenizer",
        "CamembertTokenizer",
        "DebertaV2Tokenizer",
        "XLMRobertaTokenizer",
    ],
    "tasks.sequence_classification.task": ["SequenceClassifier"],
    "tasks.sequence_classification.preprocessor": ["SequenceClassifierPreprocessor"],
    "tasks.token_classification.task": ["TokenClassifier"],
    "tasks.token_classification.preprocessor": ["TokenClassifierPreprocessor"],
    "tasks.token_classification.metrics": ["EntityF1"],
    "tasks.question_answering.task": ["SpanQA"],
    "tasks.question_answering.preprocessor": ["SpanQAPreprocessor"],
    "tasks.pretraining.masked_lm": ["MaskedLM"],
    "tasks.pretraining.masked_lm_preprocessor": ["MaskedLMPreprocessor"],
    "tasks.pretraining.pretraining": ["Pretraining"],
    "tasks.pretraining.pretraining_preprocessor": ["PretrainingPreprocessor"],
    "tasks.pretraining.replaced_tokens": ["ReplacedTokenDetection"],
    "tasks.pretraining.replaced_tokens_preprocessor": ["ReplacedTokenDetectionPreprocessor"],
}
# Classes inside of these, which are not public.
SAVED_PARTS = {
    "encoders.attention": ["SelfAttention"],
    "encoders.blocks": ["EncoderBlock"],
    "encoders.embeddings": ["Embeddings"],
    "encoders.layers": ["Dropout", "LayerNorm"],
    "encoders.families.deberta_v2": [
        "DebertaV2Block",
        "DisentangledAttention",
        "TextConvolution",
    ],
    "encoders.families.modernbert": [
        "ModernBertBlock",
        "ModernBertEmbeddings",
        "RotaryAttention",
    ],
    "encoders.families.roberta": ["RobertaEmbeddings"],
    "tasks.base.head": ["HiddenLayer", "TaskHead"],
    "tasks.pretraining.masked_lm_head": ["MaskedLMHead"],
    "tasks.token_classification.metrics": ["TokenAccuracy"],
    "tasks.training.logit_metrics": ["ClassAccuracy", "ClassCrossentropy", "OfLogits"],
    "tasks.training.named_metrics": ["Matthews", "Pearson", "Perplexity", "Spearman"],
    "tasks.question_answering.metrics": ["SpanExactMatch", "SpanF1"],
    "tasks.training.recipe": ["FusedAdamW", "LinearWarmupDecay", "ScheduledAdamW"],
}
# Public names of other things.
NOT_SAVED = {
    "tasks.distillation.task": ["Distillation"],
    "presets.registry": ["list_presets"],
    "presets.train_vocabulary": ["train_vocabulary"],
    "tasks.question_answering.squad": ["read_squad"],
    "tasks.token_classification.conll": ["read_conll"],
    "encoders.tokenizers.tokenizer": ["Tokenizer"],
    "tasks.corpora.corpus": ["PretrainingCorpus"],
    "tasks.pretraining.sentence_order": ["sentence_order_pairs"],
    "tasks.training.backup": ["BackupAndRestore"],
}
# Public modules.
MODULES = {"display": "tasks.display"}
ALIASES = {"Classifier": "SequenceClassifier"}


def homes(*tables: dict[str, list[str]]) -> dict[str, str]:
    """{name: module that it is in} of some of the tables.

    Example:
        >>> homes(NOT_SAVED)["list_presets"]
        'encoder_zoo.presets.registry'
    """
    return {
        name: f"encoder_zoo.{module}"
        for table in tables
        for module, names in table.items()
        for name in names
    }
