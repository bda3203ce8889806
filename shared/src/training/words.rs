//! The fields of a config whose values are words.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

/// How the learning rate goes after its warmup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Falls in a straight line; the last step still has a rate above 0.
    #[default]
    Linear,
    /// Falls as half a cosine.
    Cosine,
    /// Stays, without a warmup.
    Constant,
    /// Stays, after the warmup.
    ConstantWithWarmup,
}

impl ScheduleKind {
    pub(super) const WORDS: &'static [(&'static str, Self)] = &[
        ("linear", Self::Linear),
        ("cosine", Self::Cosine),
        ("constant", Self::Constant),
        ("constant_with_warmup", Self::ConstantWithWarmup),
    ];
}

/// What is calculated in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MixedPrecision {
    /// bf16 on a GPU, f32 on a CPU.
    #[default]
    Auto,
    /// bfloat16 where the device has it.
    Bf16,
    /// IEEE half precision where the device has it.
    Fp16,
    /// Single precision everywhere.
    F32,
}

impl MixedPrecision {
    pub(super) const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("bf16", Self::Bf16),
        ("fp16", Self::Fp16),
        ("f32", Self::F32),
        ("bfloat16", Self::Bf16),
        ("f16", Self::Fp16),
        ("float16", Self::Fp16),
        ("fp32", Self::F32),
        ("float32", Self::F32),
        ("no", Self::F32),
        ("none", Self::F32),
    ];
}

/// Which tokens the loss falls on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainOn {
    /// By the row's shape: `assistant` for chats, `completion` for pairs, `all` for text.
    #[default]
    Auto,
    /// What the assistant says, its end-of-turn tokens included.
    Assistant,
    /// What follows the prompt.
    Completion,
    /// Every token.
    All,
}

impl TrainOn {
    pub(super) const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("assistant", Self::Assistant),
        ("completion", Self::Completion),
        ("all", Self::All),
    ];
}

/// Which linear layers get an adapter, with PEFT's meaning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TargetModules {
    /// `"all-linear"`: every linear layer but the output embedding.
    #[default]
    AllLinear,
    /// A list: layers whose name is one of these, or ends with `.` and one of these.
    Names(Vec<String>),
    /// One text: a regular expression that matches the whole name.
    Pattern(String),
}

impl TargetModules {
    /// The word for [`TargetModules::AllLinear`].
    pub const ALL_LINEAR: &'static str = "all-linear";
}

impl Serialize for TargetModules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AllLinear => serializer.serialize_str(Self::ALL_LINEAR),
            Self::Names(names) => names.serialize(serializer),
            Self::Pattern(pattern) => serializer.serialize_str(pattern),
        }
    }
}
