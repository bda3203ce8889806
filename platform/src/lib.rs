//! The platform.
