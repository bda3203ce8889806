//! The names of a config's fields: the wire's own, and the other spellings that are taken for them.

/// A field's name on the wire and its aliases.
pub(super) const FIELDS: &[(&str, &[&str])] = &[
    ("epochs", &["num_train_epochs", "num_epochs"]),
    ("max_steps", &[]),
    (
        "batch_size",
        &["per_device_train_batch_size", "train_batch_size"],
    ),
    ("gradient_accumulation_steps", &["accumulation_steps"]),
    ("learning_rate", &["lr"]),
    ("lr_scheduler_type", &["lr_scheduler"]),
    ("warmup_steps", &[]),
    ("warmup_ratio", &[]),
    ("weight_decay", &[]),
    ("adam_beta1", &[]),
    ("adam_beta2", &[]),
    ("adam_epsilon", &["adam_eps"]),
    ("max_grad_norm", &["gradient_clipping"]),
    ("mixed_precision", &[]),
    // Booleans of transformers that stand for one value of `mixed_precision`.
    ("bf16", &[]),
    ("fp16", &[]),
    ("seed", &[]),
    ("logging_steps", &[]),
    ("save_steps", &[]),
    ("save_total_limit", &[]),
    ("gradient_checkpointing", &[]),
    ("use_peft", &["use_lora"]),
    ("lora_r", &["r", "lora_rank"]),
    ("lora_alpha", &["alpha"]),
    ("lora_dropout", &["dropout"]),
    ("target_modules", &["lora_target_modules"]),
    ("use_rslora", &[]),
    ("rank_pattern", &[]),
    ("alpha_pattern", &[]),
    ("modules_to_save", &[]),
    ("packing", &[]),
    ("max_length", &["max_seq_length"]),
    ("train_on", &[]),
    ("eval_split", &[]),
    ("eval_steps", &[]),
    ("early_stopping_patience", &[]),
    ("load_best_model_at_end", &[]),
    ("resume_from_checkpoint", &[]),
    ("load_in_4bit", &[]),
    ("load_in_8bit", &[]),
    ("low_memory", &[]),
    ("use_dora", &[]),
];

/// Switches that people know and that are refused when they are on.
pub(super) const NOT_SUPPORTED: &[&str] = &["use_dora"];

/// The other spellings of a field.
pub(super) fn aliases(name: &str) -> &'static [&'static str] {
    FIELDS
        .iter()
        .find(|(field, _)| *field == name)
        .map_or(&[], |(_, aliases)| aliases)
}

/// The known name, alias or not, that is most like `unknown`; none when nothing is like it.
pub(super) fn nearest(unknown: &str) -> Option<&'static str> {
    const LIKE_ENOUGH: f64 = 0.8;
    let unknown = unknown.to_lowercase();
    FIELDS
        .iter()
        .flat_map(|(name, aliases)| std::iter::once(name).chain(*aliases))
        .map(|name| (*name, strsim::jaro_winkler(&unknown, name)))
        .filter(|(_, likeness)| *likeness >= LIKE_ENOUGH)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(name, _)| name)
}
