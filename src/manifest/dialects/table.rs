//! The rows: settings in the order of a manifest, then what needs no setting, then what gptrain does
//! not have.

use super::Conversion::{Choice, Count, Custom, Flag, Number, Opposite};
use super::{Conversion, Meaning, Row};

const fn converted(key: &'static str, conversion: Conversion) -> Row {
    Row::new(Meaning::Setting { key, value: None }, conversion)
}

const fn count(key: &'static str) -> Row {
    converted(key, Count)
}

const fn number(key: &'static str) -> Row {
    converted(key, Number)
}

const fn flag(key: &'static str) -> Row {
    converted(key, Flag)
}

const fn choice(key: &'static str, words: &'static [(&'static str, &'static str)]) -> Row {
    converted(key, Choice(words))
}

/// A setting whose names are not converted one for one.
const fn key(key: &'static str) -> Row {
    converted(key, Custom)
}

/// A flag, which sets the key to a value.
const fn value(key: &'static str, value: &'static str) -> Row {
    Row::new(Meaning::Setting { key, value: Some(value) }, Flag)
}

const fn unneeded(why: &'static str) -> Row {
    Row::new(Meaning::Unneeded(why), Custom)
}

const fn lacking(why: &'static str) -> Row {
    Row::new(Meaning::Lacking(why), Custom)
}

const fn only(value: &'static str, why: &'static str) -> Row {
    Row::new(Meaning::Only { value, why }, Custom)
}

const fn noted(value: &'static str, why: &'static str) -> Row {
    Row::new(Meaning::Noted { value, why }, Custom)
}

