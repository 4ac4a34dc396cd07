"""What ``rlep submit`` uploads: never what looks like a secret, a run or a pool, whether git ignores it or not."""

from pathlib import Path

import pytest

from rlep.actors.job_files import job_files, looks_secret
from rlep.actors.ray_private import travelled

SECRETS = [
    *("token.txt", "conf/hf_token", "tokens.toml", "reader.token", "wandb-token.txt", ".env", ".env.local", "prod.env"),
    *("ca.pem", "tls/server.key", "id_ed25519", "id_rsa.pub", ".netrc", "credentials.json", "Password.TXT"),
    *("deploy/secrets/redis", ".ssh/config", ".aws/notes.md", "with space/api_secret.yaml"),
]
HARMLESS = [
    *("train.toml", "rlep/engines/tokenizer.py", "model/tokenizer.json", "model/tokenizer_config.json", "token.py"),
    *("tests/test_tokens.py", "deploy/secrets.sh", "data/own.jsonl", "keys.toml", "environment.yaml"),
]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_known_by_their_names(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_other_files_are_not_taken_for_secrets(name: str) -> None:
    assert not looks_secret(name)


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1024)
    return root


def test_secrets_runs_and_pools_stay_here_and_the_rest_is_listed(tmp_path: Path) -> None:
    run = [f"out/first/{name}" for name in ("config.json", "events.jsonl", "pool/redis.conf", "pool/served", "x.bin")]
    pool = [f"my [pool]/{name}" for name in ("redis.conf", "served", "appendonlydir/a.aof")]
    root = tree(tmp_path, *run, *pool, *SECRETS, "train.toml", "deploy/redis.conf", "ignored/big", "runs/a", ".git/x")
    (root / ".gitignore").write_text("/ignored/\n!token.txt\n")
    (root / "data.jsonl").write_bytes(b"y" * 3 * 2**20)
    found = job_files(root)
    assert set(found.sizes) == {"train.toml", "deploy/redis.conf", ".gitignore", "data.jsonl"}
    assert set(found.secrets) == set(SECRETS)
    assert found.directories == ("my [pool]", "out/first")
    assert found.lines()[0] == (
        "uploads 4 files, 3.0 MiB; largest: data.jsonl (3.0 MiB), deploy/redis.conf (1.0 KiB), train.toml (1.0 KiB)"
    )
    assert found.lines()[2] == "left out because they hold a run or a pool: my [pool], out/first"
    # What Ray itself takes with these patterns: the same files.
    taken = {path.relative_to(root).as_posix() for path in travelled(root, found.excludes) if path.is_file()}
    assert taken == set(found.sizes)


def test_the_files_that_the_environment_names_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "project", "ray", "redis/pw", "train.toml")
    monkeypatch.chdir(root)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(root / "ray"))
    monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", "redis/pw")
    found = job_files(root)
    assert (set(found.sizes), found.secrets) == ({"train.toml"}, ("ray", "redis/pw"))
    assert found.lines()[1] == "left out because they look like secrets: ray, redis/pw"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert set(job_files(root).sizes) == {"ray", "train.toml"}


def test_a_file_that_a_config_or_the_command_names_as_token_file_stays_here(tmp_path: Path) -> None:
    root = tree(tmp_path / "project", "conf/reader", "conf/writer", "given", "linked/to", "other", "bad.toml", "a.pem")
    (root / "link").symlink_to("linked/to")
    (root / "first.toml").write_text('[pool]\nurl = "grpcs://host:1"\ntoken_file = "conf/../conf/reader"\n')
    (root / "deep").mkdir()
    (root / "deep" / "second.toml").write_text(
        f'pool.token_file = "{root / "conf" / "writer"}"\npool.ca_file = "other"\n'
    )
    words = [
        "train",
        "first.toml",
        "--set",
        'pool.token_file="given"',
        "--set=pool.token_file=link",
        "--set",
        "run.name=a",
    ]
    found = job_files(root, words)
    assert found.tokens == ("conf/reader", "conf/writer", "given", "link", "linked/to")
    assert set(found.sizes) == {"other", "bad.toml", "first.toml", "deep/second.toml"}
    assert found.lines()[1:] == [
        "left out because they look like secrets: a.pem",
        "left out because a token_file names it: conf/reader, conf/writer, given and 2 more. The job needs the token on the "
        "cluster: let token_file be an absolute path that its machines have",
    ]
    taken = {path.relative_to(root).as_posix() for path in travelled(root, found.excludes) if not path.is_dir()}
    assert taken == set(found.sizes)
    assert job_files(root).tokens == ("conf/reader", "conf/writer")
