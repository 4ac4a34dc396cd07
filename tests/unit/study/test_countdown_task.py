"""The task of studies/countdown-*.toml: what its teacher writes, and that the base sees none of its questions."""

from __future__ import annotations

import ast
import re

import pytest

from rlep.core.seeds import generator_for
from rlep.quickstart.toy_tokenizer import build_tokenizer
from rlep.services.verifier.gym import GymVerifier
from studies.tasks.countdown import CONTEXT, VOCABULARY, play, question, reserved, rows, texts


def value(node: ast.expr) -> int:
    """Integers, +, - and * by a second implementation."""
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return node.value
    assert isinstance(node, ast.BinOp)
    left, right = value(node.left), value(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    return left - right if isinstance(node.op, ast.Sub) else left * right


def expression_of(response: str) -> str:
    found = re.fullmatch(r"(?:\d+[-+*]\d+=\d+\.){2,3}<answer>([-+*()\d]+)</answer>", response)
    assert found, response
    return found[1]


def test_a_response_is_legal_and_its_expression_has_the_value_of_its_steps() -> None:
    numbers, arrived = [3, 7, 12], set()
    for trial in range(300):
        response, end = play(numbers, generator_for(1, "test", trial))
        expression = expression_of(response)
        assert sorted(map(int, re.findall(r"\d+", expression))) == numbers
        assert value(ast.parse(expression, mode="eval").body) == end
        for left, sign, right, result in re.findall(r"(\d+)([-+*])(\d+)=(\d+)\.", response):
            assert value(ast.parse(f"{left}{sign}{right}", mode="eval").body) == int(result) <= 99
        arrived.add(end)
    assert arrived == {2, 8, 9, 15, 16, 22, 29, 33, 43, 48, 57, 63, 81, 87}  # by hand: 12 - 7 - 3, 12 + 3 - 7, …


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize(("stage", "least", "most"), [("lessons", 1.0, 1.0), ("play", 0.0, 0.02)])  # by chance 1 %
def test_lessons_reach_their_target_and_none_is_a_question_of_the_data_sets(
    count: int, stage: str, least: float, most: float
) -> None:
    tokenizer = build_tokenizer(CONTEXT, VOCABULARY)
    pairs = [pair for step in range(10) for pair in texts(count, stage, step)]
    reached = 0
    for asked, response in pairs:
        numbers, target = asked.split(">")
        assert not reserved([int(number) for number in numbers.split()], int(target))
        reached += value(ast.parse(expression_of(response), mode="eval").body) == int(target)
        ids = tokenizer.encode(asked) + tokenizer.encode(response, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        assert len(ids) < CONTEXT
        assert tokenizer.decode(ids, skip_special_tokens=True) == asked + response
    assert len(pairs) == 10 * 96
    assert least <= reached / len(pairs) <= most


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_questions_are_graded_by_the_tasks_own_scorer() -> None:
    made = rows(12, 3)
    assert len({row.messages[0].content for row in made}) == 12
    with GymVerifier() as verifier:
        for row in made:
            numbers, target = row.messages[0].content.split(">")
            assert reserved([int(number) for number in numbers.split()], int(target))
            assert question([int(number) for number in numbers.split()], int(target)) == row.messages[0].content
            right = next(  # some legal play arrives
                response
                for response, end in (
                    play(list(map(int, numbers.split())), generator_for(2, "t", n)) for n in range(9999)
                )
                if end == int(target)
            )
            wrong = right.replace("<answer>", "<answer>1+")
            verdicts = verifier.grade_pairs([(row.reference, right, False), (row.reference, wrong, False)])
            assert [verdict.status for verdict in verdicts] == ["correct", "wrong"]
