"""Runs a study file by TRL's ``GRPOTrainer`` in place of ``rlep train``, with replay by ``rlep.integrations.trl``.

    python studies/with_trl.py studies/countdown-4-trl.toml [--parallel 2]

Arms, seeds, what is complete, the ledger and the report are ``rlep study``'s. Each phase is one process that writes what the
study reads of a run: ``metrics.jsonl`` with the tokens computed so far, ``evaluations.jsonl`` and ``samples/``. One that was
stopped begins anew. TRL trains every group, also those that teach nothing. Needs rlep[tasks,pool] and TRL.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlep import PoolClient
from rlep.algorithms.evaluation import Question, evaluate
from rlep.config.replay import ReplayConfig
from rlep.config.sampling import SamplingConfig
from rlep.config.schema import Config
from rlep.config.settings import load_config
from rlep.core.errors import ConfigError
from rlep.core.seeds import seed_for
from rlep.core.types import Verdict, prompt_id_of
from rlep.data.prompt_files import read_rows
from rlep.data.prompt_rows import PromptRow
from rlep.integrations.rule import CHOICE
from rlep.integrations.trl import TrlReplay
from rlep.metrics.catalogue import compute_of
from rlep.metrics.logs import EvaluationsLog, MetricsLog
from rlep.services.verifier.gym import GymVerifier
from rlep.study.conduct import Base, conduct
from rlep.study.study_plan import read_study
from rlep.study.study_report import write_report
from rlep.study.study_runner import Commands

ROWS = 800
"""Responses that an evaluation generates at once."""


def conduct_study(file: Path, parallel: int) -> None:
    """Run what is not complete, and write the report."""
    study = read_study(file)
    assert not isinstance(study.study.base, str)
    commands = Commands(study.study.phase_hours, study.study.grid, (str(Path(__file__).resolve()),))
    found = conduct(study, Base(study.study.base), commands, parallel=parallel, say=_say)
    _say(str(write_report(found)))
    if found.failed:
        raise SystemExit(f"failed: {found.failed}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


@dataclass
class Ledger:
    """Tokens that a trainer computed, prompts included, padding not."""

    generated: int = 0
    scored: int = 0
    trained: int = 0

    @property
    def compute(self) -> float:
        """As a study counts it."""
        return compute_of(self.generated, self.scored, self.trained)

    def count(self, trainer: Any) -> None:
        """Count from now on what passes through a trainer's two methods that run the model."""
        import torch

        generate, score = trainer._generate_single_turn, trainer._get_per_token_logps_and_entropies

        def generated(prompt_ids: Sequence[Sequence[int]], *rest: Any) -> Any:
            completions, logprobs = generate(prompt_ids, *rest)
            self.generated += sum(map(len, prompt_ids)) + sum(map(len, completions))
            return completions, logprobs

        def scored(model: Any, ids: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            tokens = int(mask.sum())
            if torch.is_grad_enabled():
                self.trained += tokens
            else:
                self.scored += tokens
            return score(model, ids, mask, *rest, **options)

        trainer._generate_single_turn, trainer._get_per_token_logps_and_entropies = generated, scored


class Grader:
    """reasoning-gym's own scorer, of each different response once."""

    def __init__(self, verifier: GymVerifier) -> None:
        self._verifier = verifier
        self._known: dict[tuple[str, str], Verdict] = {}

    def grade(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of pairs (reference, response)."""
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._known]
        verdicts = self._verifier.grade_pairs([(*pair, False) for pair in new])
        self._known |= zip(new, verdicts, strict=True)
        return [self._known[pair] for pair in pairs]

    def correct(self, completions: Sequence[Any], reference: Sequence[str], **_: object) -> list[float]:
        """1 where a response is right: TRL's reward function."""
        texts = [message["content"] for (message,) in completions]
        return [float(verdict.status == "correct") for verdict in self.grade([*zip(reference, texts, strict=True)])]


class Evaluations:
    """Evaluates the policy on the held-out questions by the sampler of its rollouts, and writes what a study reads."""

    def __init__(self, config: Config, rows: Sequence[PromptRow], grader: Grader, log: EvaluationsLog) -> None:
        self._config, self._rows, self._grader, self._log = config, rows, grader, log
        self._reached = 0

    def evaluate_if_due(self, trainer: Any, step: int, compute: float, wall_s: float) -> None:
        """Evaluate the base, or the policy after the rollout that reached a point of ``evaluation.compute``."""
        rule = self._config.evaluation
        if step == 0:
            self._evaluate(trainer, step, rule.first_samples or rule.samples, wall_s)
        elif self._reached < (reached := bisect_right(rule.compute, compute)):
            self._reached = reached
            whole = reached == len(rule.compute)
            self._evaluate(trainer, step, (rule.final_samples or rule.samples) if whole else rule.samples, wall_s)

    def _evaluate(self, trainer: Any, step: int, count: int, wall_s: float) -> None:
        import torch

        seed = self._config.run.seed  # the training's random numbers go on as if nothing had been
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(seed, "evaluation", step) % 2**32)
            texts = self._responses(trainer, count)
        asked = [row for row in self._rows for _ in range(count)]
        verdicts = self._grader.grade([(row.reference, text) for row, text in zip(asked, texts, strict=True)])
        names = [prompt_id_of(row.question, row.reference) for row in asked]
        questions = [
            Question(
                names[start],
                asked[start].data_source,
                np.array([verdict.status == "correct" for verdict in verdicts[start : start + count]]),
                tuple(verdict.extracted for verdict in verdicts[start : start + count]),
            )
            for start in range(0, len(asked), count)
        ]
        _write_samples(self._config.run.directory / "samples" / f"step-{step:06d}.parquet", names, asked, verdicts)
        self._log.log(step, evaluate(questions, seed=seed).to_json(), wall_s=wall_s)

    def _responses(self, trainer: Any, count: int) -> list[str]:
        import torch

        tokenizer, model, texts = trainer.processing_class, trainer.model, list[str]()
        asked = [[{"role": "user", "content": row.question}] for row in self._rows for _ in range(count)]
        model.eval()
        for start in range(0, len(asked), ROWS):
            inputs = tokenizer.apply_chat_template(
                asked[start : start + ROWS],
                add_generation_prompt=True,
                padding=True,
                return_tensors="pt",
                return_dict=True,
            )
            inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            with torch.no_grad():
                whole = model.generate(**inputs, generation_config=trainer.generation_config)
            texts += tokenizer.batch_decode(whole[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        model.train()
        return texts


def _write_samples(path: Path, names: Sequence[str], asked: Sequence[PromptRow], verdicts: Sequence[Verdict]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "prompt_id": names,
        "data_source": [row.data_source for row in asked],
        "extracted": [verdict.extracted for verdict in verdicts],
        "status": [verdict.status for verdict in verdicts],
    }
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)


def settings(config: Config) -> dict[str, Any]:
    """A run's configuration in TRL's words. A rollout is ``prompts`` / ``update.prompts`` optimizer steps."""
    group = config.rollout.fresh + config.replay.count
    updates = config.rollout.prompts // config.update.prompts
    return {
        "output_dir": str(config.run.directory / "trl"),
        "run_name": config.run.name,
        "seed": config.run.seed,
        "max_steps": config.run.steps * updates,
        "steps_per_generation": updates,
        "per_device_train_batch_size": config.update.prompts * group,
        "gradient_accumulation_steps": 1,
        "num_generations": group,
        "max_completion_length": config.rollout.max_tokens,
        "temperature": config.rollout.temperature,
        "learning_rate": config.update.lr,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": config.update.warmup * updates,
        "weight_decay": config.update.weight_decay,
        "max_grad_norm": config.update.clip_norm,
        "loss_type": "dapo",
        "epsilon": config.loss.clip_low,
        "epsilon_high": config.loss.clip_high,
        "delta": config.loss.dual_clip,
        "beta": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": updates,
        "disable_tqdm": True,
    }


def train(config: Config) -> None:
    """Train one phase, until its study interrupts it at the budget. Raises ``ConfigError`` for what TRL would do otherwise."""
    if other := [
        key for key in SamplingConfig.model_fields if getattr(config.evaluation, key) != getattr(config.rollout, key)
    ]:
        raise ConfigError(
            f"evaluation.{other[0]}: evaluations here sample as rollouts do; set it to rollout.{other[0]}"
        )
    kept = {*CHOICE, "idle_steps"}
    if other := [key for key, value in ReplayConfig() if key not in kept and getattr(config.replay, key) != value]:
        raise ConfigError(f"replay.{other[0]}: groups and their loss are TRL's; leave it out")
    directory = config.run.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    held_out = [row for file in config.data.evaluation for row in read_rows(file)]
    with ExitStack() as stack:
        grader = Grader(stack.enter_context(GymVerifier()))
        log = stack.enter_context(EvaluationsLog(directory / "evaluations.jsonl"))
        evaluations = Evaluations(config, held_out, grader, log)
        metrics = stack.enter_context(MetricsLog(directory / "metrics.jsonl"))
        reward, hooks = grader.correct, dict[str, Any]()
        if config.replay.count:
            client = stack.enter_context(pool_server(directory / "pool"))
            replay = TrlReplay(client, **{key: getattr(config.replay, key) for key in CHOICE})
            reward, hooks = replay.reward(grader.correct), {"rollout_func": replay.rollout}
        trainer = trainer_of(config, reward, hooks)
        ledger = Ledger()
        ledger.count(trainer)
        trainer.add_callback(_recorder(trainer, ledger, metrics, evaluations))
        trainer.train()


def trainer_of(config: Config, reward: Any, hooks: Mapping[str, Any]) -> Any:
    """TRL's trainer of a run's model, questions and settings."""
    import torch

    sys.modules.setdefault("vllm", None)  # type: ignore[arg-type]  # TRL would import it, which takes half a minute
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    rows = [
        {"prompt": [{"role": "user", "content": row.question}], "reference": row.reference}
        for part in config.data.train
        for row in read_rows(part.path)
    ]
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32),
        processing_class=PreTrainedTokenizerFast.from_pretrained(config.model.path, padding_side="left"),
        args=GRPOConfig(**settings(config)),
        train_dataset=Dataset.from_list(rows),
        reward_funcs=[reward],
        **hooks,
    )


