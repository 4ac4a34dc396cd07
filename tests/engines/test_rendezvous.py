"""The store that ranks meet at: on one address, for whoever connects to it; or a file."""

from __future__ import annotations

import socket
from pathlib import Path

from rlep.engines.rendezvous import listen, store_at


def test_a_store_is_on_its_address_only_and_all_ranks_share_it() -> None:
    listening = listen("127.0.0.1")
    port = listening.getsockname()[1]
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # of the same machine, and free
    place = f"tcp://127.0.0.1:{port}"
    first, second = store_at(place, 2, 60.0, listening), store_at(place, 2, 60.0)
    first.set("word", "given")
    assert bytes(second.get("word")) == b"given"


def test_a_file_that_all_ranks_share_does_as_well(tmp_path: Path) -> None:
    stores = [store_at(f"file://{tmp_path}/meeting", 2, 60.0) for _ in range(2)]
    stores[0].set("word", "given")
    assert bytes(stores[1].get("word")) == b"given"
