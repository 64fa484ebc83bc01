"""A local hub server to which huggingface_hub can push repositories."""

import base64
import hashlib
import json
import pathlib
import re

import yaml
from fake_hub import Hub, etag

TOKEN = "hf_writes"
LARGE = (".safetensors", ".h5", ".bin")  # stored under their checksum, separately from the commit


class WritableHub(Hub):
    """Server for `create_repo` and `create_commit`, which also serves the pushed files.

    Args:
        folder: Path. Folder for the repositories.

    Attributes:
        visibility: Dict {repository: requested visibility}.
        blobs: Dict {SHA-256: contents} with large files.
        messages: List of strings. The messages of all commits.
        refuse: Dict {path: status}. Requests with these paths get this status.
    """

    def __init__(self, folder: pathlib.Path):
        super().__init__({})
        self.folder = folder
        self.folders = {}
        self.visibility: dict[str, str | None] = {}
        self.blobs: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.refuse: dict[str, int] = {}

    def take(self, method, path, headers, body):
        if path in self.refuse:
            return self.refuse[path], {"error": "refused"}
        if method == "PUT":
            return self._store(path.rpartition("/")[2], body)
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if path == "/lfs/verify":
            return (200 if json.loads(body)["oid"] in self.blobs else 404), {}
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path)
        batch = re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path)
        repository = (api or batch or [None, None])[1]
        if repository not in self.folders:
            return 404, {}
        if batch:
            return self._batch(json.loads(body)["objects"])
        steps = {"preupload": self._preupload, "commit": self._commit}
        return steps[api[2]](repository, body)

    def _create(self, asked):
        repository = f"{asked['organization']}/{asked['name']}"
        answer = {"url": f"{self.address}/{repository}", "name": repository, "id": "1"}
        if repository in self.folders:
            return 409, {**answer, "error": "You already created this model repo"}
        self.folders[repository] = self.folder / repository
        self.folders[repository].mkdir(parents=True)
        (self.folders[repository] / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        self.visibility[repository] = asked.get("visibility")
        return 200, answer

    def _validate(self, content):
        """Reject a model card whose header is not valid YAML, or has fields with a wrong type."""
        try:
            head = yaml.safe_load(content.split("---\n")[1])
        except (IndexError, yaml.YAMLError) as error:
            return 400, {"errors": [{"message": str(error)}], "warnings": []}
        languages = head.get("language", [])
        texts = [head["library_name"], head.get("license", ""), *languages, *head["tags"]]
        wrong = [value for value in texts if not isinstance(value, str)]
        errors = [{"message": f"{value!r} must be a string"} for value in wrong]
        return (400 if errors else 200), {"errors": errors, "warnings": []}

    def _preupload(self, repository, body):
        there = self.files(repository)
        answer = []
        for file in json.loads(body)["files"]:
            name = file["path"]
            mode = "lfs" if name.endswith(LARGE) else "regular"
            oid = etag(there[name]) if name in there else None
            answer.append({"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return 200, {"files": answer}

    def _batch(self, objects):
        answer = []
        for item in objects:
            actions = {
                "upload": {"href": f"{self.address}/lfs/{item['oid']}"},
                "verify": {"href": f"{self.address}/lfs/verify"},
            }
            answer.append({**item, **({} if item["oid"] in self.blobs else {"actions": actions})})
        return 200, {"transfer": "basic", "objects": answer}

    def _store(self, oid, body):
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "other bytes than their checksum says"}
        self.blobs[oid] = body
        return 200, {}

    def _commit(self, repository, body):
        header, *operations = map(json.loads, body.splitlines())
        folder = self.folders[repository]
        for operation in operations:
            value = operation["value"]
            path = folder / value["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if operation["key"] == "deletedFile":
                path.unlink()
            elif operation["key"] == "lfsFile":
                path.write_bytes(self.blobs[value["oid"]])
            else:
                path.write_bytes(base64.b64decode(value["content"]))
        self.messages.append(header["value"]["summary"])
        oid = hashlib.sha1(body).hexdigest()
        self.heads[repository] = oid
        url = f"{self.address}/{repository}/commit/{oid}"
        return 200, {"success": True, "commitUrl": url, "commitOid": oid}
