//! For cargo-fuzz: see `trainyard_fuzz::message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| trainyard_fuzz::message(input));
