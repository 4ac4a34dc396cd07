"""Dialogue of a policy with its environment, in token ids: what a turn calls, and what follows it.

Sampled ids are never encoded again. What follows a turn, its *suffix*, is the difference of two renderings of the chat template,

    question · turn                                the template ends the turn, e.g. <|im_end|>\\n
    question · turn · observation · next turn      … and writes the observation and what begins the next turn

in which short texts stand for question, turn and observation. It is encoded alone, and is the same after every turn. So the model
is shown its turns as it sampled them. A template may leave the thinking of earlier turns out, write other thinking before them,
or other white space: what was sampled stays all the same. One that writes anything else otherwise is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from rlep.core.episodes import Suffix, ToolCall
from rlep.core.errors import ModelError
from rlep.core.thinking import CLOSES, MARK, OPENS, opened
from rlep.core.types import Int32Array, Message
from rlep.engines.tokenizer import Tokenizer
from rlep.engines.turn_calls import QUESTION, check_calls_read, common_beginning, read_calls

TURN, THOUGHT, OBSERVATION = "rlep-turn", "rlep-thought", "rlep-observation"
"""Texts that stand for others in renderings."""
VERBATIM = ' "rlep"\n<b> &\\ \u00e9 '
"""An observation that a template which trims or quotes texts would write otherwise."""
CUT = "\n[cut]"
"""End of an observation that was too long."""
BEFORE_TURN = re.compile(rf"(?:\s*{OPENS}(?:(?!{TURN}).)*?{CLOSES})+\s*(?={TURN})", re.IGNORECASE | re.DOTALL)
"""Thinking before a turn, in a rendering."""
SHOWN = 48
"""Characters of a rendering that an error shows on each side."""


class Dialogue:
    """The policy's and the environment's turns, by the chat template of a tokenizer, whose tools are the environment's."""

    def __init__(self, tokenizer: Tokenizer, *, observation_tokens: int) -> None:
        """``observation_tokens``: the most that the texts of one observation have together.

        Raises ``ModelError`` where the template cannot write a tool's message, does not keep earlier turns, or writes calls of
        tools in a form that is not read.
        """
        self._tokenizer, self._most = tokenizer, observation_tokens
        self._role = "tool" if tokenizer.tools else "user"
        self._pieces: dict[int, tuple[str, ...]] = {}
        if tokenizer.templated:
            self._check_kept()
            self._pieces_of(1)
            if tokenizer.tools:
                check_calls_read(tokenizer)

    def calls(self, turn: Int32Array) -> Sequence[ToolCall]:
        """The calls of tools in the policy's ``turn`` ``[n]``, in order; see ``read_calls``."""
        return read_calls(self._tokenizer, turn, self._begins, self._opening)

    def suffix(self, turn: Int32Array, texts: Sequence[str]) -> Suffix:
        """What follows the policy's ``turn`` ``[n]``: its end where it has none, the observation, the next turn's beginning.

        Special tokens that an observation writes are broken by a space: it is not the template.
        """
        cut, shown = 0, [self._broken(text) for text in texts]
        for place, room in self._rooms(shown).items():
            shown[place], cut = self._shortened(shown[place], room), cut + 1
        if not self._tokenizer.templated:
            return Suffix(np.asarray(self._tokenizer.encode_text("\n".join(shown)), dtype=np.int32), cut)
        ids = self._tokenizer.encode_text(self._following(shown))
        return Suffix(np.asarray(ids[self._ended(turn, ids) :], dtype=np.int32), cut)

    @cached_property
    def _begins(self) -> str:
        """The question's rendering: a prompt."""
        return self._tokenizer.render([Message("user", QUESTION)])

    @cached_property
    def _opening(self) -> str:
        """The mark of thinking with which every turn begins; empty without."""
        return opened(self._begins, QUESTION) if self._tokenizer.templated else ""

    def _turn(self, number: int) -> str:
        """What stands for a sampled turn: it thinks, where the template knows of that and its prompt lets it."""
        text = f"{TURN}-{number}"
        if self._opening:
            return f"{THOUGHT}\n{self._opening[0]}/{self._opening[1:]}\n\n{text}"
        ends = [mark.group() for mark in MARK.finditer(self._tokenizer.chat_template) if mark.group(1)]
        closed = MARK.search(self._begins, self._begins.rfind(QUESTION))  # a prompt that says: without thinking
        if closed or not ends:
            return text
        end = ends[0]
        return f"{end.replace('/', '')}\n{THOUGHT}\n{end}\n\n{text}"

    def _said(self, number: int) -> Message:
        """A turn as a message: with the thinking that its prompt has opened."""
        opening = self._begins[self._begins.rfind(self._opening) :] if self._opening else ""
        return Message("assistant", opening + self._turn(number))

    def _check_kept(self) -> None:
        """Raise ``ModelError`` where turns are written otherwise than sampled, thinking aside, or end otherwise later."""
        messages, kept, before = [Message("user", QUESTION)], self._begins, ""
        for number in (1, 2):
            kept += self._turn(number)
            messages += [self._said(number), Message(self._role, f"{OBSERVATION}-{number}")]
            rendered = self._tokenizer.render(messages)
            if differs := _difference(_spoken(rendered), _spoken(kept)):
                raise ModelError(
                    f"{self._tokenizer.template_name}: with what follows it, the chat template writes turn {number} of an "
                    f"episode otherwise than the model was shown and has sampled it, white space aside: {differs}. The model "
                    "would be trained on conversations that the template never makes; give one that keeps earlier turns as they "
                    "were, as model.template_file"
                )
            follows = _rest(rendered, number).replace(f"{OBSERVATION}-{number}", OBSERVATION)
            if number > 1 and follows != before:
                raise ModelError(
                    f"{self._tokenizer.template_name}: after turn {number} of an episode the chat template writes {follows!r}, "
                    f"after turn 1 {before!r}; give one that goes on alike after every turn, as model.template_file"
                )
            kept, before = rendered, follows

    def _after(self, texts: Sequence[str]) -> str:
        """What the template writes after a turn and before the next, with these observations between them."""
        messages = [Message("user", QUESTION), self._said(1), *(Message(self._role, text) for text in texts)]
        return _rest(self._tokenizer.render(messages), 1)

    def _pieces_of(self, count: int) -> tuple[str, ...]:
        """The texts before, between and after ``count`` observations; none where it does not write them as they are."""
        if count not in self._pieces:
            marks = [f"{OBSERVATION}-{number}" for number in range(count)]
            rest, pieces = self._after(marks), []
            for mark in marks:
                piece, found, rest = rest.partition(mark)
                pieces.append(piece)
                if not found:
                    raise ModelError(
                        f"{self._tokenizer.template_name}: the chat template leaves out messages of the role {self._role}, by "
                        "which an environment answers; give another as model.template_file"
                    )
            joined = _woven([*pieces, rest], [VERBATIM] * count)
            self._pieces[count] = (*pieces, rest) if joined == self._after([VERBATIM] * count) else ()
        return self._pieces[count]

    def _following(self, texts: Sequence[str]) -> str:
        pieces = self._pieces_of(len(texts))
        return _woven(pieces, texts) if pieces else self._after(texts)

    @cached_property
    def _end(self) -> list[int]:
        """Ids with which the template ends a turn, whatever follows."""
        messages = [Message("user", QUESTION), self._said(1)]
        ends = _rest(self._tokenizer.render(messages, begins_response=False), 1)
        return self._tokenizer.encode_text(common_beginning(ends, self._after([OBSERVATION])))

    def _ended(self, turn: Int32Array, ids: Sequence[int]) -> int:
        """The number of ids at the beginning of a suffix that the turn itself has: to the token that ended it."""
        last = int(turn[-1]) if len(turn) else -1
        if last not in self._end:
            return int(last in self._tokenizer.special and last in ids[:1])  # it stopped where the next message begins
        have = self._end.index(last) + 1
        if last not in self._tokenizer.special and turn[-have:].tolist() != self._end[:have]:
            return 0  # it stopped at a text that ends like the end, e.g. in a line break
        return have if list(ids[:have]) == self._end[:have] else 0

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        texts = sorted((text for text in self._tokenizer.special.values() if len(text) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    def _broken(self, text: str) -> str:
        return text if self._special is None else self._special.sub(lambda found: _spaced(found.group()), text)

    def _rooms(self, texts: Sequence[str]) -> dict[int, int]:
        """Place → tokens that it may have, for each text that is too long: the short ones leave theirs to the others."""
        if sum(len(text.encode("utf-8", "replace")) for text in texts) <= self._most:  # a token has a byte at least
            return {}
        sizes = [len(self._tokenizer.encode_text(text)) for text in texts]
        left, rooms = self._most, {}
        for rank, place in enumerate(sorted(range(len(texts)), key=sizes.__getitem__)):
            room = left // (len(texts) - rank)
            if sizes[place] > room:
                rooms[place] = room
            left -= min(sizes[place], room)
        return rooms

    def _shortened(self, text: str, room: int) -> str:
        """The beginning of a text, and ``CUT``, in at most ``room`` tokens; ``CUT`` alone where there is no more room."""
        ids, keep = self._tokenizer.encode_text(text), room
        while keep > 0:
            kept = self._tokenizer.decode(np.asarray(ids[:keep], dtype=np.int32)).rstrip("\ufffd")
            over = len(self._tokenizer.encode_text(kept + CUT)) - room
            if over <= 0:
                return kept + CUT
            keep -= over
        return CUT.strip()


def _spoken(rendered: str) -> str:
    """A rendering without thinking and white space."""
    return "".join(BEFORE_TURN.sub("", rendered).split())


def _rest(rendered: str, number: int) -> str:
    """What follows a turn in a rendering; empty where it leaves the turn out."""
    return rendered.partition(f"{TURN}-{number}")[2]


def _difference(rendered: str, kept: str) -> str:
    """Where a rendering does not begin with ``kept``, for an error; empty where it does."""
    if rendered.startswith(kept):
        return ""
    at = len(common_beginning(rendered, kept))
    before = max(at - SHOWN, 0)
    return f"{rendered[before : at + SHOWN]!r} in place of {kept[before : at + SHOWN]!r}"


def _spaced(token: str) -> str:
    return f"{token[0]} {token[1:]}"


def _woven(pieces: Sequence[str], texts: Sequence[str]) -> str:
    return "".join(part for pair in zip(pieces, texts, strict=False) for part in pair) + pieces[-1]
