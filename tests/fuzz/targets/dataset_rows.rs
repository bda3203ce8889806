//! For cargo-fuzz: see `trainyard_fuzz::dataset_rows`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| trainyard_fuzz::dataset_rows(input));
