"""The service, asked over HTTP: answers are those of the tasks, and faults are survived."""

import base64
import collections
import concurrent.futures
import contextlib
import gzip
import json
import math
import pathlib
import random
import resource
import socket
import struct
import threading
import time
from typing import ClassVar

import numpy as np
import pytest
from served import httpx, serve, wait_until
from small_tasks import make

import encoder_zoo as ez
from encoder_zoo.serving import Limits, connections, create_app

WORDS = "one two the movie was not good Berlin Ada law tax of in 2024 nice bad".split()


@pytest.fixture(scope="module")
def models():
    return {
        "reviews": ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment"),
        "names": ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner"),
        "vectors": ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder"),
        "pairs": make("Reranker"),
        "masks": make("MaskedLM"),
        "spans": make("SpanQA"),
    }


@pytest.fixture(scope="module")
def index(models):
    laws = [{"id": f"d{i}", "text": f"Law {w}.", "year": 2000 + i} for i, w in enumerate(WORDS)]
    return models["vectors"].index(laws)


@pytest.fixture(scope="module")
def client(models, index):
    with serve(create_app(models, {"laws": index})) as client:
        yield client


def post(client, path, **fields):
    """Return the body of a successful answer."""
    response = client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client, path, status, **fields):
    """Return the error of a refused request."""
    response = client.post(path, json=fields)
    assert response.status_code == status, response.text
    return response.json()["error"]


