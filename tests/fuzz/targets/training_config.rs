//! For cargo-fuzz: see `trainyard_fuzz::training_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| trainyard_fuzz::training_config(input));
