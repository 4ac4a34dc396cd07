"""Which keys an unknown one may have meant: the field's synonyms, else the smallest edit distance."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 3
"""Keys that are suggested."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("update.lr",),
    "batch_size": ("rollout.prompts", "update.prompts"),
    "train_batch_size": ("rollout.prompts",),
    "rollout_batch_size": ("rollout.prompts",),
    "ppo_mini_batch_size": ("update.prompts",),
    "mini_batch_size": ("update.prompts",),
    "per_device_train_batch_size": ("update.prompts", "learner.micro_batch_tokens"),
    "ppo_max_token_len_per_gpu": ("learner.micro_batch_tokens",),
    "n": ("rollout.fresh",),
    "num_generations": ("rollout.fresh",),
    "group_size": ("rollout.fresh",),
    "replay_num": ("replay.count",),
    "max_new_tokens": ("rollout.max_tokens",),
    "max_completion_length": ("rollout.max_tokens",),
    "max_response_length": ("rollout.max_tokens",),
    "response_length": ("rollout.max_tokens",),
    "max_prompt_length": ("data.max_prompt_tokens",),
    "train_files": ("data.train",),
    "train_file": ("data.train",),
    "val_files": ("data.evaluation",),
    "eval_file": ("data.evaluation",),
    "model_name_or_path": ("model.path",),
    "system": ("model.system_prompt",),
    "output_dir": ("run.directory",),
    "run_name": ("run.name",),
    "experiment_name": ("run.name",),
    "project_name": ("tracking.project",),
    "report_to": ("tracking.sinks",),
    "logger": ("tracking.sinks",),
    "max_steps": ("run.steps",),
    "total_training_steps": ("run.steps",),
    "epochs": ("run.steps",),
    "num_train_epochs": ("run.steps",),
    "total_epochs": ("run.steps",),
    "eval_steps": ("evaluation.every",),
    "test_freq": ("evaluation.every",),
    "save_steps": ("checkpoint.every",),
    "save_freq": ("checkpoint.every",),
    "save_total_limit": ("checkpoint.keep",),
    "beta": ("loss.kl_coef",),
    "kl_loss_coef": ("loss.kl_coef",),
    "entropy_coeff": ("loss.entropy_coef",),
    "epsilon": ("loss.clip_low", "loss.clip_high"),
    "clip_range": ("loss.clip_low", "loss.clip_high"),
    "cliprange": ("loss.clip_low", "loss.clip_high"),
    "clip_ratio": ("loss.clip_low", "loss.clip_high"),
    "clip_ratio_low": ("loss.clip_low",),
    "epsilon_high": ("loss.clip_high",),
    "clip_ratio_high": ("loss.clip_high",),
    "clip_ratio_c": ("loss.dual_clip",),
    "loss_agg_mode": ("loss.aggregation",),
    "loss_type": ("loss.aggregation", "loss.surrogate"),
    "importance_sampling_level": ("loss.level",),
    "adv_estimator": ("advantage.estimator",),
    "scale_rewards": ("advantage.scale",),
    "mask_truncated_completions": ("reward.mask_truncated",),
    "reward_funcs": ("verifier.profile",),
    "reward_fn": ("verifier.profile",),
    "max_grad_norm": ("update.clip_norm",),
    "grad_clip": ("update.clip_norm",),
    "warmup_steps": ("update.warmup",),
    "lr_warmup_steps": ("update.warmup",),
    "lr_scheduler_type": ("update.schedule",),
    "adam_beta1": ("update.betas",),
    "adam_beta2": ("update.betas",),
    "gradient_checkpointing": ("learner.activation_checkpointing",),
    "enable_gradient_checkpointing": ("learner.activation_checkpointing",),
    "param_offload": ("learner.cpu_offload",),
    "optimizer_offload": ("learner.cpu_offload",),
    "gpu_memory_utilization": ("generator.memory_utilization",),
    "tensor_parallel_size": ("generator.tensor_parallel",),
    "tensor_model_parallel_size": ("generator.tensor_parallel",),
    "max_num_seqs": ("generator.max_sequences",),
    "max_num_batched_tokens": ("generator.max_batched_tokens",),
    "enforce_eager": ("generator.eager",),
    "n_gpus_per_node": ("generator.gpus", "learner.gpus"),
    "num_gpus": ("generator.gpus", "learner.gpus"),
    "num_cpus": ("cluster.cpus",),
}
"""Last name of a key elsewhere (verl, TRL, vLLM, everyday speech) → the keys here that mean it."""


def suggestions(path: str, keys: Sequence[str]) -> list[str]:
    """The dotted ``keys`` that the unknown ``path`` may have meant, nearest first; none where nothing is near."""
    path = path.casefold().replace("-", "_")
    last = path.rpartition(".")[2]
    if last in SYNONYMS:
        return list(SYNONYMS[last])
    ranked: dict[tuple[int, int], list[str]] = {}
    for key in keys:
        by_name, by_path = distance(last, key.rpartition(".")[2]), distance(path, key)
        most = min(len(path) // 4, len(last) // 2)  # a right section alone is not near
        near = [d for d, limit in ((by_name, len(last) // 3), (by_path, most)) if d <= limit]
        if near:
            # A name without a section says nothing about the section.
            ranked.setdefault((min(near), by_path if "." in path else 0), []).append(key)
    return ranked[min(ranked)][:MOST] if ranked else []


def distance(left: str, right: str) -> int:
    """Levenshtein distance: the fewest insertions, deletions and replacements of one character."""
    row = list(range(len(right) + 1))
    for count, a in enumerate(left, start=1):
        corner, row[0] = row[0], count
        for column, b in enumerate(right, start=1):
            corner, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, corner + (a != b))
    return row[-1]