def assert_close(found, expected):
    """Compare answers: numbers within 1e-5, all else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-5), (found, expected)
    else:
        assert found == expected


# -- answers ---------------------------------------------------------------------------------------


class TestAnswers:
    @pytest.mark.slow
    def test_embeddings_in_openais_form(self, client, models):
        body = post(client, "/v1/embeddings", input=["A cat.", "Tax law."], model="vectors")
        assert body["object"] == "list" and body["model"] == "vectors"
        assert [row["index"] for row in body["data"]] == [0, 1]
        assert {row["object"] for row in body["data"]} == {"embedding"}
        vectors = models["vectors"].embed(["A cat.", "Tax law."])
        np.testing.assert_allclose([row["embedding"] for row in body["data"]], vectors, atol=1e-5)
        # "a cat ." and "tax law ."
        assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}

    @pytest.mark.slow
    def test_embeddings_in_base64_with_fewer_dimensions_and_a_prompt(self, client, models):
        fields = {"encoding_format": "base64", "dimensions": 8, "prompt": "query", "user": "me"}
        [row] = post(client, "/v1/embeddings", input="A cat.", **fields)["data"]
        vector = struct.unpack("<8f", base64.b64decode(row["embedding"]))
        expected = models["vectors"].embed("A cat.", prompt="query", dim=8)
        np.testing.assert_allclose(vector, expected, atol=1e-5)

    def test_reranking_in_both_forms(self, client, models):
        texts = ["one", "two three", "four"]
        ranked = models["pairs"].rank("six", texts)
        found = post(client, "/rerank", query="six", texts=texts, return_text=True)
        assert_close(found, ranked)
        body = post(client, "/v2/rerank", query="six", documents=texts, top_n=2)
        rows = [{"index": one["index"], "relevance_score": one["score"]} for one in ranked[:2]]
        assert_close(body, {"results": rows, "model": "pairs"})
        body = post(client, "/rerank", query="six", documents=texts, return_documents=True)
        assert body["results"][0]["document"] == {"text": ranked[0]["text"]}

    def test_an_embedder_ranks_too(self, client, models):
        texts = ["A cat.", "Tax law."]
        found = post(client, "/rerank", query="law", texts=texts, model="vectors", return_text=True)
        assert_close(found, models["vectors"].rank("law", texts))

    def test_saturated_scores_keep_the_order_of_their_logits(self):
        class Saturated:
            activation = "sigmoid"

            def rank(self):
                raise AssertionError

            def predict(self, pairs, batch_size, verbose):
                return np.array([[len(text)] for text in pairs[1]], "float32")

        with serve(create_app({"a": Saturated()})) as client:
            found = post(client, "/rerank", query="q", texts=["x" * 30, "x" * 50, "x" * 40])
        assert [row["index"] for row in found] == [1, 2, 0]
        assert {row["score"] for row in found} == {1.0}

    def test_classes(self, client, models):
        texts = ["I love it.", "How bad!"]
        expected = models["reviews"].classify(texts, top_k=2)
        assert_close(post(client, "/classify", texts=texts, top_k=2)["answers"], expected)
        body = post(client, "/classify", texts="I love it.")
        assert_close(body, {"model": "reviews", "answers": models["reviews"].classify(texts[:1])})

    def test_classes_of_pairs(self, client, models):
        pairs = [["Nice.", "Not so nice."], ["One.", "Two."]]
        expected = models["reviews"].classify(tuple(zip(*pairs, strict=True)))
        assert_close(post(client, "/classify", texts=pairs)["answers"], expected)

    def test_entities(self, client, models):
        text = "Ada Lovelace lived in London."
        expected = models["names"].extract_entities([text], strategy="first", threshold=0.2)
        fields = {"texts": [text], "strategy": "first", "threshold": 0.2}
        assert_close(post(client, "/entities", **fields)["answers"], expected)

    @pytest.mark.slow
    def test_answers_in_contexts_and_passages(self, client, models):
        spans, contexts = models["spans"], ["one two three", "four five"]
        found = post(client, "/answer", question=["six", "two"], context=contexts)["answers"]
        assert_close(found, spans.answer(["six", "two"], contexts))
        found = post(client, "/answer", question=["six", "two"], context="four five")["answers"]
        assert_close(found, spans.answer(["six", "two"], "four five"))
        [found] = post(client, "/answer", question="six", context=contexts, top_k=2)["answers"]
        assert_close(found, spans.answer("six", contexts, top_k=2))
        [found] = post(client, "/answer", question="six", context="four five")["answers"]
        assert_close(found, spans.answer("six", "four five"))

    def test_masks(self, client, models):
        texts = ["one [MASK] three", "[MASK] [MASK]"]
        found = post(client, "/fill_mask", texts=texts, top_k=2)["answers"]
        assert_close(found, models["masks"].fill_mask(texts, top_k=2))

    def test_search(self, client, index):
        found = post(client, "/search", query="tax law", top_k=3)
        assert_close(found, {"index": "laws", "answers": index.search(["tax law"], top_k=3)})
        where = {"year": {"$gte": 2008}}
        found = post(client, "/search", query=["tax", "Ada"], where=where)["answers"]
        assert_close(found, index.search(["tax", "Ada"], where=where))

    def test_zero_shot_labels_and_those_of_entities(self):
        class Given:
            def classify(self, texts, labels, batch_size=None, multi_label=False):
                return [{"labels": labels, "multi_label": multi_label} for _ in texts]

            def extract_entities(self, texts, labels=None, batch_size=None):
                return [labels for _ in texts]

        with serve(create_app({"a": Given()})) as client:
            fields = {"texts": ["a"], "labels": ["x", "y"]}
            [answer] = post(client, "/classify", **fields, multi_label=True)["answers"]
            assert answer == {"labels": ["x", "y"], "multi_label": True}
            for labels in (["x"], {"x": "what it is"}):
                assert post(client, "/entities", texts="a", labels=labels)["answers"] == [labels]
            # They would be of texts of other requests, too.
            fields["labels"] = [["x"], ["y"]]
            assert refusal(client, "/entities", 422, **fields)["param"] == "labels"


# -- refusals --------------------------------------------------------------------------------------


WRONG_FIELDS = [
    ("/classify", {}, "texts"),
    ("/classify", {"texts": None}, "texts"),
    ("/classify", {"texts": []}, "texts"),
    ("/classify", {"texts": {"a": 1}}, "texts"),
    ("/classify", {"texts": ["a", 3]}, "texts"),
    ("/classify", {"texts": [["a", "b"], "c"]}, "texts"),
    ("/classify", {"texts": [["a", "b", "c"]]}, "texts"),
    ("/classify", {"texts": "a", "top_k": 0}, "top_k"),
    ("/classify", {"texts": "a", "top_k": "2"}, "top_k"),
    ("/classify", {"texts": "a", "threshold": 2}, "threshold"),
    ("/classify", {"texts": "a", "threshold": {"nice": 0.5}}, "threshold"),
    ("/classify", {"texts": "a", "labels": ["b"]}, "labels"),
    ("/classify", {"texts": "a", "batch_size": 8}, "batch_size"),
    ("/classify", {"texts": "a", "model": 3}, "model"),
    ("/v1/embeddings", {"input": [1, 2, 3]}, "input"),
    ("/v1/embeddings", {"input": [[1, 2], [3]]}, "input"),
    ("/v1/embeddings", {"input": ["a", " "]}, "input"),
    ("/v1/embeddings", {"input": "a", "dimensions": 10_000}, "dimensions"),
    ("/v1/embeddings", {"input": "a", "dimensions": -1}, "dimensions"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ("/v1/embeddings", {"input": "a", "encoding_format": ["float"]}, "encoding_format"),
    ("/entities", {"texts": "a", "strategy": "best"}, "strategy"),
    ("/entities", {"texts": "a", "labels": ["b"]}, "labels"),
    ("/fill_mask", {"texts": ["[MASK]", "no mask"]}, "texts"),
    ("/fill_mask", {"texts": "[MASK]", "targets": ["not one token"]}, "targets"),
    ("/answer", {"question": "a"}, "context"),
    ("/answer", {"question": ["a", "b"], "context": ["c", "d", "e"]}, "context"),
    ("/answer", {"question": "a", "context": "c", "max_answer_length": 0}, "max_answer_length"),
    ("/rerank", {"query": ["a"], "texts": ["b"]}, "query"),
    ("/rerank", {"query": "a", "texts": ["b", ""]}, "texts"),
    ("/rerank", {"query": "a", "documents": [{"text": "b"}]}, "documents"),
    ("/rerank", {"query": "a", "documents": ["b"], "top_n": True}, "top_n"),
    ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}, "raw_scores"),
    ("/search", {"query": "a", "where": {"color": "red"}}, "where"),
    ("/search", {"query": "a", "group_by": "color"}, "group_by"),
    ("/search", {"query": "a", "reranker": "/etc/passwd"}, "reranker"),
]


class TestRefusals:
    @pytest.mark.parametrize(
        "limits", [{"max_texts": 0}, {"max_wait": -1.0}, {"max_texts": 9, "max_queue_texts": 8}]
    )
    def test_limits_that_let_nothing_pass(self, limits):
        with pytest.raises(ValueError, match=min(limits)):
            Limits(**limits)

    @pytest.mark.parametrize("path, fields, wrong", WRONG_FIELDS)
    def test_wrong_fields_are_named(self, client, path, fields, wrong):
        error = refusal(client, path, 422, **fields)
        assert error["param"] == wrong and error["type"] == "invalid_request_error"
        assert wrong.removesuffix("s") in error["message"] or wrong == "input"

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"texts=a",
            b"[1]",
            b'"a"',
            b"null",
            b"\xff\xfe",
            '{"texts": "a"}'.encode("utf-16"),
            b'{"texts": "a", "top_k": NaN}',
            b'{"texts": "a", "top_k": 1' + b"0" * 5000 + b"}",
            b"[" * 100_000,
        ],
        ids=lambda body: repr(body[:20]),
    )
    def test_what_is_not_an_object_in_json(self, client, body):
        response = client.post("/classify", content=body)
        assert response.status_code == 422
        assert response.json()["error"]["param"] == "body"

    def test_half_a_character_is_not_a_text(self, client):
        response = client.post("/classify", content=b'{"texts": ["a", "\\ud800"]}')
        assert response.status_code == 422 and "texts[1]" in response.json()["error"]["message"]

        half = "\ud800"
        for path, fields, param in (
            ("/classify", {"texts": "a", half: 1}, half),
            ("/classify", {"texts": "a", "model": half}, "model"),
            ("/v1/embeddings", {"input": "a", "prompt": half}, "prompt"),
            ("/search", {"query": "a", "where": {"year": [half]}}, "where"),
            ("/fill_mask", {"texts": "[MASK]", "targets": [half]}, "targets"),
        ):
            response = client.post(path, content=json.dumps(fields).encode())
            assert response.status_code in (404, 422)
            assert response.json()["error"]["param"] == param

    def test_a_compressed_body_is_refused_by_name(self, client):
        body = gzip.compress(b'{"texts": "a"}')
        response = client.post("/classify", content=body, headers={"Content-Encoding": "gzip"})
        assert response.status_code == 415 and "gzip" in response.json()["error"]["message"]

    def test_unknown_models_and_paths(self, client):
        error = refusal(client, "/v1/embeddings", 404, input="a", model="gpt")
        assert error["code"] == "model_not_found" and "vectors" in error["message"]
        error = refusal(client, "/search", 404, query="a", index="../laws")
        assert error["code"] == "index_not_found" and "laws" in error["message"]
        assert refusal(client, "/v1/chat/completions", 404)["param"] is None
        for method, path, allowed in (("GET", "/classify", "POST"), ("POST", "/health", "GET")):
            response = client.request(method, path)
            assert response.status_code == 405
            assert allowed in response.json()["error"]["message"]
        error = refusal(client, "/rerank", 422, query=" ", texts=["a"])
        assert error["param"] == "query"

    def test_routes_are_there_if_a_model_is(self, models):
        class Sparse:  # its `embed` has no dense vectors
            def embed(self, texts, prompt=None, max_terms=None, batch_size=None):
                raise AssertionError

            def rank(self, query, texts):
                return [{"index": 0, "score": 1.0, "text": texts[0]}]

        with serve(create_app({"sparse": Sparse()})) as client:
            for path in ("/v1/embeddings", "/classify", "/search"):
                assert client.post(path, json={}).status_code == 404
            assert post(client, "/rerank", query="a", texts=["b"])[0]["index"] == 0
        with pytest.raises(ValueError, match="supports a route"):
            create_app({"nothing": object()})

    def test_names_of_models(self, client, models):
        names = [row["id"] for row in client.get("/v1/models").json()["data"]]
        assert sorted(names) == sorted([*models, "laws"])
        assert client.get("/v1/models/").json() == client.get("/v1/models").json()
        for name in names:
            assert client.get(f"/v1/models/{name}").json()["id"] == name

    def test_unknown_names_of_models(self, client):
        for name in ("nothing", "org/nothing"):
            answer = client.get(f"/v1/models/{name}")
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "model_not_found"

    def test_names_of_models_with_slashes(self):
        with serve(create_app({"org/reviews": Model()})) as client:
            assert client.get("/v1/models/org/reviews").json()["id"] == "org/reviews"


# -- faults ----------------------------------------------------------------------------------------


class Model:
    """A classifier whose answers a test may delay or let fail."""

    def __init__(self, error=ValueError):
        self.go, self.entered, self.calls = threading.Event(), threading.Event(), []
        self.error = error
        self.go.set()

    def classify(self, texts, batch_size=None, top_k=None):
        self.calls.append(list(texts))
        self.entered.set()
        assert self.go.wait(30)
        if "broken" in texts:
            raise self.error("a secret of the server")
        return [{"label": text.upper()} for text in texts]

    def hold(self):
        """Let the next call wait."""
        self.calls.clear()
        self.go.clear()
        self.entered.clear()


def ask_in_threads(client, texts, **fields):
    """Post one request for each text at once; return the futures of the responses."""
    pool = concurrent.futures.ThreadPoolExecutor(len(texts))
    url = client.base_url.join("/classify")
    asked = [pool.submit(httpx.post, url, json={"texts": t, **fields}, timeout=60) for t in texts]
    pool.shutdown(wait=False)
    return asked


def waiting_texts(client):
    """Return the number of texts in the queue."""
    lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("encoder_zoo_queue")).split()[1])


class TestFaults:
    def test_truncated_texts_are_counted_and_logged_once(self, models, caplog):
        long = "nice " * 1000
        with serve(create_app({"reviews": models["reviews"]})) as client:
            assert "encoder_zoo_truncated_texts_total 0.0" in client.get("/metrics").text
            for texts in (long, [long, "short"], [[long, "short"], [long, long]], "short"):
                post(client, "/classify", texts=texts)
            metrics = client.get("/metrics").text
        assert "encoder_zoo_truncated_texts_total 4.0" in metrics
        logged = [r for r in caplog.records if r.levelname == "WARNING" and r.name == "encoder_zoo"]
        assert ["pairs" in r.getMessage() for r in logged] == [False, True]

    def test_only_ready_after_the_warm_up(self):
        model = Model()
        model.hold()
        with serve(create_app({"a": model}), until_ready=False) as client:
            assert model.entered.wait(30)
            assert client.get("/health").status_code == 503
            model.go.set()
            wait_until(lambda: client.get("/health").status_code == 200)
        sizes = {(len(texts), max(map(len, texts)) > 1000) for texts in model.calls}
        assert sizes == {(1, False), (32, False), (1, True)}

    def test_a_model_that_fails_in_the_warm_up_is_never_ready(self, caplog):
        class Broken:
            def classify(self, texts, batch_size=None):
                raise RuntimeError("no memory")

        with serve(create_app({"a": Broken()}), until_ready=False) as client:
            wait_until(lambda: client.get("/health").json() == {"status": "failed"})
            assert client.get("/health").status_code == 503
        assert "no memory" in caplog.text

    @pytest.mark.slow
    def test_requests_with_like_options_are_joined_and_others_not(self):
        model = Model()
        with serve(create_app({"a": model}, limits=Limits(max_wait=0.2))) as client:
            model.hold()
            first = ask_in_threads(client, ["first"])
            assert model.entered.wait(30)
            alike = ask_in_threads(client, ["a", "b", "c"])
            other = ask_in_threads(client, ["d", "e"], top_k=1)
            wait_until(lambda: waiting_texts(client) == 5)
            model.go.set()
            found = [f.result().json()["answers"][0]["label"] for f in first + alike + other]
            assert found == ["FIRST", "A", "B", "C", "D", "E"]
        assert sorted(map(sorted, model.calls)) == [["a", "b", "c"], ["d", "e"], ["first"]]

    @pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
    def test_a_failing_model_answers_500_without_its_message_and_goes_on(self, caplog, error):
        model = Model(error)
        with serve(create_app({"a": model}, limits=Limits(max_wait=0.2))) as client:
            model.hold()
            first = ask_in_threads(client, ["first"])
            assert model.entered.wait(30)
            asked = ask_in_threads(client, ["good", "broken", "fine"])
            wait_until(lambda: waiting_texts(client) == 3)
            model.go.set()
            good, broken, fine = [f.result() for f in asked]
            assert good.json()["answers"] == [{"label": "GOOD"}] and fine.status_code == 200
            assert broken.status_code == 500 and "secret" not in broken.text
            assert broken.json()["error"]["type"] == "server_error"
            assert first[0].result().status_code == 200
            assert post(client, "/classify", texts="on")["answers"] == [{"label": "ON"}]
            metrics = client.get("/metrics").text
            assert 'encoder_zoo_requests_total{route="/classify",status="500"} 1.0' in metrics
        assert "a secret of the server" in caplog.text

    def test_a_full_queue_answers_429(self):
        model = Model()
        with serve(
            create_app({"a": model}, limits=Limits(max_queue_texts=2, max_texts=2))
        ) as client:
            model.hold()
            first = ask_in_threads(client, ["first"])
            assert model.entered.wait(30)
            asked = ask_in_threads(client, ["a", "b"])
            wait_until(lambda: waiting_texts(client) == 2)
            response = client.post("/classify", json={"texts": "c"})
            assert response.status_code == 429 and response.headers["Retry-After"] == "1"
            model.go.set()
            assert [f.result().status_code for f in first + asked] == [200] * 3
            assert post(client, "/classify", texts="c")["answers"]

    def test_oversized_requests_answer_413(self):
        limits = Limits(max_request_bytes=1000, max_texts=3)
        with serve(create_app({"a": Model()}, limits=limits)) as client:
            assert refusal(client, "/classify", 413, texts=["a"] * 4)["param"] == "texts"
            for size in (1001, 10_000, 500_000):
                response = client.post("/classify", content=b"x" * size)
                assert response.status_code == 413, size

            def parts():
                yield b'{"texts": "'
                for _ in range(50):
                    yield b"x" * 100
                yield b'"}'

            assert client.post("/classify", content=parts()).status_code == 413
            assert post(client, "/classify", texts=["a"] * 3)["answers"]

    @pytest.mark.slow
    def test_a_slow_client_is_refused_and_delays_nobody(self):
        limits = Limits(body_timeout=0.5)
        with (
            serve(create_app({"a": Model()}, limits=limits)) as client,
            send(client, b'{"texts"', declared=100) as slow,
        ):
            assert post(client, "/classify", texts="a")["answers"]
            assert b" 408 " in slow.recv(100)

    def test_clients_with_slow_headers_delay_nobody(self):
        with (
            serve(create_app({"a": Model()})) as client,
            contextlib.ExitStack() as stack,
        ):
            for _ in range(50):
                slow = stack.enter_context(connect(client))
                slow.sendall(b"POST /classify HTTP/1.1\r\nHost:")
            assert post(client, "/classify", texts="a")["answers"]

    def test_headers_that_are_too_long_answer_400(self):
        with (
            serve(create_app({"a": Model()}), http=connections.TimedConnection) as client,
            connect(client) as connection,
        ):
            with contextlib.suppress(ConnectionError):  # closed before all is sent
                connection.sendall(b"GET /health HTTP/1.1\r\nA: " + b"a" * 400_000)
            assert connection.recv(12) == b"HTTP/1.1 400"
            assert client.get("/health", headers={"A": "a" * 60_000}).status_code == 200

    @pytest.mark.parametrize(
        "sent, repeated",
        [
            (b"", b""),
            (b"POST /classify HTTP/1.1\r\n", b"A: b\r\n"),
            (b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n", b"x"),
            (b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n", b"x"),
        ],
        ids=["silent", "headers", "body", "body after the answer"],
    )
    def test_connections_of_slow_clients_are_closed(self, monkeypatch, sent, repeated):
        monkeypatch.setattr(connections, "SECONDS_TO_WAIT", 1)
        app = create_app({"a": Model()}, limits=Limits(body_timeout=1))
        with serve(app, http=connections.TimedConnection) as client, connect(client) as slow:
            slow.sendall(sent)
            wait_until(lambda: len(opened(client)) == 2)
            for _ in range(200):
                with contextlib.suppress(OSError):
                    slow.sendall(repeated)
                if len(opened(client)) < 2:
                    break
                time.sleep(0.1)
            assert client.get("/health").status_code == 200
            assert len(opened(client)) == 1

    def test_connections_of_clients_that_do_not_read_are_closed(self, monkeypatch):
        monkeypatch.setattr(connections, "SECONDS_TO_WAIT", 1)
        limits = Limits(max_request_bytes=2**26)
        app = create_app({"a": Model()}, limits=limits)
        with serve(app, http=connections.TimedConnection) as client:
            text = json.dumps({"texts": "x" * 2**24}).encode()
            with send(client, text) as slow:
                wait_until(lambda: any(c.flow.write_paused for c in opened(client)))
                assert post(client, "/classify", texts="a")["answers"]
                wait_until(lambda: len(opened(client)) == 1)
                assert slow.recv(15) == b"HTTP/1.1 200 OK"
            # A client that reads gets the whole answer.
            assert len(client.post("/classify", content=text).content) > 2**24

    def test_a_client_that_leaves_is_dropped_from_the_queue(self):
        model = Model()
        with serve(create_app({"a": model})) as client:
            model.hold()
            first = ask_in_threads(client, ["first"])
            assert model.entered.wait(30)
            with send(client, b'{"texts": ["gone", "gone too"]}'):
                wait_until(lambda: waiting_texts(client) == 2)
            wait_until(lambda: waiting_texts(client) == 0)
            model.go.set()
            assert first[0].result().status_code == 200
            assert post(client, "/classify", texts="next")["answers"]
        assert model.calls == [["first"], ["next"]]

    @pytest.mark.slow
    def test_a_shutdown_answers_what_was_accepted(self):
        model = Model()
        with serve(create_app({"a": model}, limits=Limits(max_batch_texts=1))) as client:
            model.hold()
            asked = ask_in_threads(client, ["first"])
            assert model.entered.wait(30)
            asked += ask_in_threads(client, ["a", "b", "c"])
            wait_until(lambda: waiting_texts(client) == 3)
            client.server.should_exit = True
            time.sleep(0.3)
            model.go.set()
            assert [f.result().status_code for f in asked] == [200] * 4
        assert sum(map(len, model.calls)) == 4

    @pytest.mark.slow
    def test_the_loop_answers_while_the_model_computes(self):
        model = Model()
        with serve(create_app({"a": model})) as client:
            model.hold()
            first = ask_in_threads(client, ["first"])
            assert model.entered.wait(30)
            assert client.get("/health").status_code == 200
            assert refusal(client, "/classify", 422)["param"] == "texts"
            assert not first[0].done()
            model.go.set()
            assert first[0].result().status_code == 200


def opened(client):
    """Return the open connections of the service."""
    return client.server.server_state.connections


def connect(client):
    """Open a socket to the service."""
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=30)


def send(client, body, declared=None):
    """Send a request over a socket of its own, which closes at the end of the `with`."""
    connection = connect(client)
    head = f"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: {declared or len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


# -- many requests ---------------------------------------------------------------------------------


class Requests:
    """Random requests, each with the answer that the task gives when it is called directly."""

    # The last three take longest.
    SHARES: ClassVar = {
        **dict.fromkeys(("classes", "vectors", "ranks", "hits"), 9),
        **dict.fromkeys(("entities", "masks", "spans"), 1),
    }

    def __init__(self, models, index, seed):
        self.models, self.index, self.random = models, index, random.Random(seed)

    def text(self, most=12):
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most)))

    def texts(self):
        most = self.random.choice([1, 5, 5, 5, 32])
        return [self.text() for _ in range(self.random.randint(1, most))]

    def draw(self):
        """Return a path, its fields, and a function of the body that compares."""
        [kind] = self.random.choices([*self.SHARES], self.SHARES.values())
        return getattr(self, kind)()

    def classes(self):
        texts = self.texts()
        if self.random.random() < 0.05:
            texts.append(self.text(900))  # longer than the model
        options = self.random.choice([{}, {"top_k": 2}, {"threshold": 0.7}])
        expected = self.models["reviews"].classify(texts, **options)
        return "/classify", {"texts": texts, **options}, lambda b: (b["answers"], expected)

    def entities(self):
        texts, options = self.texts(), self.random.choice([{}, {"strategy": "max"}])
        expected = self.models["names"].extract_entities(texts, **options)
        return "/entities", {"texts": texts, **options}, lambda b: (b["answers"], expected)

    def vectors(self):
        texts, dim = self.texts(), self.random.choice([None, 16])
        expected = self.models["vectors"].embed(texts, dim=dim).tolist()
        fields = {"input": texts, "dimensions": dim}
        return "/v1/embeddings", fields, lambda b: ([r["embedding"] for r in b["data"]], expected)

    def ranks(self):
        query, texts = self.text(), self.texts()
        expected = self.models["pairs"].rank(query, texts)
        fields = {"query": query, "texts": texts, "return_text": True}
        # Scores of an untrained model are nearly equal: compare them without their order.
        return "/rerank", fields, lambda b: (by_index(b), by_index(expected))

    def masks(self):
        texts = [f"{text} [MASK]" for text in self.texts()]
        expected = [[row["score"] for row in a] for a in self.models["masks"].fill_mask(texts)]
        return (
            "/fill_mask",
            {"texts": texts},
            lambda b: ([[row["score"] for row in a] for a in b["answers"]], expected),
        )

    def spans(self):
        question, context = [self.text(3) for _ in self.texts()], self.text(40)
        expected = [a["score"] for a in self.models["spans"].answer(question, context)]
        fields = {"question": question, "context": context}
        return "/answer", fields, lambda b: ([a["score"] for a in b["answers"]], expected)

    def hits(self):
        queries = self.texts()
        expected = [[h["score"] for h in hits] for hits in self.index.search(queries, top_k=3)]
        fields = {"query": queries, "top_k": 3}
        return (
            "/search",
            fields,
            lambda b: ([[h["score"] for h in hits] for hits in b["answers"]], expected),
        )


def by_index(ranked):
    return sorted(ranked, key=lambda row: row["index"])


def leave_early(client, path, fields, after):
    """Send a request, or a part of it, and close the connection before the answer."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with connect(client) as connection:
        connection.sendall((head + body)[: None if after < 0.5 else -1])
        time.sleep(after / 50)


