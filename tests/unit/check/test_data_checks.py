"""What is refused before any actor starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rlep.check.data_checks import check_lora_targets, check_output_head, check_stops, check_watched, teacher
from rlep.check.data_checks import model as model_check
from rlep.check.fit_checks import memory_advice
from rlep.check.inputs import Command, Subject
from rlep.config.schema import Config
from rlep.config.settings import load_config, parse_config
from rlep.core.errors import ConfigError, ModelError
from rlep.quickstart.task import build_task
from tests.small import BASE
from tests.unit.driver.driver_values import prompt_set


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Weights of one layer in two files."""
    layer = "model.layers.0"
    save_file({f"{layer}.self_attn.q_proj.weight": np.zeros((4, 4))}, tmp_path / "a.safetensors")
    others = {f"{layer}.mlp.up_proj.weight": np.zeros((8, 4)), f"{layer}.input_layernorm.weight": np.zeros(4)}
    others |= {f"{layer}.self_attn.q_proj.bias": np.zeros(4), "model.embed_tokens.weight": np.zeros((10, 4))}
    save_file(others, tmp_path / "b.safetensors")
    return tmp_path


def config_of(model: Path, targets: str, rank: int = 4) -> Config:
    return load_config(
        [BASE], [f'model.path="{model}"', f"learner.lora_rank={rank}", f"learner.lora_targets={targets}"]
    )


@pytest.mark.parametrize("targets", ['["all-linear"]', '["q_proj"]', '["up_proj", "q_proj"]'])
def test_adapters_on_layers_that_are_there(targets: str, model: Path) -> None:
    check_lora_targets(config_of(model, targets))


def test_a_target_that_no_layer_has_is_refused_and_those_there_are_named(model: Path) -> None:
    wrong = config_of(model, '["q_proj", "query", "input_layernorm", "embed_tokens"]')
    with pytest.raises(ConfigError, match="is called embed_tokens, input_layernorm, query; there are q_proj, up_proj"):
        check_lora_targets(wrong)
    check_lora_targets(wrong.model_copy(update={"learner": wrong.learner.model_copy(update={"lora_rank": 0})}))


def test_a_torn_file_is_named(model: Path) -> None:
    (model / "b.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match=r"b\.safetensors cannot be read"):
        check_lora_targets(config_of(model, '["q_proj"]'))


@pytest.mark.parametrize(
    ("family", "stated", "refused"),
    [
        ("llama", None, "false, and the safetensors hold no lm_head.weight: set tie_word_embeddings to true"),
        ("llama", False, "false, and the safetensors hold no lm_head.weight: set tie_word_embeddings to true"),
        ("llama", True, ""),
        ("gemma", None, ""),  # tied by its family
        ("gemma", False, "false, and the safetensors hold no lm_head.weight: set tie_word_embeddings to true"),
        ("of another library", False, ""),
    ],
)
def test_a_model_without_an_output_head_is_one_whose_head_is_tied(
    family: str, stated: bool | None, refused: str, model: Path
) -> None:
    said = {} if stated is None else {"tie_word_embeddings": stated}
    (model / "config.json").write_text(json.dumps({"model_type": family, **said}))
    with pytest.raises(ModelError, match=refused) if refused else nullcontext():
        check_output_head(model)


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_another_head_beside_a_tied_one_is_refused_an_equal_one_is_not(family: str, model: Path) -> None:
    said = {"tie_word_embeddings": True} if family == "llama" else {}
    (model / "config.json").write_text(json.dumps({"model_type": family, **said}))
    save_file({"lm_head.weight": np.zeros((10, 4))}, model / "c.safetensors")
    check_output_head(model)
    save_file({"lm_head.weight": np.ones((10, 4))}, model / "c.safetensors")
    with pytest.raises(ModelError, match="is true, and the safetensors hold an lm_head"):
        check_output_head(model)


def test_a_models_checks_before_a_run_import_no_torch() -> None:
    """Importing it takes seconds, in every command that starts actors."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom rlep.check.data_checks import model\n"
        "from rlep.check.inputs import Subject\nfrom rlep.config.settings import load_config\n"
        'base = Path(sys.argv[1])\nquickstart = load_config([base], [f\'model.path="{base.parent / "model"}"\'])\n'
        "found = list(model(Subject(quickstart)))\n"
        "print(found[0].level, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, BASE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ok", "False"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose tokenizer has 42 tokens; ``<eos>`` is one of them."""
    directory = build_task(tmp_path_factory.mktemp("task")).model_dir
    (directory / "config.json").write_text(json.dumps({"vocab_size": 42}))
    return directory


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ('rollout.stop=["#"]', r"^rollout\.stop: no tokens of .* make the text '#', so no response would end at it"),
        ('rollout.stop=["7", "</answer>"]', r"make the text '</answer>'"),
        ("rollout.stop_tokens=[1, 42]", r"^rollout\.stop_tokens: .* has no token 42: its vocabulary has 42"),
        ('rollout.stop=["7", "<eos>", "8 "]', ""),
        ("rollout.stop_tokens=[41]", ""),
    ],
)
def test_a_stop_that_no_response_could_have_is_refused(stops: str, message: str, toy: Path) -> None:
    subject = Subject(load_config([BASE], [f'model.path="{toy}"', stops]))
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        check_stops(subject)


