//! The wire of Trainyard.
