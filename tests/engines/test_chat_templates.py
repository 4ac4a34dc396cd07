"""Chat templates as TRL ships them: which go on after an episode's turns, with tools and ``step``, and why others do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl

from rlep.config.schema import ModelConfig
from rlep.core.errors import ModelError
from rlep.engines.dialogue import Dialogue
from rlep.engines.tokenizer import load_tokenizer
from tests.engines.test_dialogue import ADD, ids, shown
from tests.engines.test_thinking_tokens import write

SHIPPED = {path.stem: path for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))}
ALTERNATE = "roles must alternate"
LEFT_OUT = "leaves out messages of the role tool"
FIRST, SECOND = "writes turn 1 of an episode otherwise", "writes turn 2 of an episode otherwise"
STEP_REFUSED = {  # by the beginnings of names
    "gptoss": FIRST,  # the policy writes the channel of its answer itself
    "muse_glimmer": FIRST,
    "idefics3": FIRST,  # contents are lists of parts
    "smolvlm": FIRST,
    "llava_next": "refuses a prompt",
}
TOOLS_REFUSED = STEP_REFUSED | {
    "cohere": ALTERNATE,
    "gemma": ALTERNATE,
    "phi3": LEFT_OUT,
    "deepseek": SECOND,  # nothing begins a turn after an answer
    "diffusion_gemma": SECOND,  # answers are parts of the turn that called
    "gemma4": SECOND,
    "gemma4_v2": "writes the call of a tool as '<|tool_call>call:look_up.*does not see as a call".replace("|", r"\|"),
    "gptoss": "no previous assistant message with a tool call",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer."""
    return write(tmp_path_factory.mktemp("bytes"), special=False, turns=True)


def follows(model: Path, template: Path, *, tools: bool) -> str:
    """What follows a turn that has no end, with ``the answer`` as the observation."""
    tokenizer = load_tokenizer(model, ModelConfig(path=model, template_file=template))
    tokenizer.backend.add_special_tokens({"bos_token": "<s>"})
    tokenizer = tokenizer.with_tools([ADD]) if tools else tokenizer
    suffix = Dialogue(tokenizer, observation_tokens=512).suffix(ids(tokenizer, "4"), ["the answer"])
    return shown(tokenizer, suffix.tokens)


def reason(name: str, refused: dict[str, str]) -> str | None:
    """Why a template is refused, by the longest beginning of its name."""
    found = [begin for begin in refused if name.startswith(begin)]
    return refused[max(found, key=len)] if found else None


@pytest.mark.parametrize("tools", [False, True], ids=["step", "tools"])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_template_goes_on_after_a_turn_or_is_refused(name: str, tools: bool, model: Path) -> None:
    why = reason(name, TOOLS_REFUSED if tools else STEP_REFUSED)
    if why is not None:
        with pytest.raises(ModelError, match=why):
            follows(model, SHIPPED[name], tools=tools)
        return
    found = follows(model, SHIPPED[name], tools=tools)
    before, answer, after = found.partition("the answer")
    assert answer
    assert before
    assert after, "the next turn has a beginning"


@pytest.mark.parametrize(
    ("name", "tools", "found"),
    [
        ("qwen2_5", False, "<|im_end|>\n<|im_start|>user\nthe answer<|im_end|>\n<|im_start|>assistant\n"),
        ("qwen3", False, "<|im_end|>\n<|im_start|>user\nthe answer<|im_end|>\n<|im_start|>assistant\n"),
        (
            "qwen3",
            True,
            "<|im_end|>\n<|im_start|>user\n<tool_response>\nthe answer\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3_2",
            True,
            '<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"the answer"<|eot_id|>'
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("deepseek_r1_distill", False, "<｜end▁of▁sentence｜><｜User｜>the answer<｜Assistant｜><think>\n"),
        ("glm4moe", True, "<|observation|>\n<tool_response>\nthe answer\n</tool_response><|assistant|>"),
    ],
)
def test_what_follows_a_turn(name: str, tools: bool, found: str, model: Path) -> None:
    assert follows(model, SHIPPED[name], tools=tools) == found


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "qwen3_6", "deepseek_r1_distill"])
def test_a_template_and_its_variant_for_training_go_on_alike(name: str, model: Path) -> None:
    own, training = (follows(model, SHIPPED[one], tools=False) for one in (name, f"{name}_training"))
    assert own == training
