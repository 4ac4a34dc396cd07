"""A Hugging Face hub on loopback: repositories with branches and commits, as far as ``huggingface_hub`` asks for them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

Files = Mapping[str, bytes]


@dataclass
class Hub:
    """Repositories by ``models/ORG/NAME`` or ``datasets/ORG/NAME``; test threads change it while it answers."""

    url: str = ""
    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    """Repository -> commit -> its files."""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""
    tokens: set[str] = field(default_factory=set)
    """Access tokens that may write; none: nobody may."""
    private: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    """Names of files whose download breaks off in the middle."""

    def push(self, repository: str, files: Files, branch: str = "main") -> str:
        """Make a commit of these files alone; returns its hash."""
        content = [f"{name}:{hashlib.sha1(data).hexdigest()}" for name, data in sorted(files.items())]
        commit = hashlib.sha1("\n".join([repository, branch, *content]).encode()).hexdigest()
        self.commits.setdefault(repository, {})[commit] = dict(files)
        self.branches.setdefault(repository, {})[branch] = commit
        return commit

    def at(self, repository: str, revision: str) -> str | None:
        """Return the commit of a branch, or the commit itself."""
        named = self.branches[repository].get(revision, revision)
        return named if named in self.commits[repository] else None


class _Answers(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer ``/api/KIND/ORG/NAME[/revision|tree/REVISION]`` and ``[/datasets]/ORG/NAME/resolve/REVISION/FILE``."""
        self.hub.asked.append(f"{self.command} {self.path}")
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        api = parts[0] == "api"
        parts = parts[1:] if api else parts if parts[0] == "datasets" else ["models", *parts]
        repository, rest = "/".join(parts[:3]), parts[3:] or ["revision", "main"]
        if repository in self.hub.gated:
            return self._refuse(403, "GatedRepo")
        if repository not in self.hub.commits:
            return self._refuse(404, "RepoNotFound")
        commit = self.hub.at(repository, rest[1])
        if commit is None:
            return self._refuse(404, "RevisionNotFound")
        files = self.hub.commits[repository][commit]
        if rest[0] == "resolve":
            return self._file(commit, "/".join(rest[2:]), files)
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in sorted(files.items())
        ]
        told: object = entries
        if rest[0] == "revision":
            told = {"id": "/".join(parts[1:3]), "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        return self._json(told)

    def do_POST(self) -> None:
        """Answer what an upload asks for: a new repository, how each file is to come, and the commit itself."""
        self.hub.asked.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.hub.tokens:
            return self._refuse(401, "")
        if parts[1] == "validate-yaml":
            front = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            return self._json(
                {"errors": [] if isinstance(front, dict) else [{"message": "no mapping"}], "warnings": []}
            )
        if parts[1:] == ["repos", "create"]:
            return self._create(json.loads(body))
        repository = "/".join(parts[1:4])
        if parts[4] == "preupload":
            asked = json.loads(body)["files"]
            told = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked]
            return self._json({"files": told})
        lines = [json.loads(line) for line in body.splitlines()]
        branch = self.hub.branches[repository]["main"]
        files = dict(self.hub.commits[repository][branch])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.hub.push(repository, files)
        return self._json(
            {
                "commitOid": commit,
                "commitUrl": f"{self.hub.url}/{repository.removeprefix('models/')}/commit/{commit}",
                "success": True,
            }
        )

    def _create(self, asked: Mapping[str, str]) -> None:
        name = f"{asked.get('type', 'model')}s/{asked['organization']}/{asked['name']}"
        if name in self.hub.commits:
            url = f"{self.hub.url}/{name.removeprefix('models/')}"
            return self._answer(409, json.dumps({"url": url}).encode(), {"Content-Type": "application/json"})
        self.hub.push(name, {})
        self.hub.private |= {name} if asked.get("private") or asked.get("visibility") == "private" else set()
        return self._json({"url": f"{self.hub.url}/{name.removeprefix('models/')}", "id": name})

    def _json(self, told: object) -> None:
        self._answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _file(self, commit: str, name: str, files: Files) -> None:
        if name not in files:
            return self._refuse(404, "EntryNotFound")
        data = files[name]
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.command == "GET" and name in self.hub.broken:
            self.hub.broken.discard(name)
            self._answer(200, data, headers, sent=len(data) // 2)
            self.close_connection = True
            return None
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if not start:
            return self._answer(200, data, headers)
        span = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        return self._answer(206, data[start:], headers | span)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str], sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub on a free port for the length of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_OfThisHub", (_Answers,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files_of(directory: Path) -> dict[str, bytes]:
    """Return a directory's files by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
