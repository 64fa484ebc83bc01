"""Routes of the service, with functions that parse requests and create responses."""

from __future__ import annotations

import base64
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from encoder_zoo.common.context import use_context
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.serving.batching import Job, Rows
from encoder_zoo.serving.limits import Limits
from encoder_zoo.serving.requests import Fields, RequestError, is_text
from encoder_zoo.tasks.base.classes import compute_sigmoid

MAX_SHORT_CHARACTERS = 2000  # maximum number of characters for short requests
BYTES_PER_TOKEN = 4  # an estimate for models without a tokenizer


class ParsedRequest(NamedTuple):
    """A job, with a function that creates the response.

    Attributes:
        job: The `Job` to compute.
        write: A function that converts the list of answers to the response body.
    """

    job: Job
    write: Callable[[list], Any]


class ServedModel(NamedTuple):
    """A model or index that answers requests.

    Attributes:
        name: String. Name of the model in requests and responses.
        task: A task, an opened export or an index.
        limits: `Limits` for requests and batches.
        on_truncated: A function that is called after batches with truncated texts. It takes the
            name of the model, the number of truncated texts and the log message.
    """

    name: str
    task: Any
    limits: Limits
    on_truncated: Callable[[str, int, str], None]

    def ask(self, method: str, rows: Rows, call: Callable[..., Sequence], options: Mapping) -> Job:
        """Create a job that is batched with other jobs for the same method and options.

        Args:
            method: String. Name of the method.
            rows: List of texts, or of tuples of texts.
            call: A function that computes the answers for rows. It is called with the arguments
                `batch_size` and `options`.
            options: Dict with JSON values.
        """
        key = (self.name, method, json.dumps(options, sort_keys=True))
        is_short = sum(map(len, find_texts(rows))) <= MAX_SHORT_CHARACTERS
        run = functools.partial(call, batch_size=self.limits.max_batch_texts, **options)
        return Job(key, self.count_truncated(run), rows, self.count_tokens, is_short)

    def ask_alone(self, row: Any, run: Callable[[Rows], Sequence]) -> Job:
        """Create a job with a single row that is computed in a separate batch."""
        return Job(object(), self.count_truncated(run), [row], self.count_tokens)

    def count_truncated(self, run: Callable[[Rows], Sequence]) -> Callable[[Rows], Sequence]:
        """Wrap a function so that truncated texts are counted instead of logged for each batch."""

        def run_and_count(rows: Rows) -> Sequence:
            counts: dict[tuple[int, str], tuple[int, int]] = {}
            with use_context(truncated=counts):
                answers = run(rows)
            for (_, message), (truncated, _) in counts.items():
                if truncated:
                    self.on_truncated(self.name, truncated, message)
            return answers

        return run_and_count

    def count_tokens(self, rows: Rows) -> list[int]:
        """Count the tokens of each row. Rows can be texts or sequences of texts.

        Without a preprocessor, the number of tokens is estimated from the number of bytes.
        """
        parts = [find_texts(row) for row in rows]
        texts = [text for part in parts for text in part]
        preprocessor = getattr(self.task, "preprocessor", None)
        if preprocessor is None:
            counts = [1 + len(text.encode()) // BYTES_PER_TOKEN for text in texts]
        else:
            with use_numpy():
                counts = preprocessor.tokenizer.tokenize(texts).row_lengths().numpy().tolist()
        left = iter(counts)
        return [sum(next(left) for _ in part) for part in parts]


def find_texts(row: Any) -> list[str]:
    """Return all texts in a row. Rows can be nested sequences.

    Example:
        >>> find_texts(("Who?", ["Ada.", "Grace."]))
        ['Who?', 'Ada.', 'Grace.']
    """
    return [row] if isinstance(row, str) else [text for part in row for text in find_texts(part)]


def transpose_rows(rows: Rows) -> tuple[list, ...]:
    """Convert rows to columns.

    Example:
        >>> transpose_rows([("a", "b"), ("c", "d")])
        (['a', 'c'], ['b', 'd'])
    """
    return tuple(map(list, zip(*rows, strict=True)))


# -- reading -------------------------------------------------------------------------------------


def parse_classify(model: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a request to the `/classify` route."""
    rows = fields.read_texts("texts", pairs=True)
    options = fields.read_options(
        "top_k", "threshold", "abstain_below", "labels", "hypothesis_template", "multi_label"
    )

    def classify_pairs(rows: Rows, **options: Any) -> Sequence:
        return model.task.classify(transpose_rows(rows), **options)

    if isinstance(rows[0], str):
        job = model.ask("classify", rows, model.task.classify, options)
    else:
        job = model.ask("classify pairs", rows, classify_pairs, options)
    return ParsedRequest(job, make_answer_writer(model))


def parse_entities(model: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a request to the `/entities` route."""
    rows = fields.read_texts("texts")
    options = fields.read_options("threshold", "strategy", "nested", "multi_label")
    labels = fields.read("labels", are_labels, "a list of texts, or an object of texts")
    options |= {} if labels is None else {"labels": labels}
    job = model.ask("extract_entities", rows, model.task.extract_entities, options)
    return ParsedRequest(job, make_answer_writer(model))


def are_labels(value: object) -> bool:
    """Return True for a list of label names, or a dict mapping label names to descriptions.

    The labels must be the same for all texts, because texts are batched.
    """
    texts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return isinstance(texts, list) and all(map(is_text, texts))


def parse_answer(model: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a request to the `/answer` route.

    The request can contain one question for all contexts, or one question per context.
    """
    questions, contexts = fields.read_texts("question"), fields.read_texts("context")
    options = fields.read_options("top_k", "max_answer_length", "null_threshold")
    batch_size = model.limits.max_batch_texts

    def answer(rows: Rows, **options: Any) -> Sequence:
        return model.task.answer(*transpose_rows(rows), **options)

    def answer_from_passages(rows: Rows) -> Sequence:
        [(question, passages)] = rows
        return [model.task.answer(question, passages, batch_size=batch_size, **options)]

    if fields.is_single("question") and not fields.is_single("context"):
        job = model.ask_alone((questions[0], contexts), answer_from_passages)
        return ParsedRequest(job, make_answer_writer(model))
    if len(contexts) not in (1, len(questions)):
        message = f"context has {len(contexts)} texts, but question has {len(questions)}."
        raise RequestError(422, f"{message} Expected 1 or {len(questions)} contexts.", "context")
    contexts = contexts * len(questions) if len(contexts) == 1 else contexts
    rows = list(zip(questions, contexts, strict=True))
    return ParsedRequest(model.ask("answer", rows, answer, options), make_answer_writer(model))


def parse_fill_mask(model: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a request to the `/fill_mask` route."""
    rows, options = fields.read_texts("texts"), fields.read_options("top_k", "targets")
    job = model.ask("fill_mask", rows, model.task.fill_mask, options)
    return ParsedRequest(job, make_answer_writer(model))


def parse_embeddings(model: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a request to the `/v1/embeddings` route in the OpenAI API format.

    The additional field `prompt` can be set to "query", "document" or the text of a prompt.
    """
    fields.read("input", is_not_token_list, "a text or a list of texts, not a list of token ids")
    rows, options = fields.read_texts("input"), fields.read_options("dimensions", "prompt")
    formats = ("float", "base64")
    form = fields.read("encoding_format", lambda v: v in formats, "'float' or 'base64'")
    fields.read_options("user")  # this field is ignored
    options = {{"dimensions": "dim"}.get(name, name): v for name, v in options.items()}
    job = model.ask("embed", rows, model.task.embed, options)

    def write(vectors: list) -> dict:
        encode = encode_base64 if form == "base64" else np.ndarray.tolist
        data = [
            {"object": "embedding", "index": i, "embedding": encode(vector)}
            for i, vector in enumerate(vectors)
        ]
        usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(job.costs))
        return {"object": "list", "data": data, "model": model.name, "usage": usage}

    return ParsedRequest(job, write)


def is_not_token_list(value: object) -> bool:
    """Return False for a list of token ids, or a list of lists of token ids."""
    return not (isinstance(value, list) and value and isinstance(value[0], int | list))


def encode_base64(vector: np.ndarray) -> str:
    """Convert a vector to little-endian float32 values, and encode the bytes to base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def parse_rerank(model: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a request to the `/rerank` route, in the text-embeddings-inference or Cohere format.

    For text-embeddings-inference, the fields are `texts` and `return_text`. For Cohere, the fields
    are `documents`, `top_n` and `return_documents`.
    """
    query, is_coheres = fields.read_text("query"), fields.has("documents")
    name = "documents" if is_coheres else "texts"
    texts = fields.read_texts(name)
    if not query.strip():
        raise RequestError(422, "`query` is empty. Expected a text.", "query")
    for i, text in enumerate(texts):
        if not text.strip():
            raise RequestError(
                422, f"`{name}[{i}]` is empty. Remove empty texts from the request.", name
            )
    top_n = fields.read("top_n", lambda v: type(v) is int and v >= 1, "an integer of 1 or more")
    text_flag = "return_documents" if is_coheres else "return_text"
    shows_text = fields.read(text_flag, lambda v: type(v) is bool, "true or false")
    # Fields for text-embeddings-inference. This package always truncates long texts.
    fields.read("truncate", lambda v: v is True, "true")
    fields.read("raw_scores", lambda v: v is False, "false")

    def write(found: list) -> Any:
        ranked = order_scores(model, found, texts) if is_joined else found[0]
        score, text = ("relevance_score", "document") if is_coheres else ("score", "text")
        rows = [{"index": one["index"], score: one["score"]} for one in ranked[:top_n]]
        for row in rows if shows_text else ():
            row[text] = {"text": texts[row["index"]]} if is_coheres else texts[row["index"]]
        return {"results": rows, "model": model.name} if is_coheres else rows

    is_joined = hasattr(model.task, "activation")  # a Reranker scores each pair separately
    if not is_joined:
        job = model.ask_alone((query, texts), lambda rows: [model.task.rank(*rows[0])])
        return ParsedRequest(job, write)

    def score_pairs(rows: Rows, batch_size: int) -> Sequence:
        return model.task.predict(transpose_rows(rows), batch_size, verbose=0)[:, 0]

    pairs = [(query, text) for text in texts]
    return ParsedRequest(model.ask("rank", pairs, score_pairs, {}), write)


def order_scores(model: ServedModel, logits: list, texts: list[str]) -> list[dict]:
    """Convert logits to a list of results as in `Reranker.rank`, sorted by score."""
    logits = np.array(logits)
    scores = compute_sigmoid(logits) if model.task.activation == "sigmoid" else logits
    order = np.argsort(-logits, kind="stable").tolist()  # large logits can have equal scores
    return [{"index": i, "score": scores[i].item()} for i in order]


def parse_search(model: ServedModel, fields: Fields) -> ParsedRequest:
    """Parse a request to the `/search` route."""
    rows = fields.read_texts("query")
    options = fields.read_options("top_k", "where", "min_score", "group_by", "offset")

    def search(rows: Rows, batch_size: int, **options: Any) -> Sequence:
        return model.task.search(rows, **options)

    job = model.ask("search", rows, search, options)
    return ParsedRequest(job, make_answer_writer(model, "index"))


def make_answer_writer(model: ServedModel, kind: str = "model") -> Callable[[list], dict]:
    """Return a function that converts a list of answers to the response body."""
    return lambda answers: {kind: model.name, "answers": answers}


# -- routes --------------------------------------------------------------------------------------


class Route(NamedTuple):
    """A route of the service.

    Attributes:
        paths: Tuple of strings. URL paths of the route.
        method: String. Name of the model method to call.
        read: A function that creates a `ParsedRequest` from a model and the fields of a request.
        texts: String. Name of the field with texts.
        example: Dict. Additional fields for warm-up requests.
    """

    paths: tuple[str, ...]
    method: str
    read: Callable[[ServedModel, Fields], ParsedRequest]
    texts: str
    example: dict[str, Any]

    @property
    def kind(self) -> str:
        """The name of the field for the model name or the index name, "model" or "index"."""
        return "index" if self.method == "search" else "model"

    def supports_model(self, task: Any) -> bool:
        """Return True if this route can use the model.

        The embeddings route supports dense vectors only, so the `embed` method must have an
        argument `dim`.
        """
        method = getattr(task, self.method, None)
        dense = self.method != "embed" or "dim" in inspect.signature(method or len).parameters
        return method is not None and dense


EXAMPLE = "An example for the warm-up. "
ROUTES = (
    Route(("/v1/embeddings",), "embed", parse_embeddings, "input", {}),
    Route(
        ("/rerank", "/v1/rerank", "/v2/rerank"), "rank", parse_rerank, "texts", {"query": EXAMPLE}
    ),
    Route(("/classify",), "classify", parse_classify, "texts", {}),
    Route(("/entities",), "extract_entities", parse_entities, "texts", {}),
    Route(("/answer",), "answer", parse_answer, "context", {"question": EXAMPLE}),
    Route(("/fill_mask",), "fill_mask", parse_fill_mask, "texts", {}),
    Route(("/search",), "search", parse_search, "query", {}),
)


def make_examples(route: Route, model: ServedModel) -> Iterator[ParsedRequest]:
    """Create requests for the warm-up: a short text, a batch of short texts and a long text."""
    short = EXAMPLE + "[MASK] <mask>" if route.method == "fill_mask" else EXAMPLE
    takes_labels = "labels" in inspect.signature(getattr(model.task, route.method)).parameters
    batch = min(model.limits.max_batch_texts, model.limits.max_queue_texts)
    for texts in ([short], [short] * batch, [200 * short]):
        given = {**route.example, route.texts: texts}
        if takes_labels:
            given["labels"] = ["name", "place"]
        if "question" in given:
            given["question"] = [EXAMPLE] * len(texts)
        yield route.read(model, Fields(given, len(texts)))
