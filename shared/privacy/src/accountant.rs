//! How much the rounds of a session have given away: Rényi differential privacy of the Gaussian mechanism.

/// Orders at which the Rényi divergence is bounded; the best of them counts.
fn orders() -> impl Iterator<Item = f64> {
    let low = (1..100).map(|tenths| 1.0 + f64::from(tenths) / 10.0);
    let whole = (11..64).map(f64::from);
    let high = (6..21).map(|power| 2_f64.powi(power));
    low.chain(whole).chain(high)
}

/// The epsilon of `rounds` rounds in which a participant sent its change, each clipped to some norm C and with Gaussian
/// noise of standard deviation `noise_multiplier` C added to every value: all that was sent is (epsilon, `delta`)
/// differentially private with respect to whether the participant's own data were there or not (its change taken as 0).
///
/// A round is (a, a / (2 z^2))-Rényi private for every order a (Mironov 2017, <https://arxiv.org/abs/1702.07476>), rounds
/// add up, and the order that gives the least by the conversion of Balle et al. 2020
/// (<https://arxiv.org/abs/1905.09982>, theorem 21) counts. No round is left out by chance, so nothing is gained by
/// sampling. Infinite without noise, 0 without rounds.
pub fn epsilon(noise_multiplier: f64, rounds: u64, delta: f64) -> f64 {
    if rounds == 0 {
        return 0.0;
    }
    let of_order = |order: f64| {
        let renyi = rounds as f64 * order / (2.0 * noise_multiplier.powi(2));
        renyi + ((order - 1.0) / order).ln() - (delta.ln() + order.ln()) / (order - 1.0)
    };
    let least = orders().map(of_order).fold(f64::INFINITY, f64::min);
    least.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Known {
        noise_multiplier: f64,
        rounds: u64,
        delta: f64,
        renyi: f64,
        exact: f64,
    }

    #[test]
    fn epsilon_is_that_of_the_reference_and_never_below_the_exact_one() {
        let known: Vec<Known> =
            serde_json::from_str(include_str!("../../../tests/golden/gaussian_epsilon.json"))
                .unwrap();
        assert!(known.len() > 20);
        for case in known {
            let found = epsilon(case.noise_multiplier, case.rounds, case.delta);
            let label = format!("z {} rounds {}", case.noise_multiplier, case.rounds);
            assert!(
                (found - case.renyi).abs() <= 1e-9 * case.renyi,
                "{label}: {found}"
            );
            assert!(found >= case.exact, "{label}: {found} < {}", case.exact);
            assert!(
                found <= 1.25 * case.exact + 0.05,
                "{label}: {found} > {}",
                case.exact
            );
        }
    }

    #[test]
    fn no_round_gives_nothing_away_and_no_noise_everything() {
        assert_eq!(epsilon(1.0, 0, 1e-5), 0.0);
        assert_eq!(epsilon(0.0, 1, 1e-5), f64::INFINITY);
    }

    #[test]
    fn every_round_costs_and_noise_saves() {
        assert!(epsilon(1.0, 2, 1e-5) > epsilon(1.0, 1, 1e-5));
        assert!(epsilon(2.0, 1, 1e-5) < epsilon(1.0, 1, 1e-5));
        assert!(epsilon(1.0, 1, 1e-6) > epsilon(1.0, 1, 1e-5));
    }
}
