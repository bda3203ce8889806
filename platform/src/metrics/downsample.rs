//! Fewer points of a curve without losing its shape: largest-triangle-three-buckets (Steinarsson 2013). Pure.
//!
//! The first and the last point stay. The points between are cut into buckets of equal size; of each bucket
//! the point stays that makes the largest triangle with the one that stayed before it and the mean of the
//! next bucket. A point that is not finite always wins its bucket: a gap must not vanish.

/// Indices of the points that stay, in order; all of them if there are no more than `threshold`.
pub fn largest_triangles(points: &[(f64, f64)], threshold: usize) -> Vec<usize> {
    let count = points.len();
    if count <= threshold || threshold < 3 {
        return if threshold < 3 && count > threshold {
            (0..count).take(threshold).collect()
        } else {
            (0..count).collect()
        };
    }
    let buckets = threshold - 2;
    let bound = |bucket: usize| 1 + bucket * (count - 2) / buckets;
    let mut kept = Vec::with_capacity(threshold);
    let mut last = 0;
    kept.push(0);
    for bucket in 0..buckets {
        let (from, to) = (bound(bucket), bound(bucket + 1));
        let next_mean = mean(&points[to..bound(bucket + 2).min(count).max(to + 1)]);
        let largest = (from..to)
            .map(|index| (index, area(points[last], points[index], next_mean)))
            .fold(None::<(usize, f64)>, |best, (index, area)| match best {
                Some((_, best_area)) if best_area >= area => best,
                _ => Some((index, area)),
            });
        if let Some((index, _)) = largest {
            kept.push(index);
            last = index;
        }
    }
    kept.push(count - 1);
    kept
}

/// Twice the triangle's area, without regard to corners that are not finite; infinite if `b` is not finite.
fn area(a: (f64, f64), b: (f64, f64), c: (f64, f64)) -> f64 {
    if !b.1.is_finite() {
        return f64::INFINITY;
    }
    let or_level = |y: f64| if y.is_finite() { y } else { b.1 };
    let (ay, cy) = (or_level(a.1), or_level(c.1));
    ((a.0 - c.0) * (b.1 - ay) - (a.0 - b.0) * (cy - ay)).abs()
}

/// The mean of the finite points; not finite where there are none.
fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let x = points.iter().map(|point| point.0).sum::<f64>() / points.len() as f64;
    let finite: Vec<f64> = points
        .iter()
        .map(|point| point.1)
        .filter(|y| y.is_finite())
        .collect();
    if finite.is_empty() {
        return (x, f64::NAN);
    }
    (x, finite.iter().sum::<f64>() / finite.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(count: usize, y: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
        (0..count).map(|index| (index as f64, y(index))).collect()
    }

    #[test]
    fn few_points_all_stay() {
        let points = curve(10, |x| x as f64);
        assert_eq!(largest_triangles(&points, 10), (0..10).collect::<Vec<_>>());
        assert_eq!(largest_triangles(&[], 5), Vec::<usize>::new());
    }

    #[test]
    fn as_many_points_stay_as_asked_for_in_order_with_both_ends() {
        let points = curve(10_000, |x| (x as f64 / 100.0).sin());
        for threshold in [3, 4, 100, 999, 1000, 9_999] {
            let kept = largest_triangles(&points, threshold);
            assert_eq!(kept.len(), threshold);
            assert!(kept.is_sorted_by(|a, b| a < b));
            assert_eq!((kept[0], kept[threshold - 1]), (0, 9_999));
        }
    }

    #[test]
    fn a_single_spike_stays() {
        let points = curve(10_000, |x| if x == 4_321 { 100.0 } else { 1.0 });
        assert!(largest_triangles(&points, 50).contains(&4_321));
    }

    #[test]
    fn g036_a_point_that_is_not_finite_stays() {
        let points = curve(10_000, |x| if x == 4_321 { f64::NAN } else { 1.0 });
        assert!(largest_triangles(&points, 50).contains(&4_321));
        let all = curve(1_000, |_| f64::NAN);
        assert_eq!(largest_triangles(&all, 50).len(), 50);
    }
}
