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
///
/// First come names that end with the same word, as `max_steps` for `num_steps`, those that share more words before
/// others; then names that are spelt alike.
pub(super) fn nearest(unknown: &str) -> Option<&'static str> {
    const LIKE_ENOUGH: f64 = 0.8;
    let unknown = unknown.to_lowercase();
    let known = || {
        let names = FIELDS.iter();
        names.flat_map(|(name, aliases)| std::iter::once(*name).chain(aliases.iter().copied()))
    };
    // Of equals the last one is taken: the most usual names stand first.
    let of_words = known()
        .rev()
        .map(|name| (name, shared_words(&unknown, name)))
        .filter(|(_, shared)| *shared > 0)
        .max_by_key(|(_, shared)| *shared);
    let of_letters = || {
        known()
            .map(|name| (name, strsim::jaro_winkler(&unknown, name)))
            .filter(|(_, likeness)| *likeness >= LIKE_ENOUGH)
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
    };
    let of_words = of_words.map(|(name, _)| name);
    of_words.or_else(|| of_letters().map(|(name, _)| name))
}

/// How many words two names share; none where they do not end with the same one.
fn shared_words(unknown: &str, known: &str) -> usize {
    let is_same = |a: &str, b: &str| {
        let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
        // `epoch` and `epochs`, `len` and `length`.
        let is_short_for = || long.len() - short.len() <= 3 && long.starts_with(short);
        short == long || (short.len() >= 3 && is_short_for())
    };
    let words: Vec<&str> = known.split('_').collect();
    let mut asked = unknown.rsplit('_').peekable();
    let ends_alike = asked
        .peek()
        .zip(words.last())
        .is_some_and(|(asked, known)| is_same(asked, known));
    match ends_alike {
        true => asked
            .filter(|asked| words.iter().any(|word| is_same(asked, word)))
            .count(),
        false => 0,
    }
}
