//! The platform binary.
fn main() {}
