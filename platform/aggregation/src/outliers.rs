//! Which results went so much further than the others that they are left out.

/// Norms above so many times the median are left out.
const FACTOR: f64 = 5.0;
/// Of fewer results nothing is left out: two cannot tell which of them is wrong.
const FEWEST: usize = 3;

/// The delta norm above which a result is left out, if any is to be.
///
/// The median itself is never above five times itself, so at least half of the results stay. A median of 0 says that
/// most results changed nothing, which makes no other one wrong.
pub(crate) fn limit(delta_norms: &[f64]) -> Option<f64> {
    if delta_norms.len() < FEWEST {
        return None;
    }
    let median = median(delta_norms);
    (median > 0.0).then_some(FACTOR * median)
}

/// The value in the middle; of an even number the mean of the two there.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_results_are_needed_to_call_one_of_them_wrong() {
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[1.0, 1e9]), None);
        assert_eq!(limit(&[1.0, 2.0, 1e9]), Some(10.0));
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle() {
        assert_eq!(limit(&[4.0, 1.0, 100.0, 2.0]), Some(15.0));
    }

    #[test]
    fn nothing_is_left_out_where_most_results_changed_nothing() {
        assert_eq!(limit(&[0.0, 0.0, 7.0]), None);
    }
}