def _recorder(trainer: Any, ledger: Ledger, metrics: MetricsLog, evaluations: Evaluations) -> Any:
    """The callback that writes a line after each rollout's updates, and evaluates."""
    from transformers import TrainerCallback

    updates = trainer.args.steps_per_generation

    class Recorder(TrainerCallback):  # type: ignore[misc]  # mypy does not follow transformers
        def on_train_begin(self, *_: object, **__: object) -> None:
            """Evaluate the base model."""
            evaluations.evaluate_if_due(trainer, 0, 0, metrics.wall_s)

        def on_step_end(self, _: Any, state: Any, *__: object, **___: object) -> None:
            """An optimizer step is done."""
            step, rest = divmod(state.global_step, updates)
            if not rest:
                tokens = {"generated": ledger.generated, "scored": ledger.scored, "trained": ledger.trained}
                evaluations.evaluate_if_due(trainer, step, ledger.compute, metrics.wall_s)
                metrics.log(step - 1, {f"compute/{name}_tokens": count for name, count in tokens.items()})

    return Recorder()


@contextmanager
def pool_server(directory: Path) -> Iterator[PoolClient]:
    """A client of a pool's server, a process over an embedded Redis in the directory."""
    words = [sys.executable, "-m", "rlep", "pool", "serve", "--embedded", str(directory), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            with PoolClient(address, pool="countdown") as client:
                yield client
        finally:
            server.terminate()


def main() -> None:
    """Conduct a study; with the words of ``rlep train``, one of its phases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", type=int, default=1, help="arms that run at a time")
    parser.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--set", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="+", type=Path)
    given = parser.parse_args()
    first, *files = given.file
    if first == Path("train"):
        train(load_config(files, given.set))
    else:
        conduct_study(first, given.parallel)


if __name__ == "__main__":
    main()
