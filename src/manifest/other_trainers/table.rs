//! The rows: settings in the order of a manifest, then what needs no setting, then what gptrain does
//! not have.

use super::{Meaning, Row};

const fn key(key: &'static str) -> Row {
    Row::new(Meaning::Setting { key, value: None })
}

const fn value(key: &'static str, value: &'static str) -> Row {
    Row::new(Meaning::Setting { key, value: Some(value) })
}

const fn unneeded(why: &'static str) -> Row {
    Row::new(Meaning::Unneeded(why))
}

const fn lacking(why: &'static str) -> Row {
    Row::new(Meaning::Lacking(why))
}

const fn other_model(why: &'static str) -> Row {
    Row::new(Meaning::OtherModel(why))
}

/// Unit of rows whose names count steps.
const SAMPLES: &str = "steps × batch.global";

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    key("name").megatron("wandb_exp_name").hf("run_name").nanogpt("wandb_run_name")
        .titan("job.description"),
    key("model.family").hf("model_type").litgpt("model_name").titan("model.name"),
    key("model.layers").megatron("num_layers").hf("num_hidden_layers n_layer").nanogpt("n_layer")
        .litgpt("model_config.n_layer").titan("model.flavor; a named size").llmc("; `-e d12`")
        .short("n_layers layers depth"),
    key("model.hidden").megatron("hidden_size").hf("hidden_size n_embd").nanogpt("n_embd")
        .litgpt("model_config.n_embd").llmc("; `-e d12`").short("d_model hidden dim width"),
    key("model.heads").megatron("num_attention_heads").hf("num_attention_heads n_head").nanogpt("n_head")
        .litgpt("model_config.n_head").llmc("; `-e d12`").short("n_heads num_heads heads"),
    key("model.kv_heads").megatron("num_query_groups").hf("num_key_value_heads")
        .litgpt("model_config.n_query_groups").short("n_kv_heads group_query_attention"),
    key("model.head_dim").megatron("kv_channels").hf("head_dim").litgpt("model_config.head_size"),
    key("model.ffn_hidden").megatron("ffn_hidden_size").hf("intermediate_size n_inner")
        .litgpt("model_config.intermediate_size"),
    value("model.ffn", "swiglu").megatron("swiglu"),
    key("model.ffn").hf("hidden_act").litgpt("model_config.mlp_class_name").short("activation"),
    key("model.gelu").hf("activation_function").megatron("bias_gelu_fusion openai_gelu; both: `tanh`"),
    key("model.vocab").megatron("vocab_size").hf("vocab_size").litgpt("model_config.vocab_size"),
    key("model.vocab_multiple").megatron("make_vocab_size_divisible_by padded_vocab_size")
        .litgpt("model_config.padding_multiple model_config.padded_vocab_size"),
    key("model.seq_len").megatron("seq_length").hf("block_size max_seq_length; of `run_clm.py`")
        .nanogpt("block_size").litgpt("train.max_seq_length model_config.block_size")
        .titan("training.seq_len").llmc("-t").short("sequence_length context_length ctx_len"),
    key("model.positions").megatron("max_position_embeddings").hf("max_position_embeddings n_positions")
        .llmc("; 1,024"),
    key("model.position").megatron("position_embedding_type"),
    key("model.position.rope.theta").megatron("rotary_base").hf("rope_theta")
        .litgpt("model_config.rope_base"),
    key("model.position.rope.scaling").megatron("use_rope_scaling rope_scaling_factor").hf("rope_scaling")
        .litgpt("model_config.rope_adjustments"),
    key("model.window").megatron("window_size").hf("sliding_window")
        .litgpt("model_config.sliding_window_size"),
    key("model.norm").megatron("normalization").litgpt("model_config.norm_class_name"),
    key("model.layernorm_eps").megatron("norm_epsilon layernorm_epsilon")
        .hf("layer_norm_epsilon rms_norm_eps").litgpt("model_config.norm_eps"),
    key("model.qk_norm").megatron("qk_layernorm").litgpt("model_config.norm_qk"),
    key("model.embedding_layernorm").megatron("embed_layernorm"),
    key("model.bias").megatron("add_bias_linear disable_bias_linear add_qkv_bias")
        .hf("attention_bias mlp_bias").nanogpt("bias").litgpt("model_config.bias"),
    key("model.tied_head").megatron("untie_embeddings_and_output_weights; the opposite")
        .hf("tie_word_embeddings").litgpt("train.tie_embeddings").llmc("; always tied"),
    key("model.logit_softcap").hf("final_logit_softcapping").litgpt("model_config.final_logit_softcapping"),
    key("model.dropout").nanogpt("dropout"),
    key("model.dropout.residual").megatron("hidden_dropout; also `embedding`").hf("resid_pdrop"),
    key("model.dropout.attention").megatron("attention_dropout").hf("attn_pdrop attention_dropout"),
    key("model.dropout.embedding").hf("embd_pdrop"),
    key("model.init.std").megatron("init_method_std").hf("initializer_range"),
    value("precision", "bf16").megatron("bf16").hf("bf16 bf16.enabled").short("bfloat16"),
    value("precision", "fp16").megatron("fp16").hf("fp16 fp16.enabled").short("float16"),
    value("precision", "tf32").hf("tf32").llmc("-f"),
    value("precision", "fp8").megatron("fp8_format fp8").titan("float8.enable_float8_linear"),
    key("precision").megatron("params_dtype").hf("torch_dtype").nanogpt("dtype").litgpt("precision")
        .titan("training.mixed_precision_param").llmc("; built in (`PRECISION`)"),
    key("loss_scale").megatron("loss_scale").hf("fp16.loss_scale"),
    key("loss_scale.initial").megatron("initial_loss_scale").hf("initial_scale_power; as a power of 2"),
    key("loss_scale.min").megatron("min_loss_scale").hf("fp16.min_loss_scale"),
    key("loss_scale.window").megatron("loss_scale_window").hf("fp16.loss_scale_window"),
    key("loss_scale.hysteresis").megatron("hysteresis").hf("fp16.hysteresis"),
    key("data.train").megatron("data_path train_data_path").hf("train_dataset").nanogpt("dataset")
        .litgpt("data").titan("training.dataset_path training.dataset").llmc("-i")
        .short("train_data path data_dir train_file"),
    key("data.split").megatron("split").hf("train_test_split validation_split_percentage"),
    key("data.valid").megatron("valid_data_path").hf("eval_dataset")
        .titan("validation.dataset_path validation.dataset").llmc("-j")
        .short("val_data valid_data validation_file"),
    key("data.tokenizer").megatron("tokenizer_model vocab_file merge_file tokenizer_type")
        .hf("tokenizer_name").litgpt("tokenizer_dir").titan("model.tokenizer_path model.hf_assets_path"),
    key("data.seed").hf("data_seed"),
    key("data.cache").megatron("data_cache_path"),
    key("data.eod.mask_loss").megatron("eod_mask_loss"),
    key("data.eod.reset_positions").megatron("reset_position_ids"),
    key("data.eod.reset_attention").megatron("reset_attention_mask"),
    key("data.inter_document_masking").short("dataloader_inter_document_masking"),
    key("batch.micro").megatron("micro_batch_size")
        .hf("per_device_train_batch_size train_micro_batch_size_per_gpu").nanogpt("batch_size")
        .litgpt("train.micro_batch_size").titan("training.local_batch_size").llmc("-b"),
    key("batch.global").megatron("global_batch_size").hf("train_batch_size")
        .litgpt("train.global_batch_size").titan("training.global_batch_size").llmc("-d; in tokens"),
    key("batch.global").hf("gradient_accumulation_steps").nanogpt("gradient_accumulation_steps")
        .unit("batch.micro × accumulation × topology.data"),
    key("batch.ramp_up").megatron("rampup_batch_size"),
    key("lr.peak").megatron("lr").hf("learning_rate optimizer.params.lr").nanogpt("learning_rate")
        .litgpt("optimizer.init_args.lr").titan("optimizer.lr").llmc("-l").short("max_lr peak_lr"),
    key("lr.min").megatron("min_lr").hf("min_lr; in `lr_scheduler_kwargs`, with `cosine_with_min_lr`")
        .nanogpt("min_lr").litgpt("train.min_lr")
        .titan("lr_scheduler.min_lr_factor lr_scheduler.lr_min; as a fraction").llmc("-q; as a fraction"),
    key("lr.warmup_samples").megatron("lr_warmup_samples"),
    key("lr.warmup_samples").megatron("lr_warmup_iters lr_warmup_fraction").hf("warmup_steps warmup_ratio")
        .nanogpt("warmup_iters").litgpt("train.lr_warmup_steps train.lr_warmup_fraction")
        .titan("lr_scheduler.warmup_steps").llmc("-u").short("warmup").unit(SAMPLES),
    key("lr.decay").megatron("lr_decay_style").hf("lr_scheduler_type").nanogpt("decay_lr")
        .titan("lr_scheduler.decay_type").llmc("-k"),
    key("lr.decay.cosine.samples").megatron("lr_decay_samples"),
    key("lr.decay.cosine.samples").megatron("lr_decay_iters").nanogpt("lr_decay_iters").unit(SAMPLES),
    key("lr.decay.wsd.decay_samples").megatron("lr_wsd_decay_samples"),
    key("lr.decay.wsd.decay_samples").megatron("lr_wsd_decay_iters")
        .titan("lr_scheduler.decay_ratio; as a fraction").unit(SAMPLES),
    value("lr.counted", "before").megatron("; its rate of a step: updates come first"),
    key("optimizer").megatron("optimizer").hf("optim").litgpt("optimizer").titan("optimizer.name"),
    key("optimizer.adamw.beta1").megatron("adam_beta1").hf("adam_beta1 optimizer.params.betas")
        .nanogpt("beta1").litgpt("optimizer.init_args.betas; the first").titan("optimizer.beta1")
        .llmc("; 0.9").short("betas"),
    key("optimizer.adamw.beta2").megatron("adam_beta2").hf("adam_beta2").nanogpt("beta2")
        .litgpt("; the second of `betas`").titan("optimizer.beta2").llmc("; 0.95"),
    key("optimizer.adamw.eps").megatron("adam_eps").hf("adam_epsilon optimizer.params.eps")
        .titan("optimizer.eps"),
    key("optimizer.adamw.weight_decay").megatron("weight_decay")
        .hf("weight_decay optimizer.params.weight_decay").nanogpt("weight_decay")
        .litgpt("optimizer.init_args.weight_decay").titan("optimizer.weight_decay").llmc("-c"),
    key("optimizer.adamw.clip").megatron("clip_grad").hf("max_grad_norm gradient_clipping")
        .nanogpt("grad_clip").litgpt("train.max_norm").titan("training.max_norm").llmc("; 1.0"),
    key("topology.tensor").megatron("tensor_model_parallel_size")
        .titan("parallelism.tensor_parallel_degree").short("tp tp_size"),
    key("topology.pipeline").megatron("pipeline_model_parallel_size")
        .titan("parallelism.pipeline_parallel_degree").short("pp pp_size"),
    key("topology.data").megatron("data_parallel_size; the remaining ranks").hf("; the number of processes")
        .nanogpt("; the number of processes").litgpt("; `devices` × `num_nodes`")
        .llmc("; the number of processes")
        .titan("parallelism.data_parallel_replicate_degree parallelism.data_parallel_shard_degree; sharded: \
                `zero: 3`")
        .short("dp dp_size"),
    key("topology.sequence_parallel").megatron("sequence_parallel"),
    value("topology.zero", "1").megatron("use_distributed_optimizer"),
    value("topology.zero", "3").megatron("use_megatron_fsdp use_torch_fsdp2 use_custom_fsdp").hf("fsdp"),
    key("topology.zero").hf("zero_optimization.stage").llmc("-z; 0 or 1").short("zero_stage zero"),
    key("topology.schedule").titan("parallelism.pipeline_parallel_schedule"),
    key("topology.chunks")
        .megatron("num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank")
        .unit("layers per stage / layers per chunk, with topology.schedule: interleaved"),
    key("topology.layer_split").titan("parallelism.pipeline_parallel_split_points")
        .megatron("decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers"),
    key("topology.overlap_p2p").megatron("overlap_p2p_communication"),
    key("topology.recompute").megatron("recompute_granularity recompute_activations checkpoint_activations")
        .hf("gradient_checkpointing").titan("activation_checkpoint.mode").llmc("-r; 0 to 2")
        .short("activation_checkpointing"),
    key("topology.offload.what").megatron("optimizer_cpu_offload").hf("zero_optimization.offload_optimizer")
        .titan("training.enable_cpu_offload"),
    key("comm.timeout_s").megatron("distributed_timeout_minutes; in minutes").hf("ddp_timeout")
        .titan("comm.train_timeout_seconds"),
    key("checkpoint.interval").megatron("save_interval").hf("save_steps").litgpt("train.save_interval")
        .titan("checkpoint.interval").llmc("-n"),
    key("checkpoint.keep_last").hf("save_total_limit").titan("checkpoint.keep_latest_k").llmc("-nk"),
    key("checkpoint.keep_every").megatron("save_retain_interval").llmc("-nm"),
    key("checkpoint.in_flight").megatron("async_save").titan("checkpoint.async_mode"),
    key("log.folder").megatron("save tensorboard_dir").hf("output_dir logging_dir").nanogpt("out_dir")
        .litgpt("out_dir").titan("job.dump_folder checkpoint.folder").llmc("-o"),
    key("log.interval").megatron("log_interval").hf("logging_steps").nanogpt("log_interval")
        .litgpt("train.log_interval").titan("metrics.log_freq"),
    key("log.tensorboard").titan("metrics.enable_tensorboard"),
    key("train.steps").megatron("train_iters").hf("max_steps").nanogpt("max_iters")
        .litgpt("train.max_steps").titan("training.steps").llmc("-x")
        .short("iterations num_steps total_steps"),
    key("train.samples").megatron("train_samples").hf("num_train_epochs; × the dataset's samples")
        .litgpt("train.epochs").short("epochs").unit("epochs × samples of the dataset"),
    key("train.tokens").megatron("train_tokens").litgpt("train.max_tokens"),
    key("train.eval_interval").megatron("eval_interval").hf("eval_steps").nanogpt("eval_interval")
        .litgpt("eval.interval").titan("validation.freq").llmc("-v"),
    key("train.eval_samples").megatron("eval_iters").hf("max_eval_samples").nanogpt("eval_iters")
        .litgpt("eval.max_iters").titan("validation.steps").llmc("-m").unit("batches × batch.global"),
    key("train.seed").megatron("seed").hf("seed").litgpt("seed").titan("training.seed"),
    key("train.device").nanogpt("device"),

    unneeded("the same command resumes; `gptrain import` starts from another model or trainer")
        .megatron("load finetune no_load_optim no_load_rng use_checkpoint_args override_opt_param_scheduler")
        .hf("resume_from_checkpoint overwrite_output_dir model_name_or_path").nanogpt("init_from")
        .litgpt("resume initial_checkpoint_dir")
        .titan("checkpoint.initial_load_path checkpoint.enable_checkpoint").llmc("-y"),
    unneeded("`gptrain wandb RUN` and `gptrain mlflow RUN` send a run's metrics")
        .megatron("wandb_project wandb_save_dir").hf("report_to").nanogpt("wandb_log wandb_project")
        .litgpt("logger_name log.project").titan("metrics.enable_wandb"),
    unneeded("the number of ranks is tensor × pipeline × data of `topology`; a launcher starts them, or \
              `run` itself")
        .megatron("world_size local_rank rank").hf("local_rank").litgpt("devices num_nodes")
        .short("gpus num_gpus nnodes nproc_per_node nodes world ngpu"),
    unneeded("NCCL between GPUs, TCP between CPUs: `comm.gpu_transport`").megatron("distributed_backend")
        .hf("ddp_backend").nanogpt("backend"),
    unneeded("the binary contains its kernels, fused where they can be").hf("torch_compile")
        .nanogpt("compile").titan("compile.enable training.compile")
        .megatron("transformer_impl use_mcore_models use_legacy_models bias_dropout_fusion \
                   masked_softmax_fusion no_bias_dropout_fusion no_masked_softmax_fusion no_rope_fusion \
                   gradient_accumulation_fusion"),
    unneeded("attention keeps no matrix of scores").megatron("use_flash_attn attention_backend")
        .hf("attn_implementation"),
    unneeded("communication runs beside computation whenever it can")
        .megatron("overlap_grad_reduce overlap_param_gather tp_comm_overlap ddp_bucket_size \
                   align_param_gather no_async_tensor_model_parallel_allreduce")
        .hf("zero_optimization.overlap_comm ddp_bucket_cap_mb")
        .titan("parallelism.enable_async_tensor_parallel"),
    unneeded("`topology.recompute` applies to every layer")
        .megatron("recompute_method recompute_num_layers recompute_modules checkpoint_num_layers \
                   distribute_saved_activations")
        .titan("activation_checkpoint.selective_ac_option"),
    unneeded("a thread of each rank reads ahead").megatron("num_workers dataloader_type")
        .hf("dataloader_num_workers").titan("training.gc_freq"),
    unneeded("a run saves and ends before its Slurm job does (`slurm.on_end`), and on SIGTERM; `--minutes` \
              sets a length")
        .megatron("exit_duration_in_mins exit_interval exit_signal_handler kill_switch_path")
        .litgpt("train.max_time"),
    unneeded("`train.eval_interval`, `checkpoint.interval` and `log.interval` say when; 0 is never for an \
              evaluation")
        .hf("eval_strategy evaluation_strategy save_strategy logging_strategy do_train do_eval")
        .litgpt("eval.initial_validation eval.final_validation").titan("validation.enable"),
    unneeded("`gptrain eval RUN` scores a checkpoint").nanogpt("eval_only").megatron("skip_train"),
    unneeded("every checkpoint is kept, unless `checkpoint.keep_last` is set")
        .nanogpt("always_save_checkpoint").hf("load_best_model_at_end")
        .titan("checkpoint.last_save_model_only"),
    unneeded("`gptrain run --trace` writes the spans of steps")
        .megatron("profile timing_log_level use_pytorch_profiler")
        .titan("profiling.enable_profiling profiling.profile_freq"),
    unneeded("each log line and metrics.jsonl have it")
        .megatron("log_throughput log_params_norm log_num_zeros_in_grad log_timers_to_tensorboard \
                   log_validation_ppl_to_tensorboard log_memory_to_tensorboard"),
    unneeded("samples are cut from a stream of tokens").hf("group_by_length remove_unused_columns"),
    unneeded("`gptrain export` writes a folder; `hf upload` sends it").hf("push_to_hub hub_model_id"),
    unneeded("text becomes tokens before a run: `gptrain data build`")
        .hf("preprocessing_num_workers streaming").litgpt("data.num_workers"),

    lacking("gptrain has no mixture of experts")
        .megatron("num_experts expert_model_parallel_size moe_router_topk moe_grouped_gemm \
                   moe_ffn_hidden_size")
        .hf("num_local_experts num_experts_per_tok").litgpt("model_config.n_expert")
        .titan("parallelism.expert_parallel_degree"),
    lacking("a sample is not divided among ranks; topology.sequence_parallel divides activations among the \
             tensor ranks")
        .megatron("context_parallel_size").titan("parallelism.context_parallel_degree").short("cp"),
    lacking("gptrain trains all weights").hf("peft_config lora_r").short("lora lora_rank"),
    lacking("gptrain trains without label smoothing").hf("label_smoothing_factor"),
    other_model("gptrain's residual comes before the norm")
        .megatron("apply_residual_connection_post_layernorm"),
    other_model("this gated layer is not one of gptrain's").megatron("glu_activation"),
    other_model("this activation is not one of gptrain's").megatron("squared_relu quick_geglu"),
    other_model("the moments are bitsandbytes' 8-bit ones").megatron("use_bnb_optimizer"),
    other_model("this attention is not one of gptrain's").megatron("multi_latent_attention"),
    other_model("gptrain predicts one token at a time").megatron("mtp_num_layers"),
];
