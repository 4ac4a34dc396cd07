"""What ``rlep submit`` uploads: what git tracks and the command names, never a secret or what a link leads out to."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from rlep.actors import job_files as module
from rlep.actors.job_files import HIDDEN, LINK, LOOKS, OTHER, TOKEN, job_files
from rlep.core.errors import ConfigError

SECRETS = [
    *("token.txt", "conf/hf_token", "tokens.toml", "reader.token", "wandb-token.txt", "prod.env", "api_key.txt"),
    *("ca.pem", "tls/server.key", "id_ed25519", "id_rsa.pub", "credentials.json", "Password.TXT", "prod.tfvars"),
    *("deploy/secrets/redis", "with space/api_secret.yaml", "rclone.conf", "apikeys.json", "terraform.tfstate"),
    *("prod.tfvars.bak", "client_secret_12.json", "my-kubeconfig"),
]
HIDDEN_FILES = [".env", ".env.local", ".envrc", ".s3cfg", ".netrc", ".ssh/config", ".aws/notes.md", "deep/.npmrc"]
HARMLESS = [
    *("train.toml", "rlep/engines/tokenizer.py", "model/tokenizer.json", "model/tokenizer_config.json", "token.py"),
    *("model/added_tokens.json", "model/special_tokens_map.json", "tests/test_tokens.py", "deploy/secrets.sh"),
    *("data/own.jsonl", "keys.toml", "environment.yaml"),
]


def tree(root: Path, names: Iterable[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1024)
    return root


def checkout(root: Path, names: Iterable[str]) -> Path:
    """A git checkout that tracks these files."""
    root.mkdir(exist_ok=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "-C", str(tree(root, names)), "add", "-fA"], check=True)
    return root


def test_the_tracked_files_go_but_secrets_and_hidden_files_even_then(tmp_path: Path) -> None:
    root = checkout(tmp_path, [*SECRETS, *HIDDEN_FILES, *HARMLESS])
    found = job_files(root)
    assert found.sizes == dict.fromkeys(HARMLESS, 1024)
    assert {why: set(files) for why, files in found.left.items()} == {LOOKS: {*SECRETS}, HIDDEN: {*HIDDEN_FILES}}


def test_what_git_does_not_track_goes_only_where_the_command_names_it(tmp_path: Path) -> None:
    root = checkout(tmp_path, ["train.toml", "mine.py"])
    tree(root, ["notes.txt", "new.py", "data/a.jsonl", "data/b.jsonl", "model/config.json", "model/m.safetensors"])
    tree(
        root,
        [
            *("runs/first/config.json", "runs/first/events.jsonl", "data/gone.py", "secrets.py"),
            *("models/other/m.safetensors", "c.jinja", ".envrc"),
        ],
    )
    (root / ".gitignore").write_text("/data/\n/model/\n/runs/\n")
    (root / "own.toml").write_text(
        '[model]\npath = "model"\n[data]\ntrain = "./data/a.jsonl"\nevaluation = ["no.jsonl"]\n'
    )
    found = job_files(root, ["train", "own.toml", "--set", 'chat.template=["c.jinja"]', "--set=run.name=runs/first"])
    named = {"new.py", "own.toml", "model/config.json", "model/m.safetensors", "data/a.jsonl", "c.jinja"}
    assert set(found.sizes) == {"train.toml", "mine.py"} | named
    assert found.left == {
        HIDDEN: (".envrc", ".gitignore"),
        LOOKS: ("secrets.py",),
        OTHER: ("models/other/m.safetensors", "notes.txt"),
    }
    assert found.lines()[1:] == [
        "left out because they are hidden: .envrc, .gitignore",
        "left out because git does not track them and the command does not name them: models/other/m.safetensors, notes.txt; "
        "`git add` takes them along",
        "left out because they look like secrets: secrets.py",
    ]
    assert set(job_files(root).sizes) == {"train.toml", "mine.py", "new.py"}
    (root / "mine.py").unlink()  # still in git's index
    assert set(job_files(root).sizes) == {"train.toml", "new.py"}


def test_without_git_python_files_go_and_what_the_command_names(tmp_path: Path) -> None:
    root = tree(
        tmp_path, ["reward.py", "lib/part.py", "own.toml", "env/lib/x.py", "env/pyvenv.cfg", "a.jsonl", "wallet.dat"]
    )
    found = job_files(root, ["train", "own.toml"])
    assert set(found.sizes) == {"reward.py", "lib/part.py", "own.toml"}
    assert found.left == {OTHER: ("a.jsonl", "wallet.dat")}
    assert found.lines() == [
        "uploads 3 files, 3.0 KiB; largest: lib/part.py (1.0 KiB), own.toml (1.0 KiB), reward.py (1.0 KiB)",
        "left out because git does not track them and the command does not name them: a.jsonl, wallet.dat; `git add` takes them "
        "along",
    ]


def test_no_link_takes_along_what_is_outside_hidden_or_secret(tmp_path: Path) -> None:
    tree(tmp_path, ["home/passwd", "home/data/a.jsonl"])
    root = checkout(tmp_path / "project", ["here.txt", ".hidden", "api_key.txt"])
    links = {"out.txt": "../home/passwd", "folder": "../home/data", "dot.txt": ".hidden", "key.txt": "api_key.txt"}
    for name, target in (links | {"in.txt": "here.txt", "broken.txt": "gone", "config.txt": ".git/config"}).items():
        (root / name).symlink_to(target)
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)
    (tmp_path / "link").symlink_to(root)
    for directory in (root, tmp_path / "link"):  # a working directory may itself be a link
        found = job_files(directory, ["train", "--config", "folder/a.jsonl"])
        assert set(found.sizes) == {"here.txt", "in.txt"}
        assert set(found.left[LINK]) == {"out.txt", "folder", "folder/a.jsonl"}
        assert set(found.left[HIDDEN]) == {".hidden", "dot.txt", "config.txt"}
        assert found.left[LOOKS] == ("api_key.txt", "key.txt")
    found.copy_to(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["here.txt", "in.txt"]
    assert not (tmp_path / "copy" / "in.txt").is_symlink()


def test_the_files_that_the_environment_names_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = checkout(tmp_path / "project", ["ray", "redis/pw", "train.toml"])
    monkeypatch.chdir(root)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(root / "ray"))
    monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", "redis/pw")
    found = job_files(root)
    assert (set(found.sizes), found.left) == ({"train.toml"}, {TOKEN: ("ray", "redis/pw")})
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert set(job_files(root).sizes) == {"ray", "train.toml"}


def test_a_file_that_the_config_or_the_command_names_as_a_secret_stays_here(tmp_path: Path) -> None:
    root = checkout(
        tmp_path / "project", ["conf/reader", "given", "linked/to", "other", "bad.toml", "tls", "pw", "pass"]
    )
    (root / "link").symlink_to("linked/to")
    (root / "first.toml").write_text(
        '[pool]\nurl = "grpcs://host:1"\ntoken_file = "conf/../conf/reader"\nca_file = "other"\n'
    )
    words = ["train", "first.toml", "bad.toml", "--set", 'pool.token_file="given"', "--set=pool.token_file=link"]
    found = job_files(root, [*words, "--tls-key", "tls", "--pool-token-file=pw", "--token-file", "pass"])
    assert found.left == {TOKEN: ("conf/reader", "given", "link", "linked/to", "pass", "pw", "tls")}
    assert set(found.sizes) == {"other", "bad.toml", "first.toml"}
    assert found.lines()[1] == (
        "left out because a token_file, a tls_key or the environment names them as secrets: conf/reader, given, link and 4 more; "
        "the job needs the token on the cluster: let token_file be an absolute path that its machines have"
    )


def test_words_that_cannot_be_paths_are_no_files(tmp_path: Path) -> None:
    root = tree(tmp_path, ["own.toml"])
    (root / "odd.toml").write_text(
        f'a = "{"x" * 5000}"\nb = "\\u0000"\ntoken_file = "\\u0000"\nc = "."\nd = ""\ne = "../x"\n'
    )
    assert set(job_files(root, ["train", "odd.toml", "=", "a=", "/etc/passwd", "."]).sizes) == {"odd.toml"}


def test_the_files_of_a_submodule_go(tmp_path: Path) -> None:
    inner = checkout(tmp_path / "inner", ["part.py"])
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(inner), *identity, "commit", "-qm", "one"], check=True)
    root = checkout(tmp_path / "outer", ["train.toml"])
    subprocess.run(["git", "-C", str(root), *identity, "submodule", "--quiet", "add", str(inner), "lib"], check=True)
    assert set(job_files(root).sizes) == {"train.toml", "lib/part.py"}


def test_more_than_ray_takes_is_refused_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = job_files(checkout(tmp_path, ["a.bin", "b.bin"]))
    monkeypatch.setattr(module, "LARGEST", 2048)
    with pytest.raises(
        ConfigError, match=r"a job takes files of 2\.0 KiB at most; the largest are a\.bin, b\.bin: put them"
    ):
        found.copy_to(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
