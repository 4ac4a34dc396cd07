"""The place that shows why the reward function crashed: ``logs/verifier.err`` and an event of the run, or the terminal."""

from __future__ import annotations

from rlep.config.schema import Config
from rlep.core.types import Prompt, Verdict
from rlep.driver.crashes import ReportedCrashes, is_function
from rlep.driver.ports import Progress, Verifiers
from rlep.driver.run_directory import RunDirectory


def reported(config: Config, verifiers: Verifiers, progress: Progress, store: RunDirectory | None = None) -> Verifiers:
    """``verifiers``; the first crash of each kind of the user's own function is noted, and logged where there is a directory."""

    def report(prompt: Prompt, verdict: Verdict) -> None:
        what = f"{config.verifier.profile} crashed on a response to the question {prompt.id}"
        error, _, traceback = verdict.reason.partition("\n")
        if store is None:
            progress.note(f"{what}: {verdict.reason}")
            return
        log = store.keep_log("verifier.err", f"{what}: {error}\n{traceback}".rstrip())
        store.events.log("grading_failed", prompt_id=prompt.id, error=error, log=str(log))
        progress.note(f"{what}: {error}. Log: {log}")

    return ReportedCrashes(verifiers, report) if is_function(config.verifier.profile) else verifiers
