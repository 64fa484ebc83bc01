"""A local server that behaves like the Hugging Face hub, for tests with the real client."""

import functools
import hashlib
import http.server
import json
import pathlib
import re
import threading
import time
import urllib.parse
from collections.abc import Mapping

COMMIT = "a" * 40


class Hub:
    """Serve repositories like the hub, with optional faults.

    Args:
        folders: Dict {repository: folder with the files}, or the folder of the repository
            org/model.

    Attributes:
        log: List of (method, path, range) for all requests.
        fail: Dict {file name: number of requests to answer with status 503}.
        cut: Dict {file name: number of requests to answer with truncated contents}.
        wrong: Dict {file name: number of requests to answer with wrong bytes of the same length}.
        statuses: List of integers. Statuses of the next listings.
        listed: Optional bytes to send instead of the listing.
        commits: List of strings. Commits of the next listings. After that, the last commit is used.
        heads: Dict {repository: last commit}. If a repository is missing, this is `COMMIT`.
        discussions: List of discussions for every repository. If None, the status is 500.
        headers: Dict of headers that are added to every response, or replace existing headers.
        pause: Float. Seconds to wait before every 4 KB of a response.
        sent: Integer. Number of bytes sent as file contents.
    """

    def __init__(self, folders: pathlib.Path | Mapping[str, pathlib.Path]):
        self.folders = folders if isinstance(folders, Mapping) else {"org/model": folders}
        self.log: list[tuple[str, str, str | None]] = []
        self.fail: dict[str, int] = {}
        self.cut: dict[str, int] = {}
        self.wrong: dict[str, int] = {}
        self.statuses: list[int] = []
        self.listed: bytes | None = None
        self.commits: list[str] = []
        self.heads: dict[str, str] = {}
        self.discussions: list[dict] | None = []
        self.headers: dict[str, str] = {}
        self.pause = 0.0
        self.sent = 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def count(self, method: str, name: str) -> int:
        return sum(m == method and path.endswith(name) for m, path, _ in self.log)

    def files(self, repository: str) -> dict[str, pathlib.Path]:
        folder = self.folders[repository]
        paths = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path for path in paths}

    def listing(self, repository: str) -> dict:
        siblings = []
        for name, path in self.files(repository).items():
            size, digest = path.stat().st_size, etag(path)
            siblings.append({"rfilename": name, "size": size, "blobId": digest})
            if len(digest) == 64:
                siblings[-1]["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
        return {
            "_id": "1",
            "id": repository,
            "modelId": repository,
            "sha": self.commits.pop(0) if self.commits else self.heads.get(repository, COMMIT),
            "private": False,
            "tags": [],
            "siblings": siblings,
        }

    def tree(self, repository: str) -> list[dict]:
        return [
            {"type": "file", "path": name, "size": path.stat().st_size, "oid": etag(path)}
            for name, path in self.files(repository).items()
        ]

    def spend(self, budget: dict[str, int], name: str) -> bool:
        """Return whether to insert the fault in this request, and count the request."""
        budget[name] = budget.get(name, 0) - 1
        return budget[name] >= 0

    def take(self, method: str, path: str, headers: Mapping, body: bytes) -> tuple[int, object]:
        """Return the status and the JSON response to a request with data. See `writable_hub`."""
        return 404, {}

    def _handler(hub):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and small contents are sent in one packet

            def log_message(self, *args):
                pass

            def do_HEAD(self):
                self.answer("HEAD")

            def do_GET(self):
                self.answer("GET")

            def do_POST(self):
                self.take("POST")

            def do_PUT(self):
                self.take("PUT")

            def take(self, method: str) -> None:
                hub.log.append((method, self.path, None))
                path = urllib.parse.unquote(self.path).partition("?")[0]
                status, answer = hub.take(method, path, self.headers, self.body())
                code = {"X-Error-Code": "RepoNotFound"} if status == 404 else {}
                headers = {"Content-Type": "application/json", **code}
                self.send(status, json.dumps(answer).encode(), headers)

            def body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                chunks = []
                while size := int(self.rfile.readline(), 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)

            def answer(self, method: str) -> None:
                hub.log.append((method, self.path, self.headers.get("Range")))
                path = urllib.parse.unquote(self.path)
                asked = re.match(r"/(api/models/)?([^/?]+/[^/?]+)(?:/([^?]*))?", path)
                api, repository, rest = asked.groups() if asked else (None, None, None)
                if repository not in hub.folders:
                    return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                if api:
                    return self.answer_api(repository, rest or "")
                found = re.fullmatch(r"resolve/(?:refs/pr/\d+|[^/]+)/(.+)", rest or "")
                if found is None or found[1] not in hub.files(repository):
                    return self.send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                self.send_file(method, repository, found[1])

            def answer_api(self, repository: str, rest: str) -> None:
                if rest.startswith("discussions"):
                    if hub.discussions is None:
                        return self.send(500, b"{}", {})
                    number = len(hub.discussions)
                    return self.send_json(
                        {"discussions": hub.discussions, "count": number, "start": 0}
                    )
                if hub.statuses:
                    status = hub.statuses.pop(0)
                    return self.send(
                        status, b"{}", {"Location": self.path} if status == 302 else {}
                    )
                if hub.listed is not None:
                    return self.send(200, hub.listed, {"Content-Type": "application/json"})
                known = hub.tree if rest.startswith("tree/") else hub.listing
                self.send_json(known(repository))

            def send_json(self, value: object) -> None:
                self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

            def send_file(self, method: str, repository: str, name: str) -> None:
                path = hub.files(repository)[name]
                content = path.read_bytes()
                commit = hub.heads.get(repository, COMMIT)
                headers = {"ETag": f'"{etag(path)}"', "X-Repo-Commit": commit}
                headers["Accept-Ranges"] = "bytes"
                if method == "HEAD":
                    return self.send(200, content, headers, body=False)
                if hub.spend(hub.fail, name):
                    return self.send(503, b"busy", {})
                if hub.spend(hub.wrong, name):
                    content = content[:-1] + bytes([content[-1] ^ 1])
                status, begin, end = 200, 0, len(content)
                asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
                if asked:
                    status, begin = 206, int(asked[1])
                    end = min(int(asked[2] or end) + 1, end)
                    headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
                rest = content[begin:end]
                hub.sent += len(rest)
                cut = len(rest) // 2 if hub.spend(hub.cut, name) else None
                self.send(status, rest, headers, cut=cut)

            def send(self, status, content, headers, body=True, cut=None) -> None:
                self.send_response(status)
                for key, value in {
                    "Content-Length": len(content),
                    **headers,
                    **hub.headers,
                }.items():
                    self.send_header(key, str(value))
                self.end_headers()
                for start in range(0, len(content[:cut]) if body else 0, 2**12):
                    time.sleep(hub.pause)
                    self.wfile.write(content[:cut][start : start + 2**12])
                    if hub.pause:
                        self.wfile.flush()
                if cut is not None:
                    self.close_connection = True

        return Handler


def etag(path: pathlib.Path) -> str:
    """Return the ETag of a file: the SHA-256 for large files, otherwise the SHA-1 of git."""
    return _etag(path, path.stat().st_mtime_ns)


@functools.cache
def _etag(path: pathlib.Path, _: int) -> str:
    content = path.read_bytes()
    if path.suffix in (".safetensors", ".h5", ".bin"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def environment(hub: Hub, folder: pathlib.Path) -> dict[str, str]:
    """Return environment variables that make the client use this hub and a cache folder."""
    return {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }
