"""LLaMA-Factory keys without a place in a recipe, grouped by reason."""

UNREAD = {
    "the command says what is done": "do_train do_eval do_predict overwrite_output_dir",
    "each model family chooses its kernels": (
        "flash_attn enable_liger_kernel use_liger_kernel liger_kernel_config use_unsloth "
        "use_unsloth_gc use_v1_kernels use_cache upcast_layernorm upcast_lmhead_output "
        "use_reentrant_gc tf32"
    ),
    "activation_checkpoint follows from disable_gradient_checkpointing": (
        "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing "
        "activation_checkpointing_kwargs"
    ),
    "data are tokenized once and cached": (
        "overwrite_cache preprocessing_num_workers preprocessing_batch_size tokenized_path "
        "cache_dir remove_unused_columns data_seed buffer_size"
    ),
    "all sequences have one length": (
        "ignore_pad_token_for_loss train_sampling_strategy length_column_name group_by_length"
    ),
    "validation has its own settings": (
        "eval_delay eval_on_start prediction_loss_only eval_do_concat_batches "
        "eval_use_gather_object eval_accumulation_steps include_for_metrics "
        "batch_eval_metrics bf16_full_eval "
        "fp16_full_eval eval_on_each_dataset eval_num_beams compute_accuracy "
        "predict_with_generate"
    ),
    "checkpoint.interval is in steps or time": "save_on_each_node",
    "a resumed run finds its own state": (
        "resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint "
        "enable_jit_checkpoint"
    ),
    "checkpoints contain the run's state too, so that it can resume": "save_only_model",
    "checkpoint.keep_best goes by the held-out loss": "metric_for_best_model greater_is_better",
    "every step of the log is a line of metrics.jsonl": (
        "plot_loss logging_strategy logging_first_step log_on_each_node logging_nan_inf_filter "
        "include_num_input_tokens_seen include_tokens_per_second log_level log_level_replica "
        "disable_tqdm project skip_memory_metrics print_param_status debug label_names"
    ),
    "the available accelerator is used, else the CPU": (
        "use_cpu local_rank low_cpu_mem_usage auto_find_batch_size torch_empty_cache_steps "
        "quantization_device_map accelerator_config"
    ),
    "titanrun shards with FSDP2, configured in sections parallelism and comm": (
        "ddp_timeout ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
        "ddp_static_graph ddp_backend fsdp fsdp_config"
    ),
    "the tokenizer in the model's folder is used": (
        "use_fast_tokenizer split_special_tokens model_revision"
    ),
    "code in a model's folder is never run": "trust_remote_code",
    "downloads use the token of the Hub's own login": "hf_hub_token ms_hub_token om_hub_token",
    "titanrun push uploads a finished run": (
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
        "hub_revision trackio_space_id trackio_bucket_id trackio_static_space_id"
    ),
    "titanrun checkpoint export and generate have options": (
        "export_dir export_size export_device export_legacy_format export_hub_model_id "
        "infer_backend infer_dtype use_kv_cache offload_folder max_new_tokens temperature top_p "
        "top_k do_sample num_beams"
    ),
    "the quantized base is nf4 for 4 bits": (
        "quantization_method quantization_type double_quantization"
    ),
    "the reference is the model at the start of the run": "ref_model_quantization_bit",
    "it belongs to a stage or method that is off": (
        "ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards "
        "reward_model_adapters reward_model_quantization_bit reward_model_type "
        "freeze_trainable_layers freeze_trainable_modules freeze_extra_modules oft_rank "
        "oft_block_size oft_target module_dropout galore_target galore_rank "
        "galore_update_interval galore_scale galore_proj_type galore_layerwise apollo_target "
        "apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type "
        "apollo_layerwise apollo_scale_type apollo_scale_front badam_mode badam_start_block "
        "badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode "
        "badam_verbose swanlab_project swanlab_workspace swanlab_run_name swanlab_mode "
        "swanlab_api_key swanlab_logdir swanlab_lark_webhook_url swanlab_lark_secret pissa_iter "
        "pissa_convert loraplus_lr_embedding init_special_tokens media_dir fp8_backend "
        "fp8_enable_fsdp_float8_all_gather"
    ),
    "images, videos and sounds are not read": (
        "image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches "
        "video_max_pixels video_min_pixels video_fps video_maxlen use_audio_in_video "
        "audio_sampling_rate freeze_vision_tower freeze_multi_modal_projector "
        "freeze_language_model"
    ),
    "the loader of batches has its own settings": (
        "dataloader_drop_last dataloader_pin_memory dataloader_persistent_workers "
        "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order"
    ),
}
REFUSED = {
    "mixtures are written as training.dataset: {name: mixture, ...}": (
        "mix_strategy interleave_probs"
    ),
    "titanrun shards with FSDP2: see section parallelism": "parallelism_config",
    "use the converter float8_linear": "fp8",
    "set compile.enable": "torch_compile torch_compile_backend torch_compile_mode",
    "merge earlier adapters first: titanrun checkpoint export --merge": (
        "adapter_name_or_path adapter_folder create_new_adapter"
    ),
    "add tokens to the tokenizer and the model's folder first": (
        "resize_vocab add_tokens add_special_tokens new_special_tokens_config"
    ),
    "the reference is the model at the start of the run": "ref_model ref_model_adapters",
    "no noise is added to embeddings": "neftune_noise_alpha",
    "titanrun has no such method": (
        "additional_target pissa_init pref_bco_weight ld_alpha use_galore use_apollo use_badam "
        "use_llama_pro use_adam_mini use_muon use_dft_loss use_swanlab reward_model shift_attn "
        "mixture_of_depths moe_aux_loss_coef label_smoothing_factor "
        "disable_shuffling early_stopping_steps freeze_extra_layers export_quantization_bit "
        "export_quantization_dataset export_quantization_nsamples export_quantization_maxlen "
        "train_from_scratch rope_scaling tool_format optim_args optim_target_modules "
        "lr_scheduler_kwargs average_tokens_across_devices full_determinism"
    ),
}
