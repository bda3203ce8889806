//! Which vector instructions compute: the widest that the machine has, or fewer where the environment asks for it.

use std::sync::OnceLock;

use pulp::Arch;

/// Names the widest instructions to use: `amx`, `avx512`, `avx2` or `none`. What the machine does not have is never used.
/// Where nothing is said, AMX multiplies weights of bf16; `amx` has it multiply all. Any other word is taken for `avx512`.
/// For comparing machines; read once.
pub const INSTRUCTIONS: &str = "TRAINYARD_INSTRUCTIONS";

/// The instructions that this process computes with.
#[inline]
pub(crate) fn instructions() -> Arch {
    static CHOSEN: OnceLock<Arch> = OnceLock::new();
    *CHOSEN.get_or_init(|| at_most(&std::env::var(INSTRUCTIONS).unwrap_or_default()))
}

/// Whether the environment leaves the matrix unit to be used.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn may_use_matrix_unit() -> bool {
    matches!(
        std::env::var(INSTRUCTIONS).as_deref(),
        Err(_) | Ok("" | "amx")
    )
}

/// Whether the environment asks for the matrix unit whatever the weights.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn wants_matrix_unit_for_f32() -> bool {
    std::env::var(INSTRUCTIONS).as_deref() == Ok("amx")
}

/// The machine's own, or narrower ones.
#[cfg(target_arch = "x86_64")]
fn at_most(widest: &str) -> Arch {
    match widest {
        "none" => Arch::Scalar,
        "avx2" => pulp::x86::V3::try_new().map_or(Arch::Scalar, Arch::V3),
        _ => Arch::new(),
    }
}

/// The machine's own, or none.
#[cfg(not(target_arch = "x86_64"))]
fn at_most(widest: &str) -> Arch {
    match widest {
        "none" => Arch::Scalar,
        _ => Arch::new(),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_environment_can_only_narrow_what_the_machine_has() {
        assert!(matches!(at_most("none"), Arch::Scalar));
        assert!(matches!(at_most("avx2"), Arch::V3(_) | Arch::Scalar));
        for name in ["", "avx512", "anything"] {
            let same =
                std::mem::discriminant(&at_most(name)) == std::mem::discriminant(&Arch::new());
            assert!(same, "{name}");
        }
    }
}
