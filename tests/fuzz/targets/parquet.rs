//! For cargo-fuzz: see `trainyard_fuzz::parquet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| trainyard_fuzz::parquet(input));
