//! What keeps a participant's contribution to a federated round private, each by itself or both together:
//!
//! - differential privacy ([`GaussianMechanism`], [`epsilon`]): the participant clips its change and adds noise before
//!   anybody sees it; what can be learnt of its data from all that it sends is bounded by epsilon;
//! - secure aggregation ([`secure`]): participants mask their changes such that only the sum of all can be read.
//!
//! `docs/privacy.md` says what each protects against, and what not. No I/O here.

mod accountant;
mod gaussian;
pub mod secure;

pub use accountant::epsilon;
pub use gaussian::{GaussianMechanism, GaussianNoise, InvalidMechanism};
