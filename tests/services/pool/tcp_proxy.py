"""A TCP proxy between a client and a server: connections that fall silent, and another server behind one address."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

Target = str | tuple[str, int]
"""Path of a unix socket, or host and port."""


class TcpProxy:
    """Forwards each connection to what ``target`` is when it is made."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._forwarding = threading.Event()
        self._forwarding.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Forward nothing any more on the connections that are open, and leave them open; later ones are as before."""
        self._forwarding.clear()
        self._forwarding = threading.Event()
        self._forwarding.set()

    def close(self) -> None:
        """Close everything."""
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                kind = socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET
                far = socket.socket(kind)
                self._open += (near, far)
                try:
                    far.connect(self.target)
                except OSError:  # nobody listens there
                    near.close()
                    continue
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(*ends, self._forwarding), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, forwarding: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if not forwarding.is_set():
                return
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def proxied(target: Target) -> Iterator[TcpProxy]:
    """A proxy that is closed in the end."""
    proxy = TcpProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
