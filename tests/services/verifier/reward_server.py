"""A reward server on loopback, whose answers a test scripts by the path that is asked for."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[str, bytes, int], tuple[int, str] | tuple[int, str, dict[str, str]]]
"""``(path, body, how many times it was asked)`` → status and text, and headers if there are any."""


class RewardServer(ThreadingHTTPServer):
    """Counts its requests by path, and the most that it held at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer, host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.answer = answer
        self.asked: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: RewardServer

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server, path = self.server, self.path.strip("/")
        with server.lock:
            server.asked[path] += 1
            server.headers = dict(self.headers)
            times = server.asked[path]
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        status, text, *headers = server.answer(path, body, times)
        with server.lock:
            server.at_once -= 1
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # who asked has given up

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(answer: Answer, host: str = "127.0.0.1", secured: ssl.SSLContext | None = None) -> Iterator[RewardServer]:
    """Serve until the end of the block, ``secured``: by TLS."""
    server = RewardServer(answer, host)
    if secured is not None:
        server.socket = secured.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
