//! The training engine: a library with no messages and no network I/O.
