"""Files that a job takes along, as Ray packs them: what git tracks, never a secret, nor what a link outside leads to."""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import create_package

from rlep.actors.job_files import ENVIRONMENT, HIDDEN, LINK, LOOKS, TOKEN, UNTRACKED, excludes, lines
from rlep.actors.job_files import withheld as all_withheld
from rlep.core.errors import ConfigError

SECRETS = [
    *("token.txt", "conf/hf_token", "tokens.toml", "reader.token", "wandb-token.txt", "prod.env", "api_key.txt"),
    *("ca.pem", "tls/server.key", "id_ed25519", "id_rsa.pub", "credentials.json", "Password.TXT", "prod.tfvars"),
    *("deploy/secrets/redis", "with space/api_secret.yaml", "rclone.conf", "apikeys.json", "terraform.tfstate"),
    *("prod.tfvars.bak", "client_secret_12.json", "my-kubeconfig", "secrets.py"),
]
HIDDEN_FILES = [".env", ".env.local", ".envrc", ".s3cfg", ".netrc", ".ssh/config", ".aws/notes.md", "deep/.npmrc"]
HARMLESS = [
    *("train.toml", "rlep/engines/tokenizer.py", "model/tokenizer.json", "model/tokenizer_config.json", "token.py"),
    *("model/added_tokens.json", "model/special_tokens_map.json", "tests/test_tokens.py"),
    *("data/own.jsonl", "keys.toml", "environment.yaml"),
]


