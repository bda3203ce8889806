//! For cargo-fuzz: see `trainyard_fuzz::chat_template`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| trainyard_fuzz::chat_template(input));