def read_metrics(client):
    lines = client.get("/metrics").text.splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}


def resident_megabytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.parametrize(
    "count, distinct",
    [(400, 40), pytest.param(10_000, 1000, marks=[pytest.mark.slow, pytest.mark.matrix])],
)
def test_answers_under_load_are_those_of_the_tasks(client, models, index, count, distinct):
    """Mixed tasks, sizes and options from 32 clients. A client disconnects in every tenth request.

    The queue is empty at the end, and memory stays at the level of the first tenth.
    """
    requests = Requests(models, index, seed=count)
    drawn = [requests.draw() for _ in range(distinct)]
    order = requests.random.choices(drawn, k=count)
    before, memory = read_metrics(client), {}
    # A pool of connections that threads share may close a connection just given to another thread.
    own = threading.local()

    def ask(i):
        path, fields, pair = order[i]
        if i % 10 == 9:
            leave_early(client, path, fields, after=random.Random(i).random())
            return 0
        response = own.client.post(path, json=fields)
        assert response.status_code == 200, response.text
        assert_close(*pair(response.json()))
        return 1

    def open_client():
        own.client = stack.enter_context(httpx.Client(base_url=client.base_url, timeout=60))

    answered = 0
    with (
        contextlib.ExitStack() as stack,
        concurrent.futures.ThreadPoolExecutor(32, initializer=open_client) as pool,
    ):
        for i, compared in enumerate(pool.map(ask, range(count))):
            answered += compared
            if i in (count // 10, count // 2, count - 1):
                memory[i] = resident_megabytes()
    wait_until(lambda: waiting_texts(client) == 0)
    wait_until(lambda: not client.server.server_state.tasks)
    if count >= 10_000:
        assert max(memory.values()) < 1.05 * min(memory.values()), memory
    after = read_metrics(client)
    spent = {name: value - before.get(name, 0) for name, value in after.items()}
    statuses = collections.Counter()
    for name, value in spent.items():
        if name.startswith("encoder_zoo_requests_total"):
            statuses[name.split('status="')[1][:3]] += value
    # Some answers are ready before their clients leave, and some requests are never read.
    assert answered == count - count // 10 <= statuses["200"]
    assert statuses["200"] + statuses["499"] == statuses.total() <= count
    # Requests were joined: more than a request's texts are in a batch.
    assert spent["encoder_zoo_batch_texts_sum"] > 4 * spent["encoder_zoo_batch_texts_count"]
