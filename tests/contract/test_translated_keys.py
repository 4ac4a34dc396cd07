"""The tables of *Coming from verl or TRL*: nothing that a published recipe sets is missing, and our keys are there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.contract.test_documents import CODE, DOCS, is_key

VERL = """
data: train_files val_files prompt_key max_prompt_length max_response_length filter_overlong_prompts truncation train_batch_size
 apply_chat_template_kwargs.enable_thinking gen_batch_size shuffle image_key return_raw_chat
actor_rollout_ref: nccl_timeout hybrid_engine
actor_rollout_ref.model: path lora_rank lora_alpha lora_adapter_path override_config.max_position_embeddings use_fused_kernels
 enable_gradient_checkpointing use_remove_padding
actor_rollout_ref.rollout: name n temperature top_p top_k ignore_eos calculate_log_probs tensor_model_parallel_size dtype
 gpu_memory_utilization max_num_batched_tokens max_num_seqs enforce_eager free_cache_engine enable_chunked_prefill layered_summon
 enable_prefix_caching load_format prompt_length response_length engine_kwargs.vllm.compilation_config.cudagraph_mode
 checkpoint_engine.update_weights_bucket_megabytes val_kwargs.n val_kwargs.temperature val_kwargs.top_p val_kwargs.top_k
 val_kwargs.do_sample log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu log_prob_micro_batch_size_per_gpu
actor_rollout_ref.actor: strategy ppo_mini_batch_size ppo_epochs use_dynamic_bsz ppo_max_token_len_per_gpu use_torch_compile
 ppo_micro_batch_size_per_gpu clip_ratio_low clip_ratio_high clip_ratio_c loss_agg_mode policy_loss.loss_mode use_kl_loss
 kl_loss_coef kl_loss_type entropy_coeff optim.lr optim.lr_warmup_steps optim.weight_decay optim.optimizer grad_clip
 fsdp_config.param_offload fsdp_config.optimizer_offload fsdp_config.offload_policy fsdp_config.fsdp_size
 fsdp_config.reshard_after_forward fsdp_config.forward_prefetch fsdp_config.model_dtype ulysses_sequence_parallel_size
 entropy_from_logits_with_chunking entropy_checkpointing
actor_rollout_ref.ref: strategy use_torch_compile fsdp_config.param_offload log_prob_use_dynamic_bsz
 log_prob_max_token_len_per_gpu
algorithm: adv_estimator norm_adv_by_std_in_grpo use_kl_in_reward kl_ctrl.kl_coef kl_penalty gamma filter_groups.enable
 filter_groups.max_num_gen_batches filter_groups.metric rollout_correction.rollout_is rollout_correction.rollout_is_threshold
 rollout_correction.rollout_is_batch_normalize rollout_correction.rollout_rs rollout_correction.rollout_rs_threshold
 rollout_correction.bypass_mode
reward: custom_reward_function.path custom_reward_function.name reward_manager.name reward_kwargs.max_resp_len num_workers
 reward_kwargs.overlong_buffer_cfg.enable reward_kwargs.overlong_buffer_cfg.len reward_kwargs.overlong_buffer_cfg.penalty_factor
 reward_model.model_path sandbox_fusion.url
trainer: nnodes n_gpus_per_node total_epochs total_training_steps test_freq save_freq max_actor_ckpt_to_keep default_local_dir
 experiment_name project_name logger log_val_generations resume_mode resume_from_path val_before_train balance_batch critic_warmup
"""
"""Keys of the text recipes of verl's ``examples`` and of DAPO's in verl-recipe (FSDP and vLLM), August 2026."""

TRL = """
model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32 remove_unused_columns
num_generations num_generations_eval max_completion_length ds3_gather_for_generation shuffle_dataset pad_to_multiple_of
generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs
repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode
vllm_structured_outputs_regex vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size beta num_iterations epsilon delta epsilon_high
sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type mask_truncated_completions
sync_ref_model ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile entropy_coef use_adaptive_entropy
entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target max_tool_calling_iterations
vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max
vllm_importance_sampling_clip_min off_policy_mask_threshold use_bias_correction_kl log_completions num_completions_to_print
log_unique_prompts use_transformers_continuous_batching transformers_continuous_batching_config learning_rate logging_steps
gradient_checkpointing bf16 lr_scheduler_kwargs use_liger_kernel torch_empty_cache_steps per_device_train_batch_size
gradient_accumulation_steps lr_scheduler_type warmup_steps max_grad_norm max_steps num_train_epochs eval_steps save_steps
save_total_limit output_dir run_name report_to seed push_to_hub optim weight_decay adam_beta1 adam_beta2
"""
"""Fields of ``GRPOConfig`` of TRL 1.16, and of its base class what TRL's examples set."""


@dataclass(frozen=True)
class Row:
    """One row of a table of the page."""

    theirs: str
    ours: str
    note: str


def rows(table: str) -> list[Row]:
    """The rows below a heading of the page."""
    text = (DOCS / "how-to" / "come-from-verl-or-trl.md").read_text()
    section = text.partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [Row(*(cell.strip(" |") for cell in (*cells, "", "")[:3])) for cells in lines]


def spelt_out(cell: str) -> list[str]:
    """The keys of a cell; a short name lies beside the key before it: `loss.kl_coef`, `kl_estimator`."""
    names: list[str] = []
    for code in CODE.findall(cell):
        prefix = names[-1].rpartition(".")[0] if names and "." not in code else ""
        names.append(f"{prefix}.{code}" if prefix else code)
    return names


def wanted(verl: str) -> list[str]:
    lines = [line.partition(": ") for line in verl.strip().replace("\n ", " ").splitlines()]
    return [f"{prefix}.{name}" for prefix, _, names in lines for name in names.split()]


def test_every_key_of_verls_recipes_has_a_row() -> None:
    named = {name.removeprefix("actor_rollout_ref.") for row in rows("verl") for name in spelt_out(row.theirs)}
    noted = {code for row in rows("verl") for code in CODE.findall(row.note)}

    def is_named(key: str) -> bool:
        parts = key.removeprefix("actor_rollout_ref.").split(".")
        whole = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        return bool(whole & named) or parts[-1] in noted or ".".join(parts) in noted

    assert [key for key in wanted(VERL) if not is_named(key)] == []


def test_every_key_of_trls_configuration_has_a_row() -> None:
    named = {
        word for row in rows("TRL") for code in CODE.findall(row.theirs + row.note) for word in re.findall(r"\w+", code)
    }
    assert sorted(set(TRL.split()) - named) == []


@pytest.mark.parametrize("table", ["verl", "TRL"])
def test_a_row_names_our_keys_or_says_what_holds_without_one(table: str) -> None:
    assert len(rows(table)) > 40
    for row in rows(table):
        if row.ours == "–":
            assert row.note, row.theirs
        else:
            assert [key for key in spelt_out(row.ours) if not is_key(key)] == [], row.theirs


def test_short_names_lie_beside_the_key_before_them() -> None:
    assert spelt_out("`loss.kl_coef`, `kl_estimator`, `update.lr`") == [
        "loss.kl_coef",
        "loss.kl_estimator",
        "update.lr",
    ]
    assert not is_key("loss.kl_estimate")
