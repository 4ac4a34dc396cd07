"""Which hosts and origins a console answers, and how far it may be reached without TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from starlette.testclient import TestClient

from rlep.console.addresses import Addresses, Tls, addresses_of
from rlep.console.app import console_app
from rlep.core.errors import ConfigError
from tests.services.pool.pool_servers import Certificate, make_certificate
from tests.unit.console.console_scene import TOKEN, role_of


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "console")


def asked(addresses: Addresses, runs: Path, host: str, origin: str | None = None) -> tuple[int, str]:
    """Status and cookie of a login at this host from a page of this origin."""
    app = console_app([runs], role_of, addresses=addresses)
    client = TestClient(app, base_url=f"http://{host}", follow_redirects=False)
    answer = client.post("/login", data={"token": TOKEN}, headers={"origin": origin} if origin else {})
    return answer.status_code, answer.headers.get("set-cookie", "")


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("hub.example", "https://hub.example", 303),
        ("127.0.0.1:7272", "https://hub.example", 303),  # the proxy names the console's own host
        ("hub.example", "http://hub.example", 403),
        ("hub.example", "https://evil.example", 403),
        ("hub.example:8080", "https://hub.example:8080", 400),
        ("evil.example", "https://hub.example", 400),
        ("127.0.0.1:7272", "http://127.0.0.1:7272", 303),
    ],
)
def test_behind_a_proxy_its_origin_is_the_consoles(tmp_path: Path, host: str, origin: str, status: int) -> None:
    addresses = addresses_of("127.0.0.1:7272", origins=["https://Hub.example:443/"])
    found, cookie = asked(addresses, tmp_path, host, origin)
    assert found == status
    assert ("Secure" in cookie) is (status == 303 and origin.startswith("https://"))


def test_with_tls_every_cookie_is_secure_and_plain_origins_are_foreign(tmp_path: Path, pair: Certificate) -> None:
    addresses = addresses_of("node7:7272", pair.certificate_file, pair.key_file)
    for host in ("node7:7272", "NODE7:7272", "localhost:9000"):
        status, cookie = asked(addresses, tmp_path, host)
        assert status == 303
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    assert asked(addresses, tmp_path, "node7:7272", "https://node7:7272")[0] == 303
    assert asked(addresses, tmp_path, "node7:7272", "http://node7:7272")[0] == 403
    assert asked(addresses, tmp_path, "node8:7272")[0] == 400


def test_everywhere_is_answered_by_the_names_that_are_given(pair: Certificate) -> None:
    files = (pair.certificate_file, pair.key_file)
    found = addresses_of("0.0.0.0:7272", *files, ["https://node7:7272", "https://NODE7.example:7272"])
    assert found.origins == {"https://node7:7272", "https://node7.example:7272"}
    assert found.tls == Tls(*files)
    assert not found.answers("0.0.0.0:7272")
    assert found.answers("node7:7272")
    assert not found.answers("node7:7273")


@pytest.mark.parametrize("listen", ["0.0.0.0:7272", "[::]:7272"])
def test_everywhere_without_a_name_is_refused(pair: Certificate, listen: str) -> None:
    with pytest.raises(ConfigError, match="names no host: add --origin https://HOST:PORT"):
        addresses_of(listen, pair.certificate_file, pair.key_file)


@pytest.mark.parametrize("origins", [(), ("https://hub.example",)])
def test_beyond_loopback_it_needs_tls(origins: tuple[str, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r"can be reached from other machines: it needs TLS \(--tls-cert, --tls-key\)"
    ):
        addresses_of("0.0.0.0:7272", origins=origins)


@pytest.mark.parametrize(
    "origin",
    ["http://hub.example", "hub.example", "https://", "https://hub/path", "https://me@hub", "https://*.hub", "null", "https://a?b"],
)  # fmt: skip
def test_an_origin_is_https_and_a_host(origin: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form https://HOST or https://HOST:PORT"):
        addresses_of("127.0.0.1:7272", origins=[origin])


def test_files_that_are_no_certificate_and_its_key_are_refused(pair: Certificate, tmp_path: Path) -> None:
    other = make_certificate(tmp_path, "other")
    torn, locked = tmp_path / "torn.pem", tmp_path / "locked.key"
    torn.write_text("no PEM")
    lock = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(pair.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    with pytest.raises(ConfigError, match="TLS needs --tls-cert and --tls-key together"):
        addresses_of("127.0.0.1:0", pair.certificate_file)
    with pytest.raises(ConfigError, match="TLS needs --tls-cert and --tls-key together"):
        addresses_of("127.0.0.1:0", None, pair.key_file)
    with pytest.raises(ConfigError, match=r"TLS file .*missing cannot be read: No such file"):
        addresses_of("127.0.0.1:0", pair.certificate_file, tmp_path / "missing")
    for certificate, key in (
        (pair.certificate_file, other.key_file),
        (torn, pair.key_file),
        (pair.certificate_file, torn),
        (pair.certificate_file, locked),
    ):
        with pytest.raises(ConfigError, match="are no certificate and its key without passphrase"):
            addresses_of("127.0.0.1:0", certificate, key)
