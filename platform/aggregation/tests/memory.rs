//! What a merge takes of memory. A process of its own: nothing else may run beside what is measured.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;

use trainyard_aggregation::{GlobalAdapter, Merge, Rule, Update, merge};
use trainyard_engine::export::{FloatType, PlannedTensor, safetensors_header};

const RESULTS: usize = 64;
const TENSORS: usize = 4;
const VALUES: usize = 1 << 19;
/// Workspaces of 64 MiB, the global adapter, which is mapped and counted with what has been read of it, and threads.
/// The results have 512 MiB.
const MOST_BYTES: u64 = 96 << 20;

/// The most memory that this process has ever had at once, in bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    1024 * kilobytes.parse::<u64>().unwrap()
}

fn write_adapter(path: &Path, value: f32) {
    let tensor = |number: usize| PlannedTensor {
        name: format!("t{number}"),
        shape: vec![VALUES],
        float_type: FloatType::F32,
    };
    let mut file = safetensors_header(&(0..TENSORS).map(tensor).collect::<Vec<_>>());
    file.extend(std::iter::repeat_n(value.to_le_bytes(), TENSORS * VALUES).flatten());
    fs::write(path, file).unwrap();
}

#[test]
fn the_memory_of_a_merge_does_not_grow_with_the_number_of_results() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_adapter(&path("global"), 0.5);
    write_adapter(&path("result"), 0.75);
    let global = GlobalAdapter::open(&path("global")).unwrap();
    let updates: Vec<Update> = (0..RESULTS)
        .map(|number| Update {
            name: format!("{number:02}"),
            path: path("result"),
            weight: 1,
            delta_norm: 1.0,
        })
        .collect();
    let before = peak_bytes();
    for rule in [Rule::Nesterov, Rule::Median] {
        let to_merge = Merge {
            global: &global,
            velocity: None,
            updates: &updates,
            rule,
            outer_lr: 1.0,
            outer_momentum: 0.5,
            threads: 2,
        };
        let merged = merge(&to_merge, &path("next"), &path("velocity"), &|| false).unwrap();
        assert_eq!(merged.kept.len(), RESULTS);
        let taken = peak_bytes() - before;
        assert!(taken < MOST_BYTES, "{rule}: {taken} bytes");
    }
}