/// Unit of rows whose names count steps.
pub const SAMPLES: &str = "steps × batch.global";

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    key("name").megatron("wandb_exp_name").hf("run_name").nanogpt("wandb_run_name")
        .titan("job.description"),
    key("model.family").config("model_type").litgpt("model_name").titan("model.name"),
    count("model.layers").megatron("num_layers").llama("num_hidden_layers")
        .gpt2("n_layer num_hidden_layers").bloom("n_layer num_hidden_layers").nanogpt("n_layer")
        .litgpt("model_config.n_layer").titan("model.flavor; a named size").llmc("; `-e d12`")
        .short("n_layers layers depth"),
    count("model.hidden").megatron("hidden_size").llama("hidden_size").gpt2("n_embd hidden_size")
        .bloom("hidden_size n_embed").nanogpt("n_embd").litgpt("model_config.n_embd").llmc("; `-e d12`")
        .short("d_model hidden dim width"),
    count("model.heads").megatron("num_attention_heads").llama("num_attention_heads")
        .gpt2("n_head num_attention_heads").bloom("n_head num_attention_heads").nanogpt("n_head")
        .litgpt("model_config.n_head").titan("n_heads; of the flavor").olmo("model.block.*.n_heads")
        .llmc("; `-e d12`").short("n_heads num_heads heads"),
    count("model.kv_heads").megatron("num_query_groups num_key_value_heads").llama("num_key_value_heads")
        .litgpt("model_config.n_query_groups").short("n_kv_heads group_query_attention"),
    count("model.head_dim").megatron("kv_channels").llama("head_dim").litgpt("model_config.head_size"),
    count("model.ffn_hidden").megatron("ffn_hidden_size").llama("intermediate_size").gpt2("n_inner")
        .litgpt("model_config.intermediate_size"),
    value("model.ffn", "swiglu").megatron("swiglu"),
    choice("model.ffn", &[("silu", "swiglu")]).llama("hidden_act"),
    key("model.ffn").litgpt("model_config.mlp_class_name").short("activation"),
    choice("model.gelu", &[("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh"), ("gelu", "exact")])
        .gpt2("activation_function"),
    key("model.gelu").megatron("bias_gelu_fusion openai_gelu; both: `tanh`"),
    count("model.vocab").megatron("vocab_size").config("vocab_size").litgpt("model_config.vocab_size"),
    count("model.vocab_multiple").megatron("make_vocab_size_divisible_by")
        .litgpt("model_config.padding_multiple"),
    key("model.vocab_multiple").megatron("padded_vocab_size pad_vocab_size_to")
        .litgpt("model_config.padded_vocab_size").unit("a divisor of the padded rows"),
    count("model.seq_len").megatron("seq_length encoder_seq_length").bloom("seq_length")
        .hf("block_size max_seq_length; of `run_clm.py`").nanogpt("block_size")
        .litgpt("train.max_seq_length model_config.block_size").titan("training.seq_len")
        .olmo("train_module.max_sequence_length dataset.sequence_length").llmc("-t")
        .short("sequence_length context_length ctx_len"),
    count("model.positions").megatron("max_position_embeddings").llama("max_position_embeddings")
        .gpt2("n_positions max_position_embeddings").llmc("; 1,024"),
    key("model.position").megatron("position_embedding_type"),
    number("model.position.rope.theta").megatron("rotary_base rope_theta").llama("rope_theta")
        .litgpt("model_config.rope_base")
        .titan("rope_theta; of the flavor, whose rope_scaling is model.position.rope.scaling")
        .olmo("model.block.*.rope.theta"),
    key("model.position.rope.scaling").llama("rope_scaling").litgpt("model_config.rope_adjustments")
        .olmo("model.block.*.rope.scaling"),
    key("model.position.rope.scaling.llama3").megatron("use_rope_scaling"),
    number("model.position.rope.scaling.llama3.factor").megatron("rope_scaling_factor"),
    count("model.window").megatron("window_size").llama("sliding_window")
        .litgpt("model_config.sliding_window_size").olmo("model.block.*.sliding_window"),
    key("model.pattern").llama("layer_types").olmo("model.block_pattern"),
    choice("model.norm", &[("RMSNorm", "rms"), ("LayerNorm", "layer"), ("rmsnorm", "rms"),
        ("layernorm", "layer")]).megatron("normalization"),
    key("model.norm").litgpt("model_config.norm_class_name"),
    number("model.layernorm_eps").megatron("norm_epsilon layernorm_epsilon").llama("rms_norm_eps")
        .gpt2("layer_norm_epsilon").bloom("layer_norm_epsilon").litgpt("model_config.norm_eps")
        .titan("norm_eps; of the flavor").olmo("model.block.layer_norm.eps"),
    flag("model.qk_norm").megatron("qk_layernorm").litgpt("model_config.norm_qk")
        .olmo("model.block.*.qk_norm"),
    flag("model.embedding_layernorm").megatron("embed_layernorm"),
    value("model.bias", "qkv").megatron("add_qkv_bias"),
    value("model.bias", "attention").llama("attention_bias"),
    value("model.bias", "all").llama("mlp_bias"),
    key("model.bias").megatron("add_bias_linear disable_bias_linear").nanogpt("bias")
        .litgpt("model_config.bias"),
    converted("model.tied_head", Opposite).megatron("untie_embeddings_and_output_weights; the opposite"),
    flag("model.tied_head").config("tie_word_embeddings").litgpt("train.tie_embeddings")
        .llmc("; always tied"),
    number("model.logit_softcap").hf("final_logit_softcapping")
        .litgpt("model_config.final_logit_softcapping"),
    key("model.dropout").nanogpt("dropout"),
    number("model.dropout.residual").megatron("hidden_dropout; also `embedding`").gpt2("resid_pdrop")
        .bloom("hidden_dropout"),
    number("model.dropout.attention").megatron("attention_dropout").llama("attention_dropout")
        .gpt2("attn_pdrop").bloom("attention_dropout"),
    number("model.dropout.embedding").gpt2("embd_pdrop"),
    number("model.init.std").megatron("init_method_std").config("initializer_range"),
    value("precision", "bf16").megatron("bf16").hf("bf16 bf16.enabled").short("bfloat16"),
    value("precision", "fp16").megatron("fp16").hf("fp16 fp16.enabled").short("float16"),
    value("precision", "tf32").hf("tf32").llmc("-f"),
    value("precision", "fp8").megatron("fp8 fp8_format fp8_e4m3 fp8_hybrid")
        .titan("float8.enable_float8_linear"),
    key("precision").megatron("params_dtype").config("dtype torch_dtype").nanogpt("dtype")
        .litgpt("precision").titan("training.mixed_precision_param").llmc("; built in (`PRECISION`)"),
    choice("precision", &[("float32", "f32"), ("float16", "fp16"), ("bfloat16", "bf16")])
        .olmo("train_module.dp_config.param_dtype train_module.autocast_precision"),
    number("loss_scale").megatron("loss_scale").hf("fp16.loss_scale"),
    number("loss_scale.initial").megatron("initial_loss_scale"),
    key("loss_scale.initial").hf("initial_scale_power; as a power of 2"),
    number("loss_scale.min").megatron("min_loss_scale").hf("fp16.min_loss_scale"),
    count("loss_scale.window").megatron("loss_scale_window").hf("fp16.loss_scale_window"),
    count("loss_scale.hysteresis").megatron("hysteresis").hf("fp16.hysteresis"),
    key("data.train").megatron("data_path train_data_path").hf("train_dataset dataset_name")
        .nanogpt("dataset")
        .litgpt("data").titan("training.dataset_path training.dataset").llmc("-i")
        .short("train_data path data_dir train_file"),
    key("data.split").megatron("split").hf("train_test_split validation_split_percentage"),
    key("data.valid").megatron("valid_data_path").hf("eval_dataset")
        .titan("validation.dataset_path validation.dataset").llmc("-j")
        .short("val_data valid_data validation_file"),
    key("data.tokenizer")
        .megatron("tokenizer_model vocab_file merge_file tokenizer_type tokenizer_name_or_path")
        .hf("tokenizer_name").litgpt("tokenizer_dir").titan("model.tokenizer_path model.hf_assets_path"),
    count("data.seed").hf("data_seed").olmo("data_loader.seed"),
    key("data.cache").megatron("data_cache_path"),
    flag("data.eod.mask_loss").megatron("eod_mask_loss"),
    flag("data.eod.reset_positions").megatron("reset_position_ids"),
    flag("data.eod.reset_attention").megatron("reset_attention_mask"),
    key("data.inter_document_masking").megatron("dataloader_inter_document_masking"),
    count("batch.micro").megatron("micro_batch_size")
        .hf("per_device_train_batch_size train_micro_batch_size_per_gpu").nanogpt("batch_size")
        .litgpt("train.micro_batch_size").titan("training.local_batch_size")
        .olmo("train_module.rank_microbatch_size; in tokens").llmc("-b"),
    count("batch.global").megatron("global_batch_size").hf("train_batch_size")
        .litgpt("train.global_batch_size").titan("training.global_batch_size")
        .olmo("data_loader.global_batch_size; in tokens").llmc("-d; in tokens"),
    key("batch.global").hf("gradient_accumulation_steps").nanogpt("gradient_accumulation_steps")
        .unit("batch.micro × accumulation × topology.data"),
    key("batch.ramp_up").megatron("rampup_batch_size"),
    key("batch.length_ramp_up").megatron("curriculum_learning curriculum_learning_legacy")
        .hf("curriculum_learning"),
    number("lr.peak").megatron("lr").schedule("max_lr start_lr").hf("learning_rate optimizer.params.lr")
        .nanogpt("learning_rate")
        .litgpt("optimizer.init_args.lr").titan("optimizer.lr").llmc("-l").short("max_lr peak_lr"),
    number("lr.min").megatron("min_lr").schedule("min_lr")
        .hf("min_lr; in `lr_scheduler_kwargs`, with `cosine_with_min_lr`")
        .nanogpt("min_lr").litgpt("train.min_lr")
        .titan("lr_scheduler.min_lr_factor lr_scheduler.lr_min; as a fraction")
        .olmo("train_module.scheduler.alpha_f; as a fraction").llmc("-q; as a fraction"),
    count("lr.warmup_tokens").megatron("lr_warmup_tokens"),
    count("lr.warmup_samples").megatron("lr_warmup_samples")
        .schedule("lr_warmup_steps warmup_steps warmup_iter"),
    key("lr.warmup_samples").megatron("lr_warmup_iters lr_warmup_fraction").hf("warmup_steps warmup_ratio")
        .nanogpt("warmup_iters").litgpt("train.lr_warmup_steps train.lr_warmup_fraction")
        .titan("lr_scheduler.warmup_steps")
        .olmo("train_module.scheduler.warmup train_module.scheduler.warmup_steps").llmc("-u").short("warmup")
        .unit(SAMPLES),
    key("lr.decay").megatron("lr_decay_style").schedule("lr_decay_style decay_style")
        .olmo("train_module.scheduler").hf("lr_scheduler_type").nanogpt("decay_lr")
        .titan("lr_scheduler.decay_type").llmc("-k"),
    count("lr.decay.cosine.samples").megatron("lr_decay_samples")
        .schedule("lr_decay_steps decay_steps end_iter"),
    count("lr.decay.cosine.tokens").megatron("lr_decay_tokens"),
    key("lr.decay.cosine.samples").megatron("lr_decay_iters").nanogpt("lr_decay_iters")
        .olmo("train_module.scheduler.t_max").unit(SAMPLES),
    key("lr.decay.wsd").megatron("lr_wsd_decay_style; `linear` alone"),
    key("lr.decay.wsd.decay_samples").megatron("lr_wsd_decay_samples"),
    key("lr.decay.wsd.decay_samples").megatron("lr_wsd_decay_iters")
        .titan("lr_scheduler.decay_ratio; as a fraction").unit(SAMPLES),
    value("lr.counted", "before").megatron("; its rate of a step: updates come first"),
    key("optimizer").megatron("optimizer").hf("optim").litgpt("optimizer").titan("optimizer.name"),
    number("optimizer.adamw.beta1").megatron("adam_beta1").hf("adam_beta1 optimizer.params.betas")
        .nanogpt("beta1").litgpt("optimizer.init_args.betas; the first").titan("optimizer.beta1")
        .llmc("; 0.9").short("betas"),
    number("optimizer.adamw.beta2").megatron("adam_beta2").hf("adam_beta2").nanogpt("beta2")
        .litgpt("; the second of `betas`").titan("optimizer.beta2").llmc("; 0.95"),
    number("optimizer.adamw.eps").megatron("adam_eps").hf("adam_epsilon optimizer.params.eps")
        .titan("optimizer.eps"),
    number("optimizer.adamw.weight_decay").megatron("weight_decay")
        .hf("weight_decay optimizer.params.weight_decay").nanogpt("weight_decay")
        .litgpt("optimizer.init_args.weight_decay").titan("optimizer.weight_decay").llmc("-c"),
    number("optimizer.adamw.clip").megatron("clip_grad").hf("max_grad_norm gradient_clipping")
        .nanogpt("grad_clip").litgpt("train.max_norm").titan("training.max_norm")
        .olmo("train_module.max_grad_norm").llmc("; 1.0"),
    count("topology.tensor").megatron("tensor_model_parallel_size model_parallel_size")
        .titan("parallelism.tensor_parallel_degree").short("tp tp_size"),
    count("topology.pipeline").megatron("pipeline_model_parallel_size")
        .titan("parallelism.pipeline_parallel_degree").short("pp pp_size"),
    count("topology.data").megatron("data_parallel_size; the remaining ranks").hf("; the number of processes")
        .nanogpt("; the number of processes").litgpt("; `devices` × `num_nodes`")
        .llmc("; the number of processes")
        .titan("parallelism.data_parallel_replicate_degree; × `data_parallel_shard_degree`")
        .short("dp dp_size"),
    key("topology.sequence_parallel").megatron("sequence_parallel"),
    value("topology.zero", "1").megatron("use_distributed_optimizer"),
    value("topology.zero", "3").megatron("use_megatron_fsdp use_torch_fsdp2 use_custom_fsdp").hf("fsdp"),
    key("topology.zero").megatron("zero_stage").hf("zero_optimization.stage").llmc("-z; 0 or 1")
        .short("zero"),
    key("topology.shard")
        .megatron("num_distributed_optimizer_instances; topology.data / instances, with `states: shard`")
        .hf("zero_optimization.zero_hpz_partition_size zero_optimization.mics_shard_size; \
             FSDP's `hybrid_shard`: `node`; the last two with `states: shard`")
        .titan("parallelism.data_parallel_shard_degree; sharded: `zero: 3`, `states: shard`"),
    key("topology.states").megatron("outer_dp_sharding_strategy; `no_shard`: `shard`, `optim`: `all`"),
    key("topology.schedule").titan("parallelism.pipeline_parallel_schedule; `LoopedBFS`: `breadth_first`"),
    key("topology.chunks")
        .megatron("virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank"),
    key("topology.chunks")
        .megatron("num_layers_per_virtual_pipeline_stage")
        .unit("layers per stage / layers per chunk, with topology.schedule: interleaved"),
    key("topology.layer_split").titan("parallelism.pipeline_parallel_split_points")
        .megatron("decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers \
                   num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage \
                   pipeline_model_parallel_layout account_for_embedding_in_pipeline_split \
                   account_for_loss_in_pipeline_split pp_partition_method"),
    key("topology.overlap_p2p").megatron("overlap_p2p_communication overlap_p2p_comm"),
    key("topology.recompute").megatron("recompute_granularity recompute_activations checkpoint_activations")
        .hf("gradient_checkpointing").titan("activation_checkpoint.mode").llmc("-r; 0 to 2")
        .short("activation_checkpointing"),
    key("topology.offload.what").megatron("optimizer_cpu_offload cpu_optimizer")
        .hf("zero_optimization.offload_optimizer zero_optimization.offload_param")
        .titan("training.enable_cpu_offload"),
    key("comm.timeout_s").megatron("distributed_timeout_minutes; in minutes").hf("ddp_timeout")
        .titan("comm.train_timeout_seconds"),
    count("checkpoint.interval").megatron("save_interval").hf("save_steps").litgpt("train.save_interval")
        .titan("checkpoint.interval").llmc("-n"),
    key("checkpoint.keep_last").hf("save_total_limit").titan("checkpoint.keep_latest_k").llmc("-nk"),
    key("checkpoint.keep_every").megatron("save_retain_interval").llmc("-nm"),
    count("checkpoint.memory_interval").megatron("non_persistent_save_interval"),
    key("checkpoint.memory_folder").megatron("non_persistent_local_ckpt_dir"),
    key("checkpoint.in_flight").megatron("async_save; 0 without it").titan("checkpoint.async_mode"),
    key("log.folder").megatron("save tensorboard_dir").hf("output_dir logging_dir").nanogpt("out_dir")
        .litgpt("out_dir").titan("job.dump_folder checkpoint.folder").llmc("-o"),
    key("log.interval").megatron("log_interval").hf("logging_steps").nanogpt("log_interval")
        .litgpt("train.log_interval").titan("metrics.log_freq"),
    key("log.tensorboard").titan("metrics.enable_tensorboard"),
    flag("log.zeros").megatron("log_num_zeros_in_grad"),
    flag("log.params_norm").megatron("log_params_norm"),
    count("train.steps").megatron("train_iters").olmo("trainer.max_duration").hf("max_steps")
        .nanogpt("max_iters")
        .litgpt("train.max_steps").titan("training.steps").llmc("-x")
        .short("iterations num_steps total_steps"),
    count("train.samples").megatron("train_samples"),
    key("train.samples").hf("num_train_epochs").litgpt("train.epochs").short("epochs")
        .unit("epochs × samples of the dataset"),
    key("train.tokens").megatron("train_tokens").litgpt("train.max_tokens"),
    count("train.eval_interval").megatron("eval_interval").hf("eval_steps").nanogpt("eval_interval")
        .litgpt("eval.interval").titan("validation.freq").llmc("-v"),
    key("train.eval_samples").megatron("eval_iters").hf("max_eval_samples").nanogpt("eval_iters")
        .litgpt("eval.max_iters").titan("validation.steps").llmc("-m").unit("batches × batch.global"),
    count("train.seed").megatron("seed").hf("seed").litgpt("seed").titan("training.seed").olmo("init_seed"),
    number("train.z_loss").olmo("train_module.z_loss_multiplier"),
    key("train.device").nanogpt("device"),

    unneeded("the same command resumes; `gptrain import` starts from another model or trainer")
        .megatron("load finetune no_load_optim no_load_rng use_checkpoint_args override_opt_param_scheduler \
                   override_lr_scheduler use_checkpoint_lr_scheduler use_checkpoint_opt_param_scheduler \
                   no_load_lr_state reset_iteration reset_progress pretrained_checkpoint \
                   universal_checkpoint \
                   exit_on_missing_checkpoint override_ckpt_iteration \
                   use_mp_args_from_checkpoint_args use_tokenizer_model_from_checkpoint_args")
        .hf("resume_from_checkpoint overwrite_output_dir model_name_or_path config_name use_auth_token \
             cache_dir ignore_data_skip").nanogpt("init_from")
        .litgpt("resume initial_checkpoint_dir")
        .titan("checkpoint.initial_load_path checkpoint.enable_checkpoint").llmc("-y"),
    unneeded("`gptrain wandb RUN` and `gptrain mlflow RUN` send a run's metrics")
        .megatron("wandb_project wandb_save_dir wandb_entity one_logger_* enable_one_logger otel_* app_tag_*")
        .hf("report_to").nanogpt("wandb_log wandb_project")
        .litgpt("logger_name log.project").titan("metrics.enable_wandb"),
    unneeded("the number of ranks is tensor × pipeline × data of `topology`; a launcher starts them, or \
              `run` itself")
        .megatron("world_size local_rank rank transformer_pipeline_model_parallel_size \
                   use_tp_pp_dp_mapping fake_process_group")
        .hf("local_rank").litgpt("devices num_nodes")
        .short("gpus num_gpus nnodes nproc_per_node nodes world ngpu"),
    unneeded("NCCL between GPUs, TCP between CPUs: `comm.gpu_transport`")
        .megatron("distributed_backend use_gloo_process_groups nccl_* use_sharp sharp_enabled_group \
                   pipeline_model_parallel_comm_backend high_priority_stream_groups \
                   distributed_timeout_seconds_after_init flight_recorder_* lazy_mpu_init")
        .hf("ddp_backend").nanogpt("backend"),
    unneeded("the binary contains its kernels, fused where they can be").hf("torch_compile")
        .nanogpt("compile").titan("compile.enable training.compile")
        .megatron("transformer_impl use_mcore_models deprecated_use_mcore_models use_legacy_models \
                   bias_dropout_fusion bias_swiglu_fusion bias_activation_fusion masked_softmax_fusion \
                   no_bias_dropout_fusion no_masked_softmax_fusion no_rope_fusion apply_rope_fusion \
                   gradient_accumulation_fusion gradient_reduce_div_fusion cross_entropy_loss_fusion \
                   cross_entropy_fusion_impl persist_layer_norm no_persist_layer_norm \
                   memory_efficient_layer_norm mem_efficient_ln fused_residual_rmsnorm \
                   fused_single_qkv_rope use_te_activation_func use_transformer_engine_op_fuser \
                   use_flashinfer_fused_rope disable_jit_fuser cuda_graph_* enable_cuda_graph \
                   external_cuda_graph optimizer_cuda_graph te_rng_tracker use_te_rng_tracker \
                   inference_rng_tracker abort_on_unmet_fused_kernel_constraints apply_residual_fusion \
                   ds_fused_adam cpu_torch_adam kitchen_* use_kitchen* te_precision_config_file \
                   batch_invariant_* deterministic_mode spec"),
    unneeded("attention keeps no matrix of scores")
        .megatron("use_flash_attn* attention_backend flash_attention_version flash_decode \
                   attention_softmax_in_fp32 create_attention_mask_in_dataloader")
        .hf("attn_implementation"),
    unneeded("communication runs beside computation whenever it can")
        .megatron("overlap_grad_reduce overlap_param_gather overlap_param_gather_with_optimizer_step \
                   tp_comm_* ddp_bucket_size ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw \
                   ddp_average_in_collective align_param_gather align_grad_reduce average_in_collective \
                   no_async_tensor_model_parallel_allreduce async_tensor_model_parallel_allreduce \
                   delay_wgrad_compute defer_embedding_wgrad_compute wgrad_deferral_limit \
                   batch_p2p_comm batch_p2p_sync overlap_p2p_comm_warmup_flush \
                   deallocate_pipeline_outputs scatter_gather_tensors_in_pipeline barrier_with_l1_time \
                   use_ring_exchange_p2p microbatch_group_size_per_vp_stage standalone_embedding_stage \
                   ddp_impl use_contiguous_buffers_in_* accumulate_allreduce_grads_in_fp32 \
                   grad_reduce_in_fp32 reduce_scatter_with_fp32_accumulation \
                   ddp_reduce_scatter_with_fp32_accumulation data_parallel_sharding_strategy fsdp_* \
                   torch_fsdp2_* megatron_fsdp_* suggested_communication_unit_size \
                   zero_allgather_bucket_size zero_reduce_bucket_size \
                   zero_contigious_gradients zero_reduce_scatter remote_device use_pin_memory pin_cpu_* \
                   enable_zbh1_*")
        .hf("zero_optimization.* communication_data_type ddp_bucket_cap_mb")
        .titan("parallelism.enable_async_tensor_parallel"),
    unneeded("`topology.recompute` applies to every layer")
        .megatron("recompute_method recompute_num_layers recompute_modules checkpoint_num_layers \
                   distribute_saved_activations distribute_checkpointed_activations \
                   partition_activations contigious_checkpointing checkpoint_in_cpu \
                   synchronize_each_layer profile_backward deepspeed_activation_checkpointing \
                   num_microbatches_with_partial_activation_checkpoints cpu_offloading_* \
                   fine_grained_activation_offloading fine_grained_offloading_* offload_modules \
                   min_offloaded_tensor_size optimizer_offload_fraction overlap_cpu_optimizer_d2h_h2d \
                   use_torch_optimizer_for_cpu_offload empty_unused_memory_level")
        .titan("activation_checkpoint.selective_ac_option"),
    unneeded("a thread of each rank reads ahead")
        .megatron("num_workers valid_num_workers dataloader_fast_cache_load \
                   dataloader_defer_npy_index_mmap num_dataset_builder_threads mmap_* data_impl \
                   mid_level_dataset_surplus object_storage_cache_path manual_gc* repeated_dataloader")
        .hf("dataloader_num_workers").titan("training.gc_freq"),
    unneeded("a run saves and ends before its Slurm job does (`slurm.on_end`), on SIGTERM, and when the file \
              `RUN/stop` appears; `gptrain run --minutes` ends a start of a run that has begun")
        .megatron("exit_duration_in_mins exit_interval exit_signal* kill_switch_* adlr_autoresume*")
        .litgpt("train.max_time"),
    unneeded("`train.eval_interval`, `checkpoint.interval` and `log.interval` say when; 0 is never for an \
              evaluation")
        .megatron("do_train")
        .hf("eval_strategy evaluation_strategy save_strategy logging_strategy do_train do_eval")
        .litgpt("eval.initial_validation eval.final_validation").titan("validation.enable"),
    unneeded("`gptrain eval RUN` scores a checkpoint").nanogpt("eval_only")
        .megatron("skip_train no_train eval_only test_mode"),
    unneeded("every checkpoint is kept, unless `checkpoint.keep_last` is set")
        .nanogpt("always_save_checkpoint").hf("load_best_model_at_end")
        .titan("checkpoint.last_save_model_only"),
    unneeded("`gptrain run --trace` writes the spans of steps")
        .megatron("profile profile_step* profile_ranks timing_log_* use_pytorch_profiler \
                   pytorch_profiler_* use_nsys_profiler nvtx_ranges record_* memory_snapshot_path")
        .titan("profiling.enable_profiling profiling.profile_freq"),
    unneeded("each log line and metrics.jsonl have it")
        .megatron("log_throughput log_timers_to_tensorboard \
                   log_validation_ppl_to_tensorboard log_memory_to_tensorboard log_batch_size_* \
                   log_learning_rate_* log_loss_scale_to_tensorboard log_world_size_to_tensorboard \
                   log_progress log_energy log_straggler log_optimizer_states_to_tensorboard \
                   log_device_memory_used log_max_attention_logit log_memory_interval log_mtp_* \
                   log_overview log_per_* log_params* log_l2_* tensorboard_log_interval \
                   tensorboard_queue_size logging_level")
        .hf("steps_per_print wall_clock_breakdown dump_state logging_nan_inf_filter"),
    unneeded("a checkpoint has the place in the run")
        .megatron("iteration curr_iteration consumed_train_tokens consumed_valid_samples \
                   skipped_train_samples num_floating_point_operations_so_far start_iteration \
                   do_valid do_test"),
    unneeded("a checkpoint has one form, and `checkpoint.keep_last` says which are kept")
        .megatron("ckpt_* dist_ckpt_* use_dist_ckpt* auto_detect_ckpt_format async_ckpt_* async_strategy \
                   use_persistent_ckpt_worker non_persistent_* no_save_optim no_save_rng \
                   distrib_optim_fully_reshardable_mem_efficient verify_integrity load_main_params* \
                   strict_fsdp_dtensor_load save_tokenizer_assets enable_msc replication* mos \
                   hetereogenous_dist_checkpoint"),
    unneeded("initial weights are those of the checkpoint")
        .megatron("init_method_xavier_uniform embedding_init_method_std perform_initialization \
                   use_cpu_initialization init_model_with_meta_device data_parallel_random_init"),
    unneeded("`restart` and `divergence` say what a run does after faults")
        .megatron("inprocess_* ft_* enable_ft_package calc_ft_timeouts rerun_mode error_injection_* \
                   result_rejected_tracker_filename check_for_* straggler_* disable_straggler_* \
                   run_workload_inspector_server gpu_sniff_test_interval \
                   check_weight_hash_across_dp_replicas_interval"),
    unneeded("an option of sampling: `gptrain sample`")
        .megatron("inference_* use_legacy_static_engine nccl_all_reduce_for_prefill num_speculative_tokens \
                   mlp_chunks_for_prefill enable_chunked_prefill max_tokens_to_oom return_log_probs \
                   skip_prompt_log_probs ds_inference symmetric_ar_type output_bert_embeddings"),
    unneeded("an option of another kind of model or training")
        .megatron("bert_* biencoder_* ict_* titles_data_path evidence_data_path block_data_path \
                   embedding_path indexer_* retriever_* query_in_block_prob use_one_sent_docs \
                   short_seq_prob mask_prob mask_factor mask_type vision_* dino_* swin_backbone_type \
                   img_* patch_dim num_channels num_classes sample_rate classes_fraction \
                   data_per_class_fraction iter_per_epoch retro_encoder_* retro_num_* retro_workdir \
                   retro_cyclic_train_iters retro_return_doc_ids rl_* grpo_* langrl_env_config \
                   perform_rl_step refit_method mamba_* is_hybrid_model_* mtp_* dsa_* gdp_* \
                   linear_* decoder_seq_length decoder_num_layers encoder_num_layers \
                   pipeline_model_parallel_split_rank vocab_extra_ids mean_noise_span_length \
                   relative_attention_* kd_* num_layers_teacher num_experts_teacher \
                   hidden_size_teacher num_attention_heads_teacher muon_* adaptive_muon_* soap_* \
                   sgd_momentum \
                   lion_* image_token_* mhc_* fim_* yarn_* mscale* q_lora_rank kv_lora_rank \
                   qk_head_dim qk_pos_emb_head_dim v_head_dim rotary_scaling_factor mrope_section \
                   original_max_position_* cache_mla_latents mla_down_proj_fusion noise_density \
                   qk_clip_* logits_* num_experts_switch load_teacher sft_tokenizer_prompt_format \
                   multiple_validation_sets validation_set_names full_validation"),
    unneeded("fp8's scales have no history and no settings")
        .megatron("fp8_* fp4_* first_last_layers_bf16 num_layers_at_start_in_bf16 \
                   num_layers_at_end_in_bf16 keep_fp8_transpose_cache quant_recipe \
                   disable_parameter_transpose_cache reuse_grad_buf_for_mxfp8_param_ag \
                   tp_only_amax_red"),
    unneeded("states are read in the type that they have")
        .megatron("use_precision_aware_optimizer exp_avg_dtype exp_avg_sq_dtype main_grads_dtype \
                   main_params_dtype store_param_remainders pipeline_dtype autocast_dtype enable_autocast \
                   disable_bf16_reduced_precision_matmul"),
    unneeded("other arguments have its value")
        .megatron("add_position_embedding start_weight_decay end_weight_decay window_attn_skip_freq \
                   gated_linear_unit eval_micro_batch_size \
                   eval_global_batch_size test_data_path test_weighted_split_* yaml_cfg mup_*")
        .hf("per_device_eval_batch_size eval_accumulation_steps"),
    unneeded("its values are in the files of the step")
        .megatron("save_activations_interval save_dgrads_interval save_params_interval \
                   save_wgrads_interval save_tokens_per_expert_interval dump_param_to_param_group_map \
                   config_logger_dir aml_data_download_path"),
    unneeded("an option of a layout of memory or messages that gptrain does not have")
        .megatron("clone_scatter_output_in_embedding create_all_gather_group cpu_offloading \
                   activation_offload_fraction decode_only_cuda_graphs enable_full_sharding_in_hsdp \
                   delay_offload_until_cuda_graph delta_offload_bytes_across_pp_ranks gtp_* \
                   disable_symmetric_registration enable_experimental high_priority_a2a_comm_stream \
                   ddp_param_name_patterns_for_fp32_local_accumulation memory_centric_tiled_linear \
                   mlp_chunks_for_training no_pipeline_parallel onnx_safe scattered_embeddings \
                   split_transformers sync_tp_duplicated_parameters tensor_parallel_num_weight_shards \
                   tile_factor train_sync_interval use_dataset_only use_grouped_gemm_* use_gigatoken \
                   use_fused_weighted_squared_relu use_inference_optimized_layers \
                   use_layer_wise_* offset_sampling_seed_by_dp_rank"),
    unneeded("the tokenizer's file has all of it: `data.tokenizer`")
        .megatron("tokenizer_hf_* tokenizer_sentencepiece_* tiktoken_* null_tokenizer_* chat_templat* \
                   trust_remote_code pad_vocab_size allow_ambiguous_pad_tokens special_token*"),
    unneeded("a manifest has all settings").megatron("deepspeed deepspeed_config deepscale deepscale_config")
        .hf("deepspeed zero_allow_untrained_optimizer zero_force_ds_cpu_optimizer"),
    unneeded("`--log-level`, or GPTRAIN_LOG").megatron("log_level log_level_replica").hf("log_level"),
    unneeded("messages and metrics are in `log.folder`").megatron("log_path codecarbon_dir"),
    unneeded("samples are cut from a stream of tokens").hf("group_by_length remove_unused_columns"),
    unneeded("`gptrain export` writes a folder; `hf upload` sends it").hf("push_to_hub hub_model_id"),
    unneeded("text becomes tokens before a run: `gptrain data build`")
        .hf("preprocessing_num_workers streaming dataset_config_name overwrite_cache")
        .litgpt("data.num_workers"),

    lacking("gptrain has no mixture of experts")
        .megatron("expert_model_parallel_size expert_tensor_parallel_* enable_expert_tensor_parallelism \
                   expert_interval moe_* create_moe_param_group use_tutel topk overlap_moe_* \
                   delay_wgrad_compute_for_moe expert_gtp_*")
        .hf("num_local_experts num_experts_per_tok").litgpt("model_config.n_expert")
        .titan("parallelism.expert_parallel_degree"),
    lacking("a sample is not divided among ranks; topology.sequence_parallel divides activations among the \
             tensor ranks")
        .megatron("context_parallel_size hierarchical_context_parallel_sizes cp_comm_type \
                   hybrid_context_parallel ds_sequence_parallel_* force_ds_sequence_parallel \
                   max_seqlen_per_dp_cp_rank").titan("parallelism.context_parallel_degree").short("cp"),
    lacking("gptrain trains all weights").hf("peft_config lora_r").short("lora lora_rank"),
    lacking("gptrain trains without label smoothing").hf("label_smoothing_factor"),
    only("1", "gptrain has no mixture of experts").megatron("num_experts"),
    only("null", "gptrain has no mixture of experts").olmo("model.block.feed_forward_moe"),
    only("false", "gptrain's residual comes before the norm")
        .megatron("apply_residual_connection_post_layernorm")
        .bloom("apply_residual_connection_post_layernorm"),
    only("default", "gptrain's norms come before attention and feed-forward").olmo("model.block.name"),
    only("default", "only the default transformer is read").olmo("model.name"),
    only("null", "blocks that differ are not read here").olmo("model.block_overrides"),
    only("null", "gptrain's Llama has no norm of the embedding").olmo("model.embedding_norm"),
    only("null", "gptrain's Llama does not scale the embedding").olmo("model.embed_scale"),
    only("null", "gptrain's dropout is elsewhere in the block").olmo("model.block.dropout"),
    only("null", "gptrain does not scale residuals")
        .olmo("model.block.attention_residual_alpha model.block.feed_forward_residual_alpha"),
    only("null", "gptrain does not clip queries, keys and values").olmo("model.block.*.clip_qkv"),
    only("null", "gptrain's attention has no gate").olmo("model.block.*.gate"),
    only("true", "gptrain divides scores by the root of the head's width").gpt2("scale_attn_weights"),
    only("false", "gptrain scales the scores of all layers alike").gpt2("scale_attn_by_inverse_layer_idx"),
    only("false", "gptrain has no cross-attention").gpt2("add_cross_attention"),
    only("null", "gptrain reads weights that are not quantised").config("quantization_config"),
    only("1.0", "gptrain rotates all columns of a head").llama("partial_rotary_factor"),
    only("false", "gptrain rotates the halves of a head").llama("rope_interleaved"),
    only("false", "this gated layer is not one of gptrain's").megatron("glu_activation"),
    only("false", "this activation is not one of gptrain's").megatron("squared_relu quick_geglu"),
    only("false", "the moments are bitsandbytes' 8-bit ones").megatron("use_bnb_optimizer"),
    only("false", "this attention is not one of gptrain's").megatron("multi_latent_attention"),
    only("false", "gptrain predicts one token at a time").megatron("mtp_num_layers"),
    only("false", "gptrain's norm of queries and keys has a scale").megatron("qk_l2_norm"),
    only("false", "gptrain's attention has no gate").megatron("attention_output_gate"),
    only("vanilla", "gptrain's softmax has no sink").megatron("softmax_type"),
    only("null", "gptrain divides scores by the root of the head's width").megatron("softmax_scale"),
    only("0", "gptrain's SwiGLU has no offset").megatron("glu_linear_offset"),
    only("null", "gptrain does not clamp activations").megatron("activation_func_clamp_value"),
    only("null", "gptrain rotates in every layer").megatron("no_rope_freq"),
    only("rope", "this rotation is not one of gptrain's").megatron("rope_type"),
    only("standard", "gptrain has no mixture of experts").megatron("mlp_type"),
    only("false", "gptrain's layers are attention and feed-forward")
        .megatron("is_hybrid_model retro_add_retriever enable_mhc_connections heterogeneous_block_specs"),
    only("null", "gptrain's layers are attention and feed-forward")
        .megatron("hybrid_layer_pattern hybrid_override_pattern experimental_attention_variant \
                   heterogeneous_layers_config_path heterogeneous_layers_config_encoded_json"),
    only("false", "gptrain's factors of width are those of `model.mup`").megatron("use_mup mup"),
    only("true", "it is Adam with L2, not AdamW").megatron("decoupled_weight_decay"),

    noted("constant", "gptrain's weight decay does not change").megatron("weight_decay_incr_style"),
    noted("false", "gptrain does not decay norms").megatron("apply_wd_to_qk_layernorm"),
    noted("null", "gptrain has one rate for all parameters").megatron("decoupled_lr decoupled_min_lr"),
    noted("1", "gptrain has one rate for all parameters").megatron("head_lr_mult"),
    noted("0", "gptrain's warm-up begins at 0").megatron("lr_warmup_init"),
    noted("null", "gptrain's batch grows by batch.ramp_up").megatron("step_batch_size_schedule"),
    noted("false", "a batch that the replicas do not divide is refused")
        .megatron("decrease_batch_size_if_needed"),
    noted("false", "gptrain's sums of gradients are f32").megatron("grad_reduce_in_bf16"),
    noted("false", "gptrain's loss is computed in f32").megatron("fp16_lm_cross_entropy"),
    noted("false", "gptrain's embedding has the precision of the other weights")
        .megatron("embedding_weights_in_fp32"),
    noted("false", "gptrain averages over the tokens of a step if some have no loss")
        .megatron("calculate_per_token_loss"),
    noted("false", "gptrain does not clip queries and keys").megatron("qk_clip"),
    noted("inf", "`divergence` says which steps are skipped").megatron("grad_norm_skip_threshold"),
    noted("null", "`data.skip` leaves out samples, by their number instead of the step's")
        .megatron("skip_train_iteration_range iterations_to_skip"),
    noted("false", "gptrain's loss counts every token of a sample")
        .megatron("loss_on_targets_only reweight_loss_based_on_position_frequency \
                   norm_target_loss sft"),
    noted("false", "gptrain's samples of a step have one length")
        .megatron("data_efficiency_curriculum_learning variable_seq_lengths random_ltd"),
    noted("false", "gptrain's samples are the tokens in their order").megatron("fim_data"),
    noted("single", "gptrain reads samples in the order of `data.rule`").megatron("dataloader_type"),
    noted("null", "a file that lists the datasets: name them in data.train")
        .megatron("data_args_path per_split_data_args_path train_weighted_split_paths \
                   valid_weighted_split_paths_path valid_weighted_split_paths \
                   per_dataset_sequences_path"),
    noted("null", "a file of weights: `data.train: {weights_file: FILE}`")
        .megatron("train_weighted_split_paths_path"),
    noted("null", "gptrain makes the order of samples itself")
        .megatron("train_doc_idx_path train_sample_idx_path train_shuffle_idx_path train_idx_path \
                   train_data_exact_num_epochs phase_transition_iterations"),
    noted("null", "evaluations begin with the run").megatron("start_eval_at_iter"),
    noted("null", "gptrain decays matrices alone").megatron("no_weight_decay_cond_type"),
    noted("true", "a run reads all of its data").megatron("data_sharding"),
    noted("null", "the manifest has the precision around it").megatron("fp4"),
    noted("false", "the datasets are invented").megatron("mock_data"),
    noted("false", "gptrain trains all weights").megatron("freeze_all_layers bitfit"),
    noted("false", "gptrain has no distillation").megatron("kd"),
];
