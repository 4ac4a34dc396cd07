"""Who a pool server lets in, what each may do, how much, how often, and for how long."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rlep import ClientTls, PoolClient
from rlep.core.errors import ConfigError, DeadlineExceeded, PoolError
from rlep.core.types import Trajectory
from rlep.services.pool.embedded.redis_process import EmbeddedRedis
from rlep.services.pool.rpc.access import Role, Tokens, is_loopback, split_address
from rlep.services.pool.rpc.proto import pool_pb2 as pb
from rlep.services.pool.rpc.server import PoolServer
from rlep.services.pool.rpc.tls import ServerTls
from rlep.services.pool.rpc.wire import SERVICE
from tests.services.pool.pool_servers import make_certificate, serving, stub, token_file

MakeTrajectory = Callable[..., Trajectory]
METHODS = pb.DESCRIPTOR.services_by_name["Pool"].methods_by_name


@pytest.fixture(scope="module")
def server(one_redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolServer]:
    """One that knows a token of each role, and one that may append to a single pool and read another."""
    lines = "read reader-token\nappend append-token # of the runs\n\nadmin-token\nappend@one some-token\nread@two some-token\n"
    with serving(one_redis, token_file=token_file(tmp_path_factory.mktemp("tokens"), lines)) as running:
        yield running


def client_of(server: PoolServer, token: str | None, pool: str = "", **options: object) -> PoolClient:
    return PoolClient(server.address, token=token, pool=pool, **options)  # type: ignore[arg-type]


def status_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize("token", [None, "unknown", "", "Bearer", "admin-tokenn"])
def test_every_verb_asks_for_a_token(server: PoolServer, token: str | None) -> None:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(server.address) as channel:
        for name in METHODS:
            # Every request has its pool as field 1 or is empty: no bytes are a valid message of each.
            call = channel.stream_stream(f"/{SERVICE}/{name}")
            code, message = status_of(lambda: list(call(iter([b""]), timeout=30, metadata=metadata)))  # noqa: B023
            assert (code, message) == (grpc.StatusCode.UNAUTHENTICATED, "no token that this server knows"), name
    with (
        client_of(server, "unknown") as client,
        pytest.raises(PoolError, match=r"no token that this server knows: check pool\.token_file"),
    ):
        client.stats()


def test_each_role_may_what_it_says_and_no_more(server: PoolServer, trajectory: MakeTrajectory) -> None:
    reader, appender, admin = (client_of(server, name) for name in ("reader-token", "append-token", "admin-token"))
    batch = [trajectory("q0", [1]), trajectory("q0", [2])]
    ids = [one.content_id for one in batch]
    with reader, appender, admin:
        with pytest.raises(
            PoolError, match="permission denied: pool pool: this needs the role append; the token has r"
        ):
            reader.add(batch)
        assert appender.add(batch).inserted == 2
        for client in (reader, appender, admin):
            assert client.sample(["q0"], 2, seed=0, step=0).counts.tolist() == [2]
            assert client.stats().trajectories == 2
            assert client.prompt_ids() == ["q0"]
            assert client.content_ids("q0") == sorted(ids)
            assert client.get(ids[0], "q0") is not None
            assert len(list(client.export())) == 2
            assert client.digest() == admin.digest()
        for client in (reader, appender):
            for forbidden in (
                lambda: client.remove("q0", ids),  # noqa: B023
                lambda: client.remove("q0", ids, quarantined=True),  # noqa: B023
                lambda: client.add_records([("q0", b"")], quarantined=True),  # noqa: B023
                client.seal,
            ):
                with pytest.raises(PoolError, match="needs the role admin"):
                    forbidden()
        assert admin.remove("q0", ids) == 2


def test_a_token_may_be_for_single_pools(server: PoolServer, trajectory: MakeTrajectory) -> None:
    with client_of(server, "admin-token", "two") as two, client_of(server, "admin-token", "three") as three:
        two.add([trajectory("q0", [1])])
        three.add([trajectory("q0", [1])])
        with client_of(server, "some-token", "one") as client:
            assert client.add([trajectory("q0", [1])]).inserted == 1
            assert client.names() == ["one", "two"]
            assert set(two.names()) >= {"one", "two", "three"}
        with client_of(server, "some-token", "two") as client:
            assert client.stats().trajectories == 1
            with pytest.raises(PoolError, match="needs the role append; the token has read"):
                client.add([trajectory("q0", [2])])
        client = client_of(server, "some-token", "three")
        with client, pytest.raises(PoolError, match="pool three: this needs the role read; the token has none"):
            client.stats()


def test_health_and_reflection_are_open(server: PoolServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for service in ("", SERVICE):
            reply = HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=30)
            assert reply.status == HealthCheckResponse.SERVING
        found = ProtoReflectionDescriptorDatabase(channel)
        assert set(found.get_services()) >= {"rlep.pool.v1.Pool", "grpc.health.v1.Health"}
        described = found.FindFileContainingSymbol("rlep.pool.v1.Pool")
        assert [method.name for method in described.service[0].method] == list(METHODS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no token"),
        ("# nothing\n\n", "holds no token"),
        ("good-token\nwrite hidden-token", "line 2: is not TOKEN, ROLE TOKEN"),
        ("read@a/b hidden-token", "line 1: is not"),
        ("read", "line 1: is not"),
        ("read hidden-token more", "line 1: is not"),
    ],
)
def test_a_token_file_that_is_none_is_refused_without_its_secrets(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Tokens.read(token_file(tmp_path, text))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o622, 0o660, 0o602])
def test_a_token_file_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=f"has mode {mode:o}: others can change it. chmod 600"):
        Tokens.read(token_file(tmp_path, "some-token", mode))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_token_file_that_others_can_read_is_warned_of(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert Tokens.read(token_file(tmp_path, "some-token", mode)).caller("some-token") is not None
    assert [record.getMessage() for record in caplog.records] == [
        f"token file {tmp_path / 'tokens'} has mode {mode:o}: others can read it; chmod 600 {tmp_path / 'tokens'}"
    ]


def test_a_missing_token_file_is_made_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = Tokens.read(path)
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text().strip()
    assert len(token) == 64
    caller = tokens.caller(token)
    assert caller is not None
    assert caller.role("any") is Role.ADMIN
    assert token[:8] not in caller.name
    assert Tokens.read(path).caller(token) == caller
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokens.read(tmp_path / "nowhere" / "tokens")


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))],
)
def test_an_address_is_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert is_loopback(parts[0])


@pytest.mark.parametrize("address", ["", "7171", ":7171", "host", "host:", "host:65536", "::1:80", "unix:/x", "a b:1"])
def test_anything_else_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        split_address(address)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
def test_nobody_listens_beyond_loopback_without_tokens_and_tls(
    one_redis: EmbeddedRedis, tmp_path: Path, host: str
) -> None:
    made = make_certificate(tmp_path, "server")
    tls = ServerTls(made.certificate_file, made.key_file)
    tokens = token_file(tmp_path, "some-token")
    for options in ({}, {"token_file": tokens}, {"tls": tls}):
        listening = serving(one_redis, listen=f"{host}:0", **options)
        with pytest.raises(ConfigError, match="can be reached from other machines"), listening:
            pytest.fail("it listens")


def test_with_tokens_and_tls_it_may_be_reached(one_redis: EmbeddedRedis, tmp_path: Path) -> None:
    authority = make_certificate(tmp_path, "authority")
    made = make_certificate(tmp_path, "server", authority)
    tls = ServerTls(made.certificate_file, made.key_file)
    with serving(one_redis, listen="0.0.0.0:0", token_file=token_file(tmp_path, "some-token"), tls=tls) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        with PoolClient(address, token="some-token", tls=authority.certificate_file, pool="tls") as client:
            assert isinstance(client.names(), list)
        in_the_clear = PoolClient(address, token="some-token", deadline=300)
        with in_the_clear as client, pytest.raises(PoolError, match="it speaks TLS: use grpcs://"):  # at once
            client.names()
        of_public_authorities = PoolClient(address, token="some-token", tls=True)
        with of_public_authorities as client, pytest.raises(PoolError, match="its certificate cannot be verified"):
            client.names()
    with pytest.raises(ConfigError, match=r"would travel to 192\.0\.2\.1:7171 in the clear"):
        PoolClient("192.0.2.1:7171", token="some-token")


def test_mutual_tls_lets_in_only_clients_of_its_authority(one_redis: EmbeddedRedis, tmp_path: Path) -> None:
    authority, stranger = (make_certificate(tmp_path, name) for name in ("authority", "stranger"))
    made, known = (make_certificate(tmp_path, name, authority) for name in ("server", "known"))
    unknown = make_certificate(tmp_path, "unknown", stranger)
    tls = ServerTls(made.certificate_file, made.key_file, authority.certificate_file)
    with serving(one_redis, tls=tls) as server:
        ca = authority.certificate_file
        with PoolClient(server.address, tls=ClientTls(ca, known.certificate_file, known.key_file)) as client:
            assert isinstance(client.names(), list)
        for files in (ClientTls(ca), ClientTls(ca, unknown.certificate_file, unknown.key_file)):
            with PoolClient(server.address, tls=files, deadline=2) as client, pytest.raises(DeadlineExceeded):
                client.names()


def test_tls_files_that_cannot_be_used_are_named(one_redis: EmbeddedRedis, tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "server")
    missing = tmp_path / "gone.pem"
    unread = serving(one_redis, tls=ServerTls(missing, made.key_file))
    with pytest.raises(ConfigError, match=f"TLS file {missing} cannot be read"), unread:
        pytest.fail("it listens")
    mistaken = serving(one_redis, tls=ServerTls(made.key_file, made.certificate_file))
    with pytest.raises(ConfigError, match="cannot be listened on"), mistaken:
        pytest.fail("it listens")
    with pytest.raises(ConfigError, match="belong together"):
        PoolClient("127.0.0.1:7171", tls=ClientTls(made.certificate_file, made.certificate_file))


def test_a_call_needs_a_deadline(server: PoolServer) -> None:
    metadata = (("authorization", "Bearer admin-token"),)
    with stub(server.address) as bare:
        for timeout in (None, 3600):
            code, message = status_of(lambda: bare.ListPools(pb.ListRequest(), timeout=timeout, metadata=metadata))  # noqa: B023
            assert (code, message) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "a call needs a deadline of at most 600 seconds",
            )


@pytest.mark.parametrize("deadline", [float("inf"), float("nan"), 541.0, -1.0])
def test_a_deadline_that_no_server_accepts_is_refused_before_any_call(server: PoolServer, deadline: float) -> None:
    with pytest.raises(ConfigError, match=f"deadline = {deadline}: give 0 to 540 seconds"):
        PoolClient(server.address, deadline=deadline)
    with PoolClient(server.address, token="admin-token", pool="longest", deadline=540) as client:
        assert client.stats().trajectories == 0


def test_a_server_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with PoolClient(address, deadline=1) as client:
            start = time.monotonic()
            with pytest.raises(DeadlineExceeded, match=f"counting at pool server {address}: not done within 1 s"):
                client.stats()
            assert time.monotonic() - start >= 0.4  # the last pause may not fit any more


def test_what_is_too_large_is_refused(server: PoolServer) -> None:
    way = {"timeout": 60, "metadata": (("authorization", "Bearer admin-token"),)}
    with stub(server.address) as bare:
        large = [pb.AddFrame(records=[pb.Record(prompt_id="q", record=bytes(17 << 20))])]
        code, message = status_of(lambda: bare.Add(iter(large), **way))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in message
        frame = pb.AddFrame(records=[pb.Record(prompt_id="q", record=bytes(15 << 20))])
        code, message = status_of(lambda: bare.Add(iter([frame] * 5), **way))
        assert (code, message) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "an insert of more than 64 MiB: send its records in several calls",
        )
        many = [pb.AddFrame(records=[pb.Record(prompt_id="q", record=b"x")] * 171)] * 3
        code, message = status_of(lambda: bare.Add(iter(many), **way))
        assert (code, message) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "an insert of 513 records: at most 512 in one call",
        )
        code, message = status_of(lambda: bare.Add(iter([pb.AddFrame(call="x")]), **way))
        assert message == "call 'x' is not 16 hex digits"


def test_a_fetch_may_name_a_step_s_whole_buffer(server: PoolServer, trajectory: MakeTrajectory) -> None:
    """70,000 names, which are more than a MiB."""
    with PoolClient(server.address, token="admin-token", pool="buffer") as pool:
        member = trajectory()
        pool.add([member])
        found = pool.fetch({member.prompt_id: [member.content_id] * 70_000})
        assert len(found[member.prompt_id]) == 70_000


def test_damaged_records_are_refused_one_by_one(server: PoolServer, trajectory: MakeTrajectory) -> None:
    with stub(server.address) as bare:
        frame = pb.AddFrame(pool="damaged", records=[pb.Record(prompt_id="q", record=b"RLEP")], total=1)
        reply = bare.Add(iter([frame]), timeout=30, metadata=(("authorization", "Bearer admin-token"),))
    assert [item.reason for item in reply.refused] == ["record of 4 bytes is shorter than its 24-byte header"]


@pytest.mark.parametrize("token", ["", "two words", "line\n", "ünicode"])
def test_a_token_that_no_header_can_carry_is_refused_unseen(token: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII") as caught:
        PoolClient("127.0.0.1:7171", token=token)
    assert not token.strip() or token.strip() not in str(caught.value)


def test_a_client_does_not_show_its_token(server: PoolServer) -> None:
    with client_of(server, "admin-token") as client:
        assert "admin-token" not in repr(client)
