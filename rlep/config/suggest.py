"""Keys that an unknown one may have meant: the field's synonyms, else the most similar ones."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

MOST = 3
"""Keys that are suggested."""
NEAR = 0.8
"""Least similarity of a suggestion (``difflib``), of 1."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("update.lr",),
    "batch_size": ("rollout.prompts", "update.prompts"),
    "train_batch_size": ("rollout.prompts",),
    "rollout_batch_size": ("rollout.prompts",),
    "ppo_mini_batch_size": ("update.prompts",),
    "mini_batch_size": ("update.prompts",),
    "per_device_train_batch_size": ("update.prompts", "learner.micro_batch_tokens"),
    "ppo_epochs": ("update.epochs",),
    "num_iterations": ("update.epochs",),
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
    "prompt_key": ("data.question",),
    "answer_key": ("data.answer",),
    "model_revision": ("model.revision",),
    "dataset": ("data.train",),
    "dataset_name": ("data.train",),
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
    "num_train_epochs": ("run.steps",),
    "total_epochs": ("run.steps",),
    "eval_steps": ("evaluation.every",),
    "test_freq": ("evaluation.every",),
    "save_steps": ("checkpoint.every",),
    "save_freq": ("checkpoint.every",),
    "save_total_limit": ("checkpoint.keep",),
    "beta": ("loss.kl_coef",),
    "kl_loss_coef": ("loss.kl_coef",),
    "use_kl_in_reward": ("loss.kl_estimator",),
    "ref_model_sync_steps": ("loss.kl_reset",),
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
    "tis_cap": ("loss.correction",),
    "is_cap": ("replay.correction",),
    "rollout_is": ("loss.correction",),
    "rollout_rs": ("loss.correction",),
    "vllm_importance_sampling_cap": ("loss.correction",),
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
    section, _, last = path.rpartition(".")
    if last in SYNONYMS:
        return list(SYNONYMS[last])
    names = get_close_matches(last, {key.rpartition(".")[2] for key in keys}, n=1, cutoff=NEAR)
    same = [key for key in keys if key.rpartition(".")[2] in names]
    if not section:  # a name alone says nothing about the section, and may be a key without its dot
        return (same or get_close_matches(path, keys, n=1, cutoff=NEAR))[:MOST]
    return get_close_matches(path, same, n=1, cutoff=0.0)
