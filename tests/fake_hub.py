"""A Hugging Face hub on loopback: repositories with branches and commits, as far as ``huggingface_hub`` asks for them.

It answers as the real one does: a gated model's page is public and its files are not, a renamed repository redirects, and
large files come from and go to another host, by signed addresses or through hf_xet.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import yaml

Files = Mapping[str, bytes]
LARGE = (".safetensors", ".parquet")
"""Ends of the names of files that another host holds."""
STALL_S = 60.0
"""Longest silence of a hub that a test forgot."""


@dataclass
class Hub:
    """Repositories by ``models/ORG/NAME`` or ``datasets/ORG/NAME``; test threads change it while it answers."""

    url: str = ""
    files_url: str = ""
    """Address of the host of large files."""
    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    """Repository -> commit -> its files."""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    """Repositories whose files are shown to nobody."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Former name of a repository -> its name."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request, of both hosts."""
    shown: list[tuple[str, str | None]] = field(default_factory=list)
    """Host and authorization of each request."""
    tokens: set[str] = field(default_factory=set)
    """Access tokens that may write; none: nobody may."""
    private: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    """Names of files whose download breaks off in the middle, once."""
    stalled: set[str] = field(default_factory=set)
    """Parts of paths of which half an answer comes, and then nothing."""
    refusals: list[tuple[str, int, Mapping[str, str]]] = field(default_factory=list)
    """Part of a path, status and headers; each answers one request."""
    storage: Path | None = None
    """hf_xet's storage of large files, which then go through it."""
    hashes: dict[str, str] = field(default_factory=dict)
    """sha256 of a large file -> its hash in the storage."""
    uploaded: dict[str, bytes] = field(default_factory=dict)
    """sha256 of a large file -> the file, where it came to the other host."""
    ended: threading.Event = field(default_factory=threading.Event)

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

    def head(self, repository: str) -> Files:
        """Return the files of the newest commit of ``main``."""
        return self.commits[repository][self.branches[repository]["main"]]

    def entry(self, name: str, data: bytes) -> dict[str, object]:
        """Return a file's line in a listing."""
        told: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": git_hash(data)}
        if name.endswith(LARGE):
            told["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            if self.storage is not None:
                told["xetHash"] = self.stored(data)
        return told

    def stored(self, data: bytes) -> str:
        """Return a file's hash in the storage, where it is put."""
        import hf_xet  # type: ignore[import-untyped]

        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.hashes:
            place, until = f"local://{self.storage}", int(time.time()) + 3600
            session: Any = hf_xet.XetSession()
            with session.new_upload_commit(endpoint=place, token="xet", token_expiry_unix_secs=until) as commit:
                handle = commit.start_upload_bytes(data, sha256=hf_xet.COMPUTE_SHA256)
            self.hashes[digest] = str(handle.result().xet_info.hash)
        return self.hashes[digest]


def git_hash(data: bytes) -> str:
    """Return the hash that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Answers(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Print nothing."""

    def parse_request(self) -> bool:
        """Note each request; answer those that are to be refused."""
        if not super().parse_request():
            return False
        self.hub.asked.append(f"{self.command} {self.path}")
        self.hub.shown.append((f"http://{self.headers['Host']}", self.headers.get("Authorization")))
        for refusal in self.hub.refusals:
            part, status, headers = refusal
            if part in self.path:
                self.hub.refusals.remove(refusal)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(status, b"", headers)
                return False
        return True

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer ``/api/KIND/ORG/NAME[/revision|tree/REVISION]`` and ``[/datasets]/ORG/NAME/resolve/REVISION/FILE``."""
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "signed":
            _, kind, organization, name, commit, *file = parts
            return self._bytes("/".join(file), self.hub.commits[f"{kind}/{organization}/{name}"][commit])
        api = parts[0] == "api"
        parts = parts[1:] if api else parts if parts[0] == "datasets" else ["models", *parts]
        repository, rest = "/".join(parts[:3]), parts[3:] or ["revision", "main"]
        if now := self.hub.renamed.get(repository):
            former, name = repository.partition("/")[2], now.partition("/")[2]
            return self._answer(307, b"", {"Location": self.path.replace(f"/{former}", f"/{name}", 1)})
        if repository not in self.hub.commits:
            return self._refuse(404, "RepoNotFound")
        if rest[0] in ("xet-read-token", "xet-write-token"):
            return self._xet_token()
        commit = self.hub.at(repository, rest[1]) or ""
        if not commit:
            return self._refuse(404, "RevisionNotFound")
        files = self.hub.commits[repository][commit]
        if rest[0] == "resolve":
            return self._file(repository, commit, "/".join(rest[2:]))
        told: object = [self.hub.entry(name, data) for name, data in sorted(files.items())]
        if rest[0] == "revision":
            told = {"id": "/".join(parts[1:3]), "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        return self._json(told)

    def do_PUT(self) -> None:
        """Take a large file."""
        data = b"".join(self._chunks()) or self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.uploaded[hashlib.sha256(data).hexdigest()] = data
        self._answer(200, b"", {})

    def _chunks(self) -> Iterator[bytes]:
        while self.headers.get("Transfer-Encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
            yield self.rfile.read(size)
            self.rfile.readline()

    def do_POST(self) -> None:
        """Answer what an upload asks for: a new repository, how each file is to come, and the commit itself."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.hub.tokens:
            return self._refuse(401, "")
        if parts[-1] == "batch":
            place = f"{self.hub.files_url}/signed"
            return self._json(
                {
                    "objects": [
                        {**file, "actions": {"upload": {"href": f"{place}/{file['oid']}?Signature=secret"}}}
                        for file in json.loads(body)["objects"]
                    ]
                }
            )
        if parts[1] == "validate-yaml":
            front = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            return self._json(
                {"errors": [] if isinstance(front, dict) else [{"message": "no mapping"}], "warnings": []}
            )
        if parts[1:] == ["repos", "create"]:
            return self._create(json.loads(body))
        repository = "/".join(parts[1:4])
        if parts[4] == "preupload":
            return self._json({"files": [self._upload(repository, file["path"]) for file in json.loads(body)["files"]]})
        return self._commit(repository, [json.loads(line) for line in body.splitlines()])

    def _upload(self, repository: str, name: str) -> Mapping[str, object]:
        there = self.hub.head(repository).get(name)
        large = name.endswith(LARGE)
        digest = None if there is None else hashlib.sha256(there).hexdigest() if large else git_hash(there)
        mode = "lfs" if large else "regular"
        return {"path": name, "uploadMode": mode, "shouldIgnore": False} | ({"oid": digest} if digest else {})

    def _commit(self, repository: str, lines: list[Any]) -> None:
        files = dict(self.hub.head(repository))
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":  # what git keeps of a file in the storage, whose bytes never pass here
                text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{value['oid']}\nsize {value['size']}\n"
                files[value["path"]] = self.hub.uploaded.get(value["oid"], text.encode())
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.hub.push(repository, files)
        url = f"{self.hub.url}/{repository.removeprefix('models/')}/commit/{commit}"
        self._json({"commitOid": commit, "commitUrl": url, "success": True})

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

    def _xet_token(self) -> None:
        if self.hub.storage is None:
            return self._refuse(403, "")  # for a client that is not told HF_HUB_DISABLE_XET
        place, until = f"local://{self.hub.storage}", int(time.time()) + 3600
        told = json.dumps({"casUrl": place, "accessToken": "xet", "exp": until}).encode()
        headers = {"X-Xet-Cas-Url": place, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(until)}
        return self._answer(200, told, headers)

    def _file(self, repository: str, commit: str, name: str) -> None:
        files = self.hub.commits[repository][commit]
        if repository in self.hub.gated:
            return self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        if name not in files:
            return self._refuse(404, "EntryNotFound")
        data = files[name]
        if not name.endswith(LARGE):
            return self._bytes(name, files, {"X-Repo-Commit": commit})
        headers = {
            "Location": f"{self.hub.files_url}/signed/{repository}/{commit}/{quote(name)}?Signature=secret",
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(len(data)),
            "X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"',
        }
        if self.hub.storage is not None:
            route = f"{self.hub.url}/api/{repository}/xet-read-token/{commit}"
            headers |= {"X-Xet-Hash": self.hub.stored(data), "X-Xet-Refresh-Route": route}
        return self._answer(302, b"", headers)

    def _bytes(self, name: str, files: Files, headers: Mapping[str, str] | None = None) -> None:
        data = files[name]
        told = {"ETag": f'"{git_hash(data)}"', "Accept-Ranges": "bytes", **(headers or {})}
        if self.command == "GET" and name in self.hub.broken:
            self.hub.broken.discard(name)
            self._answer(200, data, told, sent=len(data) // 2)
            self.close_connection = True
            return None
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if not start:
            return self._answer(200, data, told)
        return self._answer(206, data[start:], told | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str], sent: int | None = None) -> None:
        stalled = self.command != "HEAD" and any(part in self.path for part in self.hub.stalled)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2 if stalled else sent])
        if stalled:
            self.wfile.flush()
            self.hub.ended.wait(STALL_S)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub and its host of large files on free ports for the length of the block."""
    hub = Hub()
    handler = type("_OfThisHub", (_Answers,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.url, hub.files_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.daemon_threads = True
        thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def files_of(directory: Path) -> dict[str, bytes]:
    """Return a directory's files by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
