"""A hub on this machine that takes uploads, as the client of huggingface_hub sends them."""

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

COMMIT = "89abcdef" * 5


class UploadHub(BaseHTTPRequestHandler):
    """Repositories that exist once they are created, with what was committed."""

    files: ClassVar[dict[str, bytes]] = {}
    created: ClassVar[list[dict[str, object]]] = []
    tokens: ClassVar[set[str | None]] = set()
    large: ClassVar[dict[str, bytes]] = {}
    refuses: ClassVar[bool] = False

    @classmethod
    def reset(cls) -> None:
        cls.files, cls.created, cls.tokens, cls.large, cls.refuses = {}, [], set(), {}, False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        UploadHub.tokens.add(self.headers.get("Authorization"))
        if UploadHub.refuses:
            return self.send(b'{"error": "no access"}', status=403)
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            UploadHub.created.append(json.loads(body))
            return self.send({"url": f"http://{self.headers['Host']}/me/mine", "id": "me/mine"})
        if path == "/api/validate-yaml":
            return self.send({"errors": [], "warnings": []})
        if "/preupload/" in path:
            return self.send({"files": [self.decide(file) for file in json.loads(body)["files"]]})
        if path.endswith("/info/lfs/objects/batch"):
            return self.send({"transfer": "basic", "objects": self.plan(json.loads(body))})
        if "/commit/" in path:
            return self.commit(body)
        return self.send(b"", status=404)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        UploadHub.large[hashlib.sha256(content).hexdigest()] = content
        self.send(b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/owner/base"):
            card = {"license": "apache-2.0"}
            return self.send({"id": "owner/base", "sha": COMMIT, "cardData": card})
        if path.startswith("/api/models/me/mine"):
            return self.send({"id": "me/mine", "sha": COMMIT, "siblings": []})
        name = path.partition("/resolve/main/")[2]
        if name in UploadHub.files:
            return self.send(UploadHub.files[name])
        return self.send(b"", status=404, code="EntryNotFound")

    def decide(self, file: dict[str, object]) -> dict[str, object]:
        mode = "lfs" if str(file["path"]).endswith((".safetensors", ".gguf")) else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}

    def plan(self, request: dict[str, object]) -> list[dict[str, object]]:
        objects = request["objects"]
        assert isinstance(objects, list)
        return [
            {**each, "actions": {"upload": {"href": f"http://{self.headers['Host']}/lfs"}}}
            for each in objects
        ]

    def commit(self, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                UploadHub.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                UploadHub.files[value["path"]] = UploadHub.large[value["oid"]]
        address = f"http://{self.headers['Host']}/me/mine/commit/{COMMIT}"
        self.send({"success": True, "commitOid": COMMIT, "commitUrl": address})

    def send(self, content: object, status: int = 200, code: str | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""
