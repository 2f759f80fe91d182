"""Axolotl keys without a place in a recipe, grouped by reason."""

UNREAD = {
    "each model family chooses its kernels": (
        "xformers_attention sdp_attention flex_attention flex_attn_compile_kwargs flash_attention "
        "flash_attn_cross_entropy flash_attn_fuse_mlp flash_optimum flash_attn_rms_norm "
        "sage_attention eager_attention attn_implementation gemma4_hybrid_attn_impl "
        "large_head_attention flash_attn_d512 sdpa_varlen fused_attn_kernel "
        "experts_implementation lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
        "lora_embedding_kernel chunked_cross_entropy chunked_cross_entropy_num_chunks "
        "cut_cross_entropy use_kernels tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp "
        "dpo_use_liger_kernel dpo_padding_free dpo_use_logits_to_keep liger_rope liger_rms_norm "
        "liger_rms_norm_gated liger_layer_norm liger_swiglu liger_glu_activation "
        "liger_cross_entropy liger_fused_linear_cross_entropy "
        "liger_kernel_impl"
    ),
    "all sequences have one length": (
        "pad_to_sequence_len pad_to_multiple_of group_by_length multipack_real_batches "
        "batch_flattening max_packed_sequence_len"
    ),
    "conversations are packed into sequences once, before the run": (
        "sample_packing_group_size sample_packing_bin_size sample_packing_sequentially "
        "sample_packing_mp_start_method sample_packing_eff_est pretrain_multipack_buffer_size "
        "pretrain_multipack_attn pretraining_sample_concatenation streaming "
        "streaming_multipack_buffer_size"
    ),
    "data are tokenized once and cached": (
        "skip_prepare_dataset num_dataset_shards_to_save dataset_processes dataset_num_proc "
        "dataset_keep_in_memory is_preprocess preprocess_iterable shuffle_before_merging_datasets "
        "remove_unused_columns dataloader_drop_last total_num_tokens total_supervised_tokens"
    ),
    "titanrun push uploads a finished run": "hub_model_id hub_strategy hub_revision",
    "validation has its own settings": ("eval_table_size eval_max_new_tokens"),
    "a resumed run finds its own state": ("auto_resume_from_checkpoints"),
    "checkpoints contain the run's state too, so that it can resume": ("save_only_model"),
    "weights are written as safetensors": ("save_safetensors"),
    "config.json in the model's folder defines it": (
        "base_model_config cls_model_config type_of_model "
        "is_falcon_derived_model is_llama_derived_model is_mistral_derived_model "
        "is_qwen_derived_model"
    ),
    "the tokenizer in the model's folder is used": (
        "tokenizer_config tokenizer_use_fast tokenizer_legacy tokenizer_type "
        "tokenizer_save_jinja_files hf_use_auth_token"
    ),
    "code in a model's folder is never run": ("trust_remote_code"),
    "the available accelerator is used, else the CPU": (
        "device device_map world_size local_rank max_memory gpu_memory_limit low_cpu_mem_usage "
        "experimental_skip_move_to_device lora_on_cpu qlora_sharded_model_loading torchdistx_path "
        "accelerator_config"
    ),
    "titanrun shards with FSDP2, configured in sections parallelism and comm": (
        "ddp ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters fsdp "
        "fsdp_version fsdp_final_state_dict_type heads_k_stride ring_attn_func"
    ),
    "titanrun has its own setting: training.gc_freq": (
        "gc_steps torch_empty_cache_steps gc_collect_steps"
    ),
    "torch's default applies to fp32 matrix products": ("tf32"),
    "throughput is always logged": ("include_tokens_per_second include_tkps"),
    "section guard handles NaN and infinite losses": (
        "loss_watchdog_threshold loss_watchdog_patience"
    ),
    "trackers are listed in metrics.trackers": (
        "use_wandb use_mlflow use_trackio wandb_run_id wandb_watch wandb_log_model "
        "mlflow_run_name hf_mlflow_log_artifacts trackio_run_name trackio_space_id"
    ),
    "section profiling has its own settings": ("profiler_steps profiler_steps_start"),
    "metrics.samples has its own settings": (
        "generate_samples num_generation_samples generation_max_new_tokens generation_temperature "
        "generation_top_p generation_top_k generation_prompt_ratio generation_do_sample"
    ),
    "adapters are merged by titanrun checkpoint export": ("merge_lora merge_method"),
    "a demo page of the model is not part of training": (
        "gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens "
        "gradio_temperature"
    ),
    "the recipe is the argument of every command": ("axolotl_config_path strict"),
    "adapters are in fp32 on a base in bf16": ("peft_autocast_adapter_dtype"),
    "the compiler has its own defaults": ("torch_compile_mode torch_compile_options"),
    "recomputation has one implementation": ("gradient_checkpointing_kwargs"),
}
REFUSED = {
    "titanrun's reinforcement learning has its own section rl": (
        "trl vllm ebft reward_model process_reward_model center_rewards_coefficient num_labels"
    ),
    "no loss weights tokens by their probability": "liger_use_token_scaling",
    "losses of preferences do not have it": (
        "dpo_use_weighting dpo_loss_weights dpo_norm_loss rpo_alpha "
        "precompute_ref_log_probs "
        "dpo_generate_during_eval"
    ),
    "beside adapters all weights are frozen: add output to target_modules of the converter to "
    "train an adapter of the output; embeddings have none": "lora_modules_to_save",
    "adapters are lora and qlora, without these variants": (
        "lora_fan_in_fan_out lora_target_parameters lora_rank_pattern "
        "lora_alpha_pattern peft_layers_to_transform peft_layers_pattern peft "
        "peft_layer_replication peft_init_lora_weights "
        "peft_trainable_token_indices peft_ensure_weight_tying "
        "loraplus_lr_embedding relora relora_prune_ratio relora_prune_method relora_cpu_offload "
        "gptq bnb_config_kwargs"
    ),
    "adapters of another run cannot be loaded: merge them into the weights first": (
        "lora_model_dir"
    ),
    "an unfinished axolotl run cannot be resumed: start from its weights": (
        "resume_from_checkpoint"
    ),
    "vocabulary and tokens come from the model's folder": (
        "tokens added_tokens_overrides resize_token_embeddings_to_32x "
        "mean_resizing_embeddings shrink_embeddings embeddings_skip_upcast fix_untrained_tokens "
        "tokenizer_use_mistral_common"
    ),
    "weights are loaded from the folder unchanged": (
        "reinit_weights overrides_of_model_config overrides_of_model_kwargs rope_scaling "
        "llama4_linearized_experts model_quantization_config model_quantization_config_kwargs "
        "use_onebitllms"
    ),
    "recipes import nothing: an installed plug-in, listed in plugins, adds components": (
        "trainer_cls"
    ),
    "quantization in training is the converter qat or float8, with its own settings": (
        "qat quantization fp8 fp8_config fp8_enable_fsdp_float8_all_gather quantize_moe_experts"
    ),
    "activations and layers stay on the device": (
        "activation_offloading layer_offloading ple_cpu_offload"
    ),
    "activation_checkpoint selects the layers to recompute": ("selective_checkpointing"),
    "all weights or all adapters are trained": (
        "freeze_mm_modules unfrozen_parameters lisa_n_layers lisa_step_interval "
        "lisa_layers_attribute optim_target_modules"
    ),
    "optimizer.param_groups sets learning rates of parameters": (
        "embedding_lr embedding_lr_scale lr_groups"
    ),
    "each optimizer and schedule has its own fields": (
        "optim_args lr_scheduler_kwargs lr_quadratic_warmup cosine_constant_lr_ratio "
        "lr_div_factor jagged_restart_steps jagged_restart_warmup_steps "
        "jagged_restart_anneal_steps adam_epsilon2 adam_beta3"
    ),
    "titanrun has no such optimizer": (
        "dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of qgalore_rank "
        "qgalore_update_proj_gap qgalore_scale qgalore_proj_type qgalore_proj_quant "
        "qgalore_proj_bits qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj "
        "qgalore_queue_size"
    ),
    "micro_batch_size sets the sequences per forward pass": ("batch_size auto_find_batch_size"),
    "all tokens have equal weight": "use_eaft eaft_alpha eaft_k",
    "no noise is added to embeddings": "neftune_noise_alpha noisy_embedding_alpha",
    "attention has the usual softmax": (
        "scaling_softmax scaling_softmax_factor scaling_softmax_bias"
    ),
    "positions follow the text": (
        "use_pose pose_split_on_token_ids pose_max_context_len pose_num_chunks s2_attention"
    ),
    "sequences come in a seeded order or the given one": ("curriculum_sampling"),
    "prepare the files": (
        "dataset_exact_deduplication min_sample_len max_prompt_len dataset_shard_num "
        "dataset_shard_idx"
    ),
    "continued pretraining has its own datasets: text or hub": ("pretraining_dataset"),
    "add it to the chat template or the files": ("chat_template_kwargs default_system_message"),
    "norms have the dtype of the weights": ("fp32_norms fp32_norm_classes"),
    "titanrun shards with FSDP2: see section parallelism": "deepcompile",
    "training.steps or epochs end a run; checkpoint.keep_best keeps the best": (
        "early_stopping_patience metric_for_best_model greater_is_better"
    ),
    "titanrun eval evaluates checkpoints": (
        "do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split"
    ),
    "datasets are not uploaded to the Hugging Face Hub": "push_dataset_to_hub",
    "signals and titanrun commands request checkpoints": ("dynamic_checkpoint"),
    "titanrun has no such tracker": (
        "use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key "
        "comet_mode comet_online comet_experiment_config use_otel_metrics otel_metrics_host "
        "otel_metrics_port"
    ),
    "titanrun launch runs on several machines": (
        "use_ray ray_run_name ray_num_workers resources_per_worker"
    ),
    "titanrun has no vision-language models": (
        "processor_type processor_kwargs image_size image_resize_algorithm role_boundaries"
    ),
}