def other_toy(toy: Path, directory: Path, *, eos: str = "<eos>", **stated: Any) -> Path:
    """A copy of the toy whose tokenizer or config.json say something else."""
    shutil.copytree(toy, directory)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | stated))
    settings = directory / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": eos}))
    return directory


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"vocab_size": 64}, ""),  # padded rows
        (
            {"eos": "<pad>"},
            r"^loss\.teacher = .*/t has tokenizer \w{32}, .* has \w{32}: its token ids or its EOS are others",
        ),
        (
            {"vocab_size": 40},
            r"^loss\.teacher = .*/t knows 40 token ids, .* may sample 42: take a teacher that knows them a",
        ),
        ({"quantization_config": None}, ""),
        ({"quantization_config": {"quant_method": "fp8"}}, r"^.*/t is quantised .*: take the unquantised model$"),
        ({"max_position_embeddings": 9}, r"need a context of \d+ tokens, .*/t has 9; lower one of them"),
    ],
)
def test_a_teacher_that_cannot_read_what_the_policy_writes_is_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    own = build_task(tmp_path / "task").model_dir
    other = other_toy(own, tmp_path / "t", **changed)
    given = [f'model.path="{own}"', f'loss.teacher="{other}"', "loss.kl_coef=1"]
    with pytest.raises(ModelError, match=message) if message else nullcontext():
        assert [finding.detail for finding in teacher(Subject(load_config([BASE], given)))] == [str(other)]
    assert not list(teacher(Subject(load_config([BASE], given), "collect")))  # which has no use for one


def test_a_teacher_whose_files_hold_another_head_than_its_tied_one_is_refused(tmp_path: Path) -> None:
    own = build_task(tmp_path / "task").model_dir
    other = other_toy(own, tmp_path / "t", tie_word_embeddings=True)
    subject = Subject(
        load_config([BASE], [f'model.path="{own}"', f'loss.teacher="{other}"', "loss.kl_coef=1"]), "train"
    )
    file = other / "model.safetensors"
    held = load_file(file)
    for factor, refused in (
        (1.0, ""),
        (-1.0, rf"^{other}: by config.json tie_word_embeddings is true, and the safete"),
    ):
        save_file(held | {"lm_head.weight": factor * held["model.embed_tokens.weight"]}, file)
        with pytest.raises(ModelError, match=refused) if refused else nullcontext():
            assert [finding.level for finding in teacher(subject)] == ["ok"]


@pytest.mark.parametrize("command", ["train", "collect"])
def test_a_quantised_model_is_refused_for_every_command(command: Command, tmp_path: Path) -> None:
    own = build_task(tmp_path / "task").model_dir
    other = other_toy(own, tmp_path / "t", quantization_config={"quant_method": "fp8"})
    with pytest.raises(ModelError, match=f"^{other} is quantised .*: take the unquantised model$"):
        list(model_check(Subject(load_config([BASE], [f'model.path="{other}"']), command)))
    config = load_config([BASE], [f'model.path="{own}"'])
    assert [finding.level for finding in model_check(Subject(config, command))] == ["ok"]


def test_a_teacher_that_is_not_there_is_refused(toy: Path) -> None:
    given = [f'model.path="{toy}"', f'loss.teacher="{toy}/none"', "loss.kl_coef=1"]
    with pytest.raises(ModelError, match=r"^loss\.teacher = .*/none: no such directory"):
        list(teacher(Subject(load_config([BASE], given))))


def watching(*names: str) -> Config:
    return load_config([BASE], [f"rollouts.watch={json.dumps(names)}"])


def test_watched_prompts_are_those_of_the_training_data() -> None:
    data = prompt_set(3)
    check_watched(watching(), data)
    check_watched(watching(data.prompts[2].id, data.prompts[0].id), data)
    with pytest.raises(ConfigError, match=r"no training question has the id 'a', 'b', 'c' and 2 more; ids are"):
        check_watched(watching("a", data.prompts[1].id, "b", "c", "d", "e"), data)
    with pytest.raises(ConfigError) as refused:
        check_watched(watching(*(f"{number:02d}" + "x" * 100_000 for number in range(64))), data)
    assert len(str(refused.value)) < 1000


def test_more_than_64_prompts_are_not_watched() -> None:
    assert len(watching(*map(str, range(64))).rollouts.watch) == 64
    with pytest.raises(ConfigError, match="must have at most 64 values"):
        watching(*map(str, range(65)))


def test_a_lack_of_memory_comes_with_the_plan_and_the_settings_that_lower_it() -> None:
    model = {"path": str(Path(__file__).parents[3] / "rlep" / "quickstart" / "model")}
    advice = memory_advice(parse_config({"model": model, "learner": {"gpus": 1}}))
    # 109,888 parameters: 12 and 4 bytes each
    assert "weights and Adam 1.3 MiB, gradients 429.2 KiB" in advice
    assert "--set learner.activation_checkpointing=true, --set learner.micro_batch_tokens=4096" in advice
    assert "--set learner.ranks=2. `rlep plan --gpu-memory GIB`" in advice
