//! How much a core's second-level cache holds, by which products are cut into parts.

use std::sync::OnceLock;

/// Bytes of a core's own second-level cache; 512 KiB where the system does not tell.
pub(crate) fn second_level_cache() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let told = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size");
        let kibibytes = told.ok().and_then(|size| {
            let digits = size.trim().strip_suffix('K')?;
            digits.parse::<usize>().ok()
        });
        kibibytes.unwrap_or(512).clamp(128, 4096) * 1024
    })
}