def tree(root: Path, names: Iterable[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1024)
    return root


def withheld(root: Path, arguments: Iterable[str] = ()) -> dict[str, list[str]]:
    """What stays of a project all of whose files git tracks, but git's own folder."""
    subprocess.run(["git", "-C", str(root), "add", "--force", "--all"], check=True)
    stays = all_withheld(root, list(arguments))
    stays[HIDDEN].remove(".git")
    return {why: paths for why, paths in stays.items() if paths}


def packed(root: Path, *arguments: str) -> set[str]:
    """Files that Ray would upload with a command of these words."""
    package = root.parent / f"{root.name}.zip"
    package.unlink(missing_ok=True)  # Ray keeps one that is there
    stays = withheld(root, arguments)
    create_package(str(root), package, include_gitignore=True, excludes=excludes({"git": [".git"]} | stays))
    with ZipFile(package) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty working directory, beside which there is room."""
    subprocess.run(["git", "init", "-q", str(tmp_path / "project")], check=True)
    return tmp_path / "project"


def test_secrets_and_hidden_files_stay_and_the_user_is_told(project: Path) -> None:
    tree(project, [*SECRETS, *HIDDEN_FILES, *HARMLESS])
    assert packed(project) == {*HARMLESS}
    stays = withheld(project)
    folders = {"deploy/secrets": "deploy/secrets/redis"}
    assert {folders.get(path, path) for path in stays[LOOKS]} == {*SECRETS}
    assert set(stays[HIDDEN]) == {name.split("/")[0] for name in HIDDEN_FILES if name[0] == "."} | {"deep/.npmrc"}
    assert lines({LOOKS: stays[LOOKS][:4]}) == [
        "left out because they look like secrets: Password.TXT, api_key.txt, apikeys.json and 1 more"
    ]


def test_what_git_ignores_and_python_environments_stay(project: Path) -> None:
    tree(
        project, ["own.toml", "notes.txt", "runs/first/events.jsonl", "env/lib/x.py", "env/pyvenv.cfg", "odd [a]*!.md"]
    )
    (project / ".gitignore").write_text("/runs/\n")
    assert packed(project) == {"own.toml", "notes.txt", "odd [a]*!.md"}
    assert withheld(project)[ENVIRONMENT] == ["env"]


def test_names_with_special_characters_are_withheld_and_nothing_else_with_them(project: Path) -> None:
    tree(project, ["a token[1]*.pem", "!secret", "#secret", "b ", "a tokenX1Y.txt"])
    assert packed(project) == {"b ", "a tokenX1Y.txt"}


def test_no_link_takes_along_what_is_outside_hidden_or_secret(project: Path) -> None:
    tree(project.parent, ["home/passwd", "home/data/a.jsonl"])
    tree(project, ["here.txt", ".hidden", "api_key.txt", "inner/a.txt", "inner/token.txt"])
    links = {"out.txt": "../home/passwd", "folder": "../home/data", "dot.txt": ".hidden", "key.txt": "api_key.txt"}
    links |= {"in.txt": "here.txt", "broken.txt": "gone", "self": "self", "other": "inner", "inner/back": ".."}
    for name, target in links.items():
        (project / name).symlink_to(target)
    (project.parent / "link").symlink_to(project)
    for directory in (project, project.parent / "link"):  # a working directory may itself be a link
        stays = withheld(directory, ["train"])
        assert set(stays[LINK]) == {"out.txt", "folder", "inner/back", "other/back"}
        assert set(stays[HIDDEN]) == {".hidden", "dot.txt"}
        assert set(stays[LOOKS]) == {"api_key.txt", "key.txt", "inner/token.txt", "other/token.txt"}
    assert packed(project) == {"here.txt", "in.txt", "inner/a.txt", "other/a.txt"}


def test_the_files_that_the_environment_names_stay_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(project, ["ray", "redis/pw", "train.toml"])
    monkeypatch.chdir(project)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(project / "ray"))
    monkeypatch.setenv("RLEP_REDIS_PASSWORD_FILE", "redis/pw")
    assert packed(project) == {"train.toml"}
    assert withheld(project) == {TOKEN: ["ray", "redis/pw"]}
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(project.parent / "elsewhere"))
    assert packed(project) == {"ray", "train.toml"}


def test_a_file_that_the_config_or_the_command_names_as_a_secret_stays_here(project: Path) -> None:
    tree(project, ["conf/reader", "given", "linked/to", "other", "bad.toml", "tls", "pw", "pass", "my key"])
    (project / "link").symlink_to("linked/to")
    (project / "first.toml").write_text(
        '[pool]\nurl = "grpcs://host:1"\ntoken_file = "conf/../conf/reader"  # mine\nca_file = "other"\n'
        "[serve]\ntls_key='my key'\n"
    )
    words = ["train", "first.toml", "bad.toml", "--set", 'pool.token_file="given"', "--set=pool.token_file=link"]
    words += ["--tls-key", "tls", "--pool-token-file=pw", "--token-file", "pass"]
    assert withheld(project, words) == {
        TOKEN: ["conf/reader", "given", "link", "linked/to", "my key", "pass", "pw", "tls"]
    }
    assert packed(project, *words) == {"other", "bad.toml", "first.toml"}
    assert lines(withheld(project, words)) == [
        "left out because a token_file, a tls_key or the environment names them as secrets: conf/reader, given, link and 5 more; "
        "the job needs the token on the cluster: let token_file be an absolute path that its machines have"
    ]


def test_words_that_cannot_be_paths_are_no_files(project: Path) -> None:
    tree(project, ["own.toml"])
    (project / "odd.toml").write_text(f'a = "{"x" * 5000}"\ntoken_file = "\\u0000"\ntoken_file = "{"x" * 5000}"\n')
    assert withheld(project, ["train", "odd.toml", "=", "a=", "/etc/passwd", ".", "--token-file", "\0"]) == {}


def test_what_git_does_not_track_stays_here_whatever_its_name_unless_the_command_names_it(project: Path) -> None:
    left = ["gcp-key.json", "private_key", "service_account.json", "notes/diary.md", "x.md"]
    tree(project, ["rewards.py", "data/a.jsonl"])
    subprocess.run(["git", "-C", str(project), "add", "--all"], check=True)
    tree(project, [*left, "mine.toml", "own/model/config.json", "own/model/token.txt", "b.jsonl", "data/c.jsonl"])
    (project / "mine.toml").write_text("[model]\npath = 'own/model'\n[data]\ntrain = \"../project/data/c.jsonl\"\n")
    words = ["train", "mine.toml", "--set", "data.evaluation=b.jsonl", "."]
    stays = all_withheld(project, words)
    assert stays == {
        UNTRACKED: ["gcp-key.json", "notes", "private_key", "service_account.json", "x.md"],
        HIDDEN: [".git"],
        LOOKS: ["own/model/token.txt"],
    }
    assert (
        "left out because git does not track them, and the command does not name them: gcp-key.json" in lines(stays)[1]
    )
    assert lines(stays)[1].endswith(
        "`git add` what the job needs (after `git init` where there is no repository; nothing has to be committed)"
    )


def test_without_a_repository_only_what_the_command_names_goes_along(tmp_path: Path) -> None:
    tree(tmp_path, ["train.toml", "notes.txt"])
    assert all_withheld(tmp_path, ["train", "train.toml"]) == {UNTRACKED: ["notes.txt"]}


def test_a_repository_that_git_refuses_to_read_is_said(tmp_path: Path) -> None:
    tree(tmp_path, ["train.toml", ".git/config"])
    (tmp_path / ".git/config").write_text("[broken")
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main")
    (tmp_path / ".git/objects").mkdir()
    (tmp_path / ".git/refs").mkdir()
    with pytest.raises(ConfigError, match=r"git does not say which files of .* a job may take along: .*bad config"):
        all_withheld(tmp_path, ["train", "train.toml"])
