//! For cargo-fuzz: see `trainyard_fuzz::safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| trainyard_fuzz::safetensors(input));
