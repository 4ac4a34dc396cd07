"""Which text of a response counts as its answer."""

import pytest

from rlep.services.verifier.answers import answer_of, clean, last_box, reference_of


def extract(text: str, *, truncated: bool = False) -> str | None:
    return answer_of(text, truncated=truncated)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("8*7=56.So 56+6=62.\\boxed{62}", "62"),
        ("so \\boxed {62}.", "62"),
        ("\\boxed{1} or rather \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{\\boxed{42}}", "42"),
        ("\\boxed{x = \\boxed{42}}", "x = 42"),
        ("\\boxed{2\\boxed{3}+\\boxed{4}}", "23+4"),
        ("\\boxed{41} and then \\boxed{42", "41"),
        ("an unclosed { before \\boxed{42}", "42"),
        ("\\boxed{42} but Answer: 43", "42"),
        ("\\boxed{41}\n\\boxed{}", None),
        ("\\boxed{ }", None),
        ("\\boxed{42", None),
        ("\\boxed 42", None),
    ],
)
def test_the_last_balanced_box_counts(text: str, answer: str | None) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 7", "7"),
        ("so\nAnswer: 7.", "7"),
        ("**Answer:** 7", "7"),
        ("**Answer: 7**", "7"),
        ("Answer: $\\frac{1}{2}$.", "\\frac{1}{2}"),
        ("Answer: \\(x+1\\)", "x+1"),
        ("Final answer: 7", "7"),
        ("Answer\uff1a7", "7"),
        ("answer : 3.5", "3.5"),
        ("Answer: 6\nNo.\nAnswer: 7\nDone.", "7"),
        ("Answer:", None),
        ("My answer is 7", None),
        ("The Answer: line holds 7? In prose, 'Answer: 7' does not.", "line holds 7? In prose, 'Answer: 7' does not"),
        ("I think the result is 7", None),
        ("", None),
    ],
)
def test_else_the_last_answer_line_counts(text: str, answer: str | None) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\\boxed{1}</think>\\boxed{2}", "2"),
        ("reasoning \\boxed{1}</think> Answer: 2", "2"),
        ("<think>\\boxed{42}", None),
        ("<THINK>\\boxed{42}", None),
        ("<THINKING>\\boxed{42}", None),
        ("[think]\\boxed{42} so", None),
        ("<Think>\\boxed{42}</Think>", None),
        ("<think>a</think>\\boxed{1}<think>\\boxed{2}", None),
        ("<think>\\boxed{42}</think> the answer is as above", None),
        ("<think>a</think><think>\\boxed{1}</think>\\boxed{2}", "2"),
    ],
)
def test_only_what_follows_the_thinking_counts(text: str, answer: str | None) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is 42 and", None),
        ("so \\boxed{4", None),
        ("\\boxed{42} and also", "42"),
        ("Answer: 4", None),  # may have been the start of 42
        ("Answer: 42\nThis is", "42"),
    ],
)
def test_of_a_truncated_response_only_a_complete_marker_counts(text: str, answer: str | None) -> None:
    assert extract(text, truncated=True) == answer


def test_a_bare_number_counts_only_when_configured() -> None:
    text = "and so we get 1,234."
    assert extract(text) is None
    assert answer_of(text, truncated=False, profile="math-bare") == "1,234"
    assert answer_of(text, truncated=True, profile="math-bare") is None
    assert answer_of("we get x^2", truncated=False, profile="math-bare") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so it is \u22125", "-5"),
        ("so it is -5.", "-5"),
        ("x = - 5", None),  # a sign or a subtraction
        ("from 10-15", None),
        ("a ratio of 3:4", None),
        ("there are 12 345", None),
        ("that is 10^-3", None),
        ("it is: 7", "7"),
        ("from 10\u201315", None),
        ("x = \u2013 5", None),
        ("3 : 4", None),
        ("12\u00a0345", None),
        ("2 × 5", None),
    ],
)
def test_a_bare_number_is_not_a_part_of_another(text: str, number: str | None) -> None:
    assert answer_of(text, truncated=False, profile="math-bare") == number


def test_boxes_with_many_labels_between_them_are_read_once() -> None:
    assert extract("\\boxed{1}" + " (1)" * 60 + " then \\boxed{2}") == "2"  # else 2^60 ways to read the labels


def test_strict_box_takes_nothing_but_a_box() -> None:
    assert answer_of("Answer: 7", truncated=False, profile="strict-box") is None
    assert answer_of("\\boxed{7}", truncated=False, profile="strict-box") == "7"


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        (" $7$. ", "7"),
        ("**7**", "7"),
        ("$$x$$", "x"),
        ("$1$ or $2$", "$1$ or $2$"),
        ("1, 2, ...", "1, 2, ..."),
        ("$", "$"),
    ],
)
def test_delimiters_around_the_whole_answer_are_trimmed(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_a_reference_may_be_boxed_or_in_dollars() -> None:
    assert reference_of("$\\boxed{42}$") == "42"
    assert reference_of(" $\\frac{1}{2}$ ") == "\\frac{1}{2}"


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "\\boxed{{",
        "}",
        "{",
        "Answer:",
        "Answer ",
        "\\",
        "<think>",
        "</think>",
        " ",
        "answer" + " " * 50,
        "$",
        "*",
        ". ",
    ],
)
def test_extraction_is_linear_in_the_text(unit: str) -> None:
    """A quadratic step would need minutes for a text of 1 MB."""
    text = unit * (1_000_000 // len(unit))
    extract(text)
    extract("\\boxed{" + text + "}")
    extract("Answer: " + text)


def test_deeply_nested_boxes_unwrap() -> None:
    assert last_box("\\boxed{" * 500 + "42" + "}" * 500) == "42"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<thought>\boxed{3}</thought> so \boxed{4}", "4"),
        (r"<thought>\boxed{3}", None),
        (r"<reasoning>\boxed{3}</reasoning>", None),
        (r"<longcat_think>\boxed{3}</longcat_think>\boxed{4}", "4"),
        (r"<|START_THINKING|>\boxed{3}<|END_THINKING|>\boxed{4}", "4"),
        (r"<|START_THINKING|>\boxed{3}", None),
        (r"<|channel|>analysis<|message|>\boxed{3}<|end|><|channel|>final<|message|>\boxed{4}", "4"),
        (r"<|channel|>analysis<|message|>\boxed{3}<|end|>", None),
        (r"<|channel|>final<|message|>\boxed{4}<|channel|>commentary<|message|>\boxed{3}", None),
    ],
)
def test_an_answer_in_thinking_of_any_family_does_not_count(text: str, answer: str | None) -> None:
    assert answer_of(text, truncated=False) == answer


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ('["18"]', "18"),
        (' ["\\\\frac{1}{2}"]', "\\frac{1}{2}"),
        ("[18]", "[18]"),
        ('["1", "2"]', '["1", "2"]'),
        ("[1,2)", "[1,2)"),
    ],
)
def test_a_reference_that_is_a_list_of_one_text_in_json_is_that_text(text: str, stated: str) -> None:
    assert reference_of(text) == stated
