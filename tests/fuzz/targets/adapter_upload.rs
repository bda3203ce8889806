//! For cargo-fuzz: see `trainyard_fuzz::adapter_upload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| trainyard_fuzz::adapter_upload(input));
