"""Tokenizers of model directories: prompts, round trips, digests, and directories that have none."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from rlep.config.schema import ModelConfig
from rlep.core.errors import ModelError
from rlep.core.types import Message
from rlep.engines import tokenizer as module
from rlep.engines.tokenizer import Tokenizer, context_length, load_tokenizer, vocabulary_size
from rlep.quickstart.task import build_task

QUESTION = "Ann has 8 bags of 7 pens. Buys 6 more. Gives 4 away. How many?"
USER = Message("user", QUESTION)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_task(tmp_path_factory.mktemp("task")).model_dir


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return load_tokenizer(model_dir)


@pytest.fixture(scope="module")
def plain(model_dir: Path) -> Tokenizer:
    return load_tokenizer(model_dir, ModelConfig(chat_template=False))


def copied(model_dir: Path, target: Path) -> Path:
    return Path(shutil.copytree(model_dir, target))


def test_a_tokenizer_is_read_and_used_without_torch(model_dir: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom rlep.core.types import Message\n"
        "from rlep.engines.tokenizer import load_tokenizer\n"
        f"tokenizer = load_tokenizer(Path({str(model_dir)!r}))\n"
        f"tokens = tokenizer.encode_prompt([Message('user', {QUESTION!r})])\n"
        "print(tokenizer.decode(tokens))\nprint(sorted({'torch', 'vllm'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == [QUESTION, "[]"]


def test_the_prompt_ends_where_the_answer_begins(tokenizer: Tokenizer, plain: Tokenizer) -> None:
    templated = tokenizer.encode_prompt([USER])
    assert templated.dtype == np.int32
    assert len(templated) == 14  # name, has, 8, bags of, 7, pens, 2 x (verb, number, rest), How many?, <sep>
    assert templated[-1] == 2
    assert plain.encode_prompt([USER]).tolist() == templated.tolist()
    assert tokenizer.decode(templated) == QUESTION


def test_a_system_message_goes_first_unless_there_is_one(model_dir: Path) -> None:
    def text(*messages: Message, system: str | None) -> str:
        tokenizer = load_tokenizer(model_dir, ModelConfig(system_prompt=system))
        return tokenizer.decode(tokenizer.encode_prompt(messages))

    user, own = Message("user", "8"), Message("system", "7")
    assert text(user, system=None) == "8"
    assert text(user, system="6") == "68"
    assert text(own, user, system="6") == "78"


def test_an_empty_system_message_takes_the_place_of_the_templates_own(model_dir: Path, tmp_path: Path) -> None:
    own = copied(model_dir, tmp_path / "own")
    (own / "chat_template.jinja").write_text(
        "{% if messages[0]['role'] != 'system' %}7{% endif %}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    )
    systems = [load_tokenizer(own, ModelConfig(system_prompt=system)) for system in (None, "", "6")]
    texts = [tokenizer.decode(tokenizer.encode_prompt([Message("user", "8")])) for tokenizer in systems]
    assert texts == ["78", "8", "68"]
    assert len({tokenizer.template_digest for tokenizer in systems}) == 3


def test_messages_without_template_are_joined_by_blank_lines(plain: Tokenizer) -> None:
    ids = plain.encode_prompt([Message("system", "7"), Message("user", "8")])
    assert ids.tolist() == [11, 3, 12, 2]  # 7, <unk> for the blank line, 8, <sep>


def test_the_eos_is_not_part_of_the_text(tokenizer: Tokenizer) -> None:
    answer = tokenizer.encode_response(r"\boxed{58}")
    assert tokenizer.eos_id == 1
    assert answer[-1] == tokenizer.eos_id
    assert tokenizer.decode(answer) == r"\boxed{58}"


def test_a_response_given_as_text_ends_with_one_eos(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_response("So 8*7=56.")
    assert ids.dtype == np.int32
    assert len(ids) == 8 + 1  # "So ", 8, *, 7, =, 5, 6, ., EOS
    assert ids[-1] == tokenizer.eos_id
    assert tokenizer.decode(ids) == "So 8*7=56."
    assert tokenizer.encode_response("So 8*7=56.<eos>").tolist() == ids.tolist()
    assert tokenizer.encode_response("").tolist() == [tokenizer.eos_id]


def test_a_tokenizer_saved_anew_keeps_its_digest(tokenizer: Tokenizer, model_dir: Path, tmp_path: Path) -> None:
    AutoTokenizer.from_pretrained(str(model_dir)).save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).digest == tokenizer.digest
    assert len(tokenizer.digest) == 32


def test_a_tokenizer_file_is_taken_as_it_stands(plain: Tokenizer, model_dir: Path) -> None:
    # AutoTokenizer splits by Qwen's rules because config.json says qwen2; its decoding is still right.
    auto = AutoTokenizer.from_pretrained(str(model_dir))
    ids = plain.encode_prompt([USER]).tolist()
    assert auto.encode(QUESTION) != ids
    assert auto.decode(ids, skip_special_tokens=True) == QUESTION


def test_two_swapped_tokens_are_another_tokenizer(tokenizer: Tokenizer, model_dir: Path, tmp_path: Path) -> None:
    other = copied(model_dir, tmp_path / "swapped")
    content = json.loads((other / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["7"], vocabulary["8"] = vocabulary["8"], vocabulary["7"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(other).digest != tokenizer.digest


def test_a_directory_without_model_or_tokenizer_is_named(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: no such model directory"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="nowhere: no such model directory"):
        context_length(tmp_path / "nowhere")
    other = copied(model_dir, tmp_path / "bare")
    (other / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"bare: no tokenizer; expected one of tokenizer\.json"):
        load_tokenizer(other)
    (other / "config.json").unlink()
    with pytest.raises(ModelError, match=r"bare: no config\.json"):
        context_length(other)


def test_a_broken_tokenizer_file_is_refused(model_dir: Path, tmp_path: Path) -> None:
    other = copied(model_dir, tmp_path / "broken")
    whole = (other / "tokenizer.json").read_bytes()
    (other / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="broken: the tokenizer cannot be read"):
        load_tokenizer(other)


def test_a_tokenizer_without_eos_is_refused(model_dir: Path, tmp_path: Path) -> None:
    other = copied(model_dir, tmp_path / "endless")
    path = other / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": None}))
    with pytest.raises(ModelError, match="names no EOS token"):
        load_tokenizer(other)


def test_a_missing_or_failing_chat_template_is_named(model_dir: Path, tmp_path: Path) -> None:
    other = copied(model_dir, tmp_path / "plain")
    (other / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template; turn the chat template off"):
        load_tokenizer(other).encode_prompt([USER])
    (other / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    with pytest.raises(ModelError, match="the chat template refuses a prompt: no system role"):
        load_tokenizer(other).encode_prompt([USER])


def test_the_context_length_is_the_configs(model_dir: Path, tmp_path: Path) -> None:
    assert context_length(model_dir) == 128
    nested = {"max_position_embeddings": None, "text_config": {"max_position_embeddings": 4096}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert context_length(tmp_path) == 4096
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x"}))
    with pytest.raises(ModelError, match="max_position_embeddings"):
        context_length(tmp_path)
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(ModelError, match=r"config\.json cannot be read: JSONDecodeError"):
        context_length(tmp_path)


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ('{"vocab_size": 42}', 42),
        ('{"text_config": {"vocab_size": 7}}', 7),
        ("{}", None),
        ("[]", None),
        ("{", None),
        (None, None),
    ],
)
def test_the_vocabulary_is_what_the_models_config_states(tmp_path: Path, config: str | None, rows: int | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert vocabulary_size(tmp_path) == rows


@pytest.mark.parametrize(
    "loop", ["{% for _ in range(99999) %}{% for _ in range(99999) %}{% endfor %}{% endfor %}", "{{ 'x' * 10 ** 17 }}"]
)
def test_a_chat_template_that_loops_is_a_sentence_in_seconds(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """The first takes 10¹⁰ rounds, hours, in two loops of the length that the sandbox lets a loop have."""
    monkeypatch.setattr(module, "RENDER_S", 0.5)
    (tmp_path / "own.jinja").write_text("{{ messages }}" + loop)
    tokenizer = load_tokenizer(model_dir, ModelConfig(template_file=tmp_path / "own.jinja"))
    with pytest.raises(
        ModelError, match=r"own\.jinja: the chat template (has not written a prompt in 0\.5 s|fails with)"
    ):
        tokenizer.encode_prompt([USER])
    assert len(load_tokenizer(model_dir).encode_prompt([USER])) == 14  # the thread goes on


def test_a_file_that_is_written_as_it_is_for_every_prompt_is_no_template(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    tokenizer = load_tokenizer(model_dir, ModelConfig(template_file=tmp_path / "id_rsa"))
    with pytest.raises(ModelError, match=r"id_rsa is no chat template: nothing in it stands in"):
        tokenizer.encode_prompt([USER])
