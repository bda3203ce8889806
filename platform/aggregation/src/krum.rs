//! Krum: the result that is nearest to its neighbours.

/// Which of `results` to take, by their squared distances to one another ([`pair`] says where each stands).
///
/// Of n results up to f = (n - 3) / 2 may be hostile; a result's score is the sum of the squared distances to the
/// n - f - 2 others that are nearest, and the smallest score wins, the first one of equals.
pub(crate) fn choose(results: usize, squared_distances: &[f64]) -> usize {
    let hostile = results.saturating_sub(3) / 2;
    let neighbours = results.saturating_sub(hostile + 2);
    let score = |one: usize| -> f64 {
        let others = (0..results).filter(|other| *other != one);
        let mut distances: Vec<f64> = others
            .map(|other| squared_distances[pair(one.min(other), one.max(other))])
            .collect();
        distances.sort_by(f64::total_cmp);
        distances.iter().take(neighbours).sum()
    };
    let scores: Vec<f64> = (0..results).map(score).collect();
    let best = (0..results).min_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    best.unwrap_or(0)
}

/// Where the distance of two results stands; `low` is the smaller of their numbers.
pub(crate) fn pair(low: usize, high: usize) -> usize {
    high * (high - 1) / 2 + low
}

/// Number of pairs.
pub(crate) fn pairs(results: usize) -> usize {
    results * results.saturating_sub(1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_of(places: &[f64]) -> usize {
        let mut distances = vec![0.0; pairs(places.len())];
        for high in 1..places.len() {
            for low in 0..high {
                distances[pair(low, high)] = (places[low] - places[high]).powi(2);
            }
        }
        choose(places.len(), &distances)
    }

    #[test]
    fn the_one_amid_the_largest_group_is_chosen_whatever_a_minority_agrees_on() {
        assert_eq!(chosen_of(&[1.0, 1.1, 1.3, 50.0, 50.0]), 1);
        assert_eq!(chosen_of(&[9.0, 0.0, 0.2, 0.1, -40.0, 0.4, 0.15]), 3);
    }

    #[test]
    fn of_equals_the_first_is_chosen() {
        assert_eq!(chosen_of(&[2.0, 2.0, 2.0]), 0);
    }
}
