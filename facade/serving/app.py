"""ASGI application for serving models over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import numpy as np
import prometheus_client
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as Path

from encoder_zoo.common.reading import find_raising_instruction
from encoder_zoo.serving.batching import Batcher, QueueFull, Stopping
from encoder_zoo.serving.limits import Limits
from encoder_zoo.serving.metrics import Metrics
from encoder_zoo.serving.requests import Fields, RequestError, read_json
from encoder_zoo.serving.routes import ROUTES, Route, ServedModel, make_examples

logger = logging.getLogger("encoder_zoo")

JSON_TYPE = "application/json"
CLIENT_LEFT = 499  # status code in metrics and logs, as in nginx
MAX_INLINE_ANSWERS = 4  # longer lists of answers are not serialized in the event loop
# Many clients do not read the response before the end of the request. If a request is too large,
# read at most this multiple of the maximum size before sending the error.
MAX_DISCARDED_RATIO = 16


class Service:
    """State of the service: models, indexes, the queue and the metrics.

    Args:
        models: Dict mapping model names to tasks or opened exports.
        indexes: Dict mapping index names to indexes.
        limits: `Limits` for requests and batches.
    """

    def __init__(
        self, models: Mapping[str, Any], indexes: Mapping[str, Any], limits: Limits
    ) -> None:
        self.limits = limits
        self.batcher = Batcher(limits, lambda *measured: self.metrics.add_batch(*measured))
        self.metrics = Metrics(lambda: self.batcher.waiting)
        self.status = "warming up"
        self.logged: set[tuple[str, str]] = set()  # (model name, message)
        self.served: dict[str, dict[str, ServedModel]] = {}
        for route in ROUTES:
            named = indexes if route.kind == "index" else models
            found = [
                ServedModel(name, task, limits, self.report_truncated)
                for name, task in named.items()
                if route.supports_model(task)
            ]
            if route.method == "rank":  # a Reranker is the default, if there is one
                found.sort(key=lambda model: not hasattr(model.task, "activation"))
            if found:
                self.served[route.method] = {model.name: model for model in found}

    async def warm_up(self) -> None:
        """Compute example requests for all models, after which the service is ready."""
        for route in ROUTES:
            for model in self.served.get(route.method, {}).values():
                try:
                    for question in make_examples(route, model):
                        await self.batcher.ask(question.job)
                except Exception as error:
                    if not is_about_request(error):
                        self.status = "failed"
                        logger.exception("The warm-up of %s failed.", model.name)
                        return
        self.status = "ready"

    def report_truncated(self, name: str, count: int, message: str) -> None:
        """Count truncated texts in the metrics. Each message is only logged once per model.

        The warm-up also truncates a text, which is not reported.
        """
        if self.status == "warming up":
            return
        self.metrics.add_truncated(count)
        if (name, message) not in self.logged:
            self.logged.add((name, message))
            logger.warning(
                "%s: some %s This message is logged once. Further texts are counted in /metrics.",
                name,
                message,
            )

    def choose_model(self, route: Route, fields: Fields) -> ServedModel:
        """Return the model that a request names. The default is the first model."""
        served = self.served[route.method]
        name = fields.read(route.kind, lambda v: isinstance(v, str), "a name", next(iter(served)))
        if name not in served:
            raise RequestError(
                404,
                f"`{route.kind}` is {name[:100]!r}. Expected {' or '.join(served)}.",
                route.kind,
                f"{route.kind}_not_found",
            )
        return served[name]

    async def answer(self, route: Route, request: Request) -> Response:
        """Compute the response to a request."""
        fields = Fields(read_json(await read_body(request, self.limits)), self.limits.max_texts)
        question = route.read(self.choose_model(route, fields), fields)
        fields.reject_unknown_fields()
        try:
            answers = await wait_for_answers(request, self.batcher.ask(question.job))
        except (QueueFull, Stopping, ClientDisconnect):
            raise
        except Exception as error:
            if not is_about_request(error):
                raise
            raise explain_error(error, fields, route) from error
        if len(answers) <= MAX_INLINE_ANSWERS:  # this does not block the event loop for long
            content = write_json(question.write(answers))
        else:
            content = await asyncio.to_thread(lambda: write_json(question.write(answers)))
        return Response(content, media_type=JSON_TYPE)

    def make_endpoint(self, route: Route) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Create a function that handles the requests to a route."""

        async def respond(request: Request) -> Response:
            start = time.perf_counter()
            try:
                response = await self.answer(route, request)
            except RequestError as refusal:
                response = make_response(refusal.make_body(), refusal.status)
            except QueueFull:
                response = make_retry_response(429, "The queue is full. Try again later.")
            except Stopping:
                response = make_retry_response(
                    503, "The service is shutting down. Try again later."
                )
            except ClientDisconnect:
                response = Response(status_code=CLIENT_LEFT)
            except Exception:
                logger.exception("A request for %s failed.", route.paths[0])
                message = "The model failed to answer. See the log of the service for the reason."
                response = make_response(RequestError(500, message).make_body(), 500)
            seconds = time.perf_counter() - start
            self.metrics.add_request(route.paths[0], response.status_code, seconds)
            return response

        return respond

    async def report_health(self, request: Request) -> Response:
        """Handle a request to `/health`. The status code is 200 if the service is ready."""
        return make_response({"status": self.status}, 200 if self.status == "ready" else 503)

    async def report_metrics(self, request: Request) -> Response:
        """Handle a request to `/metrics`."""
        content_type = prometheus_client.CONTENT_TYPE_LATEST
        return Response(self.metrics.format_text(), headers={"Content-Type": content_type})

    async def list_models(self, request: Request) -> Response:
        """Handle a request to `/v1/models`. The response names all models and indexes."""
        data = [describe_model(name) for name in self.list_names()]
        return make_response({"object": "list", "data": data})

    async def show_model(self, request: Request) -> Response:
        """Handle a request to `/v1/models/NAME`. For an unknown name, the status code is 404."""
        name, names = request.path_params["name"], self.list_names()
        if not name:  # `/v1/models/`
            return await self.list_models(request)
        if name in names:
            return make_response(describe_model(name))
        message = f"The model {name[:100]!r} does not exist. Expected {' or '.join(names)}."
        refusal = RequestError(404, message, "model", "model_not_found")
        return make_response(refusal.make_body(), refusal.status)

    def list_names(self) -> list[str]:
        """Return the names of all models and indexes."""
        return [*dict.fromkeys(name for served in self.served.values() for name in served)]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Start the queue and the warm-up. At shutdown, finish the accepted requests."""
        self.batcher.start()
        warm_up = asyncio.create_task(self.warm_up())
        yield
        warm_up.cancel()
        await self.batcher.close()


def create_app(
    models: Mapping[str, Any],
    indexes: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> Starlette:
    """Create an ASGI application for serving models over HTTP.

    The routes depend on the methods of the models: `/v1/embeddings` for `embed`, `/rerank` for
    `rank`, `/classify`, `/entities` for `extract_entities`, `/answer`, `/fill_mask`, and `/search`
    for indexes. The following routes are always available: `/health` returns status 200 after the
    warm-up, `/metrics` returns metrics for Prometheus, `/v1/models` returns the names of models and
    indexes, and `/v1/models/NAME` returns the entry for a name. Concurrent requests are batched
    together if they use the same model and options. A single thread computes all batches.

    Args:
        models: Dict mapping model names to tasks or opened exports. The field `model` of a request
            chooses a model. By default, the first model with the required method is used. Exports
            should be opened with `ez.open_export(folder, spinning=False)`.
        indexes: Optional dict mapping index names to indexes, for the route `/search`.
        limits: `Limits` for requests and batches. Defaults to `Limits()`.

    Raises:
        ValueError: If none of the models and indexes supports a route.

    Example:
        >>> import encoder_zoo as ez
        >>> reviews = ez.Classifier.from_preset("bert_nano_en_uncased_sentiment")
        >>> app = create_app({"reviews": reviews})
        >>> [route.path for route in app.routes]
        ['/health', '/metrics', '/v1/models', '/v1/models/{name:path}', '/classify']
    """
    service = Service(models, indexes or {}, limits or Limits())
    if not service.served:
        raise ValueError(
            "None of the models in `models` supports a route. "
            "Expected a task such as ez.Classifier."
        )
    paths = [
        Path("/health", service.report_health),
        Path("/metrics", service.report_metrics),
        Path("/v1/models", service.list_models),
        Path("/v1/models/{name:path}", service.show_model),
    ]
    for route in ROUTES:
        if route.method in service.served:
            endpoint = service.make_endpoint(route)
            paths += [Path(path, endpoint, methods=["POST"]) for path in route.paths]
    handlers = {HTTPException: make_routing_error_response}
    return Starlette(routes=paths, lifespan=service.lifespan, exception_handlers=handlers)


def describe_model(name: str) -> dict[str, str]:
    """Return the entry of a model or index in `/v1/models`, in the OpenAI API format."""
    return {"id": name, "object": "model", "owned_by": "encoder_zoo"}


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body of a request.

    Raises:
        RequestError: If the body is too large or compressed, or if the request takes too long.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        message = f"Content-Encoding is {encoding[:100]!r}. Send the body without compression."
        raise RequestError(415, message, "body")
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limits.max_request_bytes:
                    chunks.append(chunk)
                elif size > MAX_DISCARDED_RATIO * limits.max_request_bytes:
                    break
    except TimeoutError as error:
        seconds = f"{limits.body_timeout:g} seconds"
        raise RequestError(408, f"The body did not arrive within {seconds}.", "body") from error
    if size > limits.max_request_bytes:
        most = limits.max_request_bytes
        raise RequestError(413, f"The body is too large. Expected at most {most} bytes.", "body")
    return b"".join(chunks)


async def wait_for_answers(request: Request, asked: Coroutine[Any, Any, list]) -> list:
    """Wait for the answers. If the client disconnects, cancel the job.

    Raises:
        ClientDisconnect: If the client disconnects before the answers are ready.
    """

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answering = asyncio.create_task(asked)
    disconnecting = asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait({answering, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        answering.cancel()
        disconnecting.cancel()


def is_about_request(error: Exception) -> bool:
    """Return True if an error was raised by this package for an invalid request.

    The message of such an error will be sent to the client. Other messages are not sent, because
    they could contain internal information.
    """
    module, _ = find_raising_instruction(error)
    if isinstance(error, TypeError):  # an unknown argument
        return module == "encoder_zoo.common.validation"
    return isinstance(error, ValueError) and module.startswith("encoder_zoo.")


def explain_error(error: Exception, fields: Fields, route: Route) -> RequestError:
    """Convert an error to a RequestError with the name of the invalid field."""
    message = str(error)
    if route.method == "embed":  # use the field names of the OpenAI API
        message = re.sub(r"\bdim\b", "dimensions", re.sub(r"\btexts\b", "input", message))
    places = {name: re.search(rf"\b{name}s?\b", message) for name in fields.known}
    named = {name: place.start() for name, place in places.items() if place}
    field = min(named, key=named.__getitem__, default=route.texts)
    if isinstance(error, TypeError):
        message = f"The model does not support {field}. Remove it from the request."
    return RequestError(422, message, field)


def make_retry_response(status: int, message: str) -> Response:
    """Create a response that asks the client to try again later."""
    return make_response(RequestError(status, message).make_body(), status, {"Retry-After": "1"})


async def make_routing_error_response(request: Request, error: Exception) -> Response:
    """Create the error response for an unknown path, or for an HTTP method that is not allowed."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = getattr(error, "headers", None) or {}
    allowed = f"This route requires {headers.get('Allow')}."
    message = {404: "Unknown route.", 405: allowed}.get(status, "The request is not valid.")
    return make_response(RequestError(status, message).make_body(), status, headers)


def make_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Create a JSON response in ASCII, because messages can contain any string of a request."""
    return Response(write_json(body), status, headers, JSON_TYPE)


def write_json(body: Any) -> bytes:
    """Convert the response body to JSON in small steps.

    The items of a list are converted one by one, because `json.dumps` holds the global interpreter
    lock. Otherwise, a long list would delay other requests.
    """
    if isinstance(body, dict):
        pairs = [json.dumps(key).encode() + b":" + write_json(body[key]) for key in body]
        return b"{" + b",".join(pairs) + b"}"
    rows = body if isinstance(body, list) else [body]
    parts = [json.dumps(row, default=convert_value, allow_nan=False).encode() for row in rows]
    return b"[" + b",".join(parts) + b"]" if isinstance(body, list) else parts[0]


def convert_value(value: object) -> object:
    """Convert a NumPy array or scalar to a Python object."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be serialized as JSON.")
