"""An append-only file that is cut, padded with zeros or damaged: repaired, or refused with the way out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rlep.core.errors import PoolError
from rlep.services.pool.embedded.append_only import append_only_files
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from tests.services.pool.embedded_data import append_only_file, client_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory."""
    return tmp_path / "data"


def test_a_truncated_file_loads_and_a_damaged_one_is_named(data: Path, binary: Path) -> None:
    with EmbeddedRedis(data, binary) as server, client_of(server) as client:
        for number in range(100):
            client.set(f"key{number}", "x" * 50)
    log = append_only_file(data)
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    with EmbeddedRedis(data, binary) as server, client_of(server) as client:
        assert client.dbsize() == 99
    middle = len(whole) // 2
    log.write_bytes(whole[:middle] + b"\0garbage\0" + whole[middle:])
    with pytest.raises(PoolError, match=r"did not start.*(Bad file format|AOF)") as refused:
        EmbeddedRedis(data, binary).start()

    command = b"*3\r\n$3\r\nSET\r\n"
    begins = whole.rindex(command, 0, middle)  # the command that the garbage is in
    assert f"{log} is damaged from byte {begins:,} of {len(whole) + 9:,} on" in str(refused.value)
    (remedy,) = re.findall("`(.*)`", str(refused.value))
    subprocess.run(["sh", "-c", remedy], check=True)
    with EmbeddedRedis(data, binary) as server, client_of(server) as client:
        assert client.dbsize() == whole[:begins].count(command)
    assert Path(f"{log}.damaged").stat().st_size == len(whole) + 9


def test_zeros_at_the_end_of_the_file_are_cut_and_nothing_else_is(
    data: Path, binary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedRedis(data, binary) as server, client_of(server) as client:
        client.set("first", b"\0" * 3000)
        client.set("second", b"\0" * 3000)
    log = append_only_file(data)
    whole = log.read_bytes()
    torn = whole.rindex(b"\0" * 1000)  # in the second value, whose own zeros the padding looks like
    for kept, padding, keys in (
        (len(whole), 1, [b"first", b"second"]),
        (len(whole), 3 * 2**20, [b"first", b"second"]),
        (len(whole) - 2, 4096, [b"first"]),  # else 2 bytes of padding would pass for the value's line break
        (torn, 4096, [b"first"]),
    ):
        log.write_bytes(whole[:kept] + b"\0" * padding)
        with EmbeddedRedis(data, binary) as server, client_of(server) as client:
            assert sorted(client.keys()) == keys, (kept, padding)
            assert {client.get(key) for key in keys} == {b"\0" * 3000}
        assert caplog.text.count("zeros at its end") == 1
        caplog.clear()


def test_a_file_of_zeros_only_is_not_taken_for_an_empty_pool(data: Path, binary: Path) -> None:
    with EmbeddedRedis(data, binary) as server, client_of(server) as client:
        client.set("a", "1")
    log = append_only_file(data)
    log.write_bytes(b"\0" * 5000)
    with pytest.raises(PoolError, match=r"is damaged from byte 0 of 5,000 on"):
        EmbeddedRedis(data, binary).start()
    assert log.read_bytes() == b"\0" * 5000


def test_the_parts_of_a_file_are_in_the_order_of_loading_and_others_beside_them_are_none(tmp_path: Path) -> None:
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    parts = [f"appendonly.aof.{part}.aof" for part in ("2.base", "3.incr", "10.incr")]
    for name in (*parts, "appendonly.aof.manifest", "appendonly.aof.old.aof", "appendonly.aof.10.incr.aof.damaged"):
        (folder / name).touch()
    assert append_only_files(tmp_path) == [folder / name for name in parts]
    (tmp_path / "appendonly.aof").touch()
    assert append_only_files(tmp_path) == [tmp_path / "appendonly.aof", *(folder / name for name in parts)]
