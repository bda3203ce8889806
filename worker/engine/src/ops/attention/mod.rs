//! Causal grouped-query attention over packed sequences, without a matrix of all pairs of tokens.
//!
//! For a query t of head h, over the keys j of its own sequence up to t (the last `window` of them where there is a
//! window), with the key/value head of h's group:
//! ```text
//! s[j] = q[t] . k[j] / sqrt(dim)      lse[t] = ln sum_j e^s[j]      p[j] = e^(s[j] - lse[t])
//! o[t] = sum_j p[j] v[j]
//! dv[j] += p[j] do[t]                 delta[t] = do[t] . o[t]       ds[j] = p[j] (do[t] . v[j] - delta[t]) / sqrt(dim)
//! dq[t]  = sum_j ds[j] k[j]           dk[j] += ds[j] q[t]
//! ```
//! Scores exist only for one block of queries and a few blocks of keys at a time, with a running maximum and sum
//! (Flash-Attention); the backward pass computes them again from `lse`.

mod cpu;

pub(crate) use cpu::attend_one;

use crate::{
    device::{Activations, ActivationsMut, LANES, padded_tokens},
    profile::{Operation, Timed},
};

/// Number and width of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key/value heads, each shared by `queries / keys` query heads.
    pub keys: usize,
    /// Width of one head.
    pub dim: usize,
}

impl Heads {
    /// The key/value head that a query head uses.
    fn key_of(&self, head: usize) -> usize {
        head / (self.queries / self.keys)
    }

    /// 1 / sqrt(dim).
    fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }
}

/// For every token the first one that it may attend to; for lanes past the last token none.
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    starts: &'a [f32],
    offsets: &'a [usize],
}

/// Tokens that are counted exactly in `f32`, in which positions are compared.
const MAX_TOKENS: usize = 1 << 24;

impl<'a> Sequences<'a> {
    /// From sequence boundaries; `storage` holds one value per token in whole blocks. `positions` tells each token's
    /// place in its sequence, and with `window` a token sees no more than so many keys, its own among them.
    pub fn new(
        storage: &'a mut [f32],
        offsets: &'a [usize],
        positions: &[u32],
        window: Option<usize>,
    ) -> Self {
        let tokens = offsets.last().copied().unwrap_or(0);
        assert!(tokens <= MAX_TOKENS, "{tokens} tokens at once");
        let starts = &mut storage[..padded_tokens(tokens)];
        starts.fill(f32::INFINITY);
        for bounds in offsets.windows(2) {
            let tokens = starts[bounds[0]..bounds[1]].iter_mut();
            for (start, &position) in tokens.zip(&positions[bounds[0]..bounds[1]]) {
                let hidden =
                    window.map_or(0, |window| (position as usize + 1).saturating_sub(window));
                *start = (bounds[0] + hidden) as f32;
            }
        }
        Self { starts, offsets }
    }

    /// What one product of all queries with the keys that they see takes, over all heads.
    fn product_flops(&self, heads: Heads) -> usize {
        let lengths = self.offsets.windows(2).map(|bounds| bounds[1] - bounds[0]);
        let pairs: usize = lengths.map(|length| length * (length + 1) / 2).sum();
        2 * pairs * heads.queries * heads.dim
    }

    /// The starts of one block's lanes.
    fn block(&self, block: usize) -> &'a [f32] {
        &self.starts[block * LANES..][..LANES]
    }
}

/// `o` `[tokens, queries * dim]` and `lse` `[tokens, queries]` from `q`, `k` and `v`.
///
/// `k` and `v` may reach further back than `q`: the first of q's blocks is block `first_block` of theirs, and
/// `sequences` speaks of q's tokens in k's numbering.
pub fn attention_forward(
    o: &mut ActivationsMut<'_>,
    lse: &mut [f32],
    (q, k, v): (Activations<'_>, Activations<'_>, Activations<'_>),
    sequences: Sequences<'_>,
    first_block: usize,
    heads: Heads,
) {
    assert_eq!((o.width(), o.blocks()), (q.width(), q.blocks()));
    assert_eq!(q.width(), heads.queries * heads.dim);
    assert_eq!(
        (k.width(), v.width()),
        (heads.keys * heads.dim, heads.keys * heads.dim)
    );
    assert!(k.blocks() >= first_block + q.blocks() && v.blocks() == k.blocks());
    assert_eq!(lse.len(), q.blocks() * LANES * heads.queries);
    let _timed = Timed::begin(Operation::Attention, 2 * sequences.product_flops(heads));
    cpu::forward(o, lse, (q, k, v), sequences, first_block, heads);
}

/// Sets `dq`, `dk` and `dv`.
///
/// `scratch` needs [`attention_scratch`] values.
pub fn attention_backward(
    (dq, dk, dv): (
        &mut ActivationsMut<'_>,
        &mut ActivationsMut<'_>,
        &mut ActivationsMut<'_>,
    ),
    (d_o, o, lse): (Activations<'_>, Activations<'_>, &[f32]),
    (q, k, v): (Activations<'_>, Activations<'_>, Activations<'_>),
    sequences: Sequences<'_>,
    heads: Heads,
    scratch: &mut [f32],
) {
    let blocks = q.blocks();
    assert_eq!((dq.width(), dq.blocks()), (q.width(), blocks));
    assert_eq!(
        (d_o.width(), o.width(), d_o.blocks(), o.blocks()),
        (q.width(), q.width(), blocks, blocks)
    );
    for keys in [k, v, dk.view(), dv.view()] {
        assert_eq!(
            (keys.width(), keys.blocks()),
            (heads.keys * heads.dim, blocks)
        );
    }
    assert_eq!(lse.len(), blocks * LANES * heads.queries);
    let _timed = Timed::begin(
        Operation::AttentionGradient,
        5 * sequences.product_flops(heads),
    );
    let sums = cpu::per_head(dq, (d_o, o, lse), (q, k, v), sequences, heads, scratch);
    cpu::sum_groups((dk, dv), sums, heads);
}

/// Values of scratch that [`attention_backward`] needs.
pub fn attention_scratch(blocks: usize, heads: Heads) -> usize {
    heads.queries * 2 * blocks * LANES * heads.dim.next_multiple_of(LANES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_values::{Checked, assert_close, blocks, values};

    fn positions(offsets: &[usize]) -> Vec<u32> {
        offsets
            .windows(2)
            .flat_map(|w| 0..(w[1] - w[0]) as u32)
            .collect()
    }

    fn reference(
        inputs: &[Vec<f64>],
        offsets: &[usize],
        heads: Heads,
        window: Option<usize>,
    ) -> Vec<f64> {
        let Heads { queries, keys, dim } = heads;
        let row = |x: &[f64], width: usize, token: usize, head: usize| -> Vec<f64> {
            x[token * width + head * dim..][..dim].to_vec()
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut o = Vec::new();
        for bounds in offsets.windows(2) {
            for t in bounds[0]..bounds[1] {
                let first = window.map_or(0, |window| (t + 1).saturating_sub(window));
                let seen = first.max(bounds[0])..=t;
                for head in 0..queries {
                    let q = row(&inputs[0], queries * dim, t, head);
                    let group = head / (queries / keys);
                    let scores: Vec<f64> = seen
                        .clone()
                        .map(|j| {
                            (dot(&q, &row(&inputs[1], keys * dim, j, group)) / (dim as f64).sqrt())
                                .exp()
                        })
                        .collect();
                    let sum: f64 = scores.iter().sum();
                    let mut out = vec![0.0; dim];
                    for (j, score) in seen.clone().zip(&scores) {
                        for (out, v) in out.iter_mut().zip(row(&inputs[2], keys * dim, j, group)) {
                            *out += score / sum * v;
                        }
                    }
                    o.extend(out);
                }
            }
        }
        o
    }

    fn check(offsets: &[usize], heads: Heads) {
        check_window(offsets, heads, None);
    }

    fn check_window(offsets: &[usize], heads: Heads, window: Option<usize>) {
        let tokens = offsets[offsets.len() - 1];
        let (wide, narrow) = (heads.queries * heads.dim, heads.keys * heads.dim);
        let scaled =
            |seed, len| -> Vec<f32> { values(seed, len).iter().map(|v| 2.0 * v).collect() };
        let (q, k) = (scaled(1, tokens * wide), scaled(2, tokens * narrow));
        let (v, d_o) = (values(3, tokens * narrow), values(4, tokens * wide));
        let [qb, kb, vb, dob] = [&q, &k, &v, &d_o].map(|x| blocks(x, tokens));
        let (qa, ka) = (Activations::new(&qb, wide), Activations::new(&kb, narrow));
        let (va, doa) = (Activations::new(&vb, narrow), Activations::new(&dob, wide));
        let mut starts = vec![f32::NAN; padded_tokens(tokens)];
        let sequences = Sequences::new(&mut starts, offsets, &positions(offsets), window);
        let mut o = vec![f32::NAN; qb.len()];
        let mut o = ActivationsMut::new(&mut o, wide);
        let mut lse = vec![f32::NAN; qa.blocks() * LANES * heads.queries];
        attention_forward(&mut o, &mut lse, (qa, ka, va), sequences, 0, heads);

        let (mut dq, mut dk, mut dv) = (
            vec![f32::NAN; qb.len()],
            vec![f32::NAN; kb.len()],
            vec![f32::NAN; kb.len()],
        );
        let mut dq = ActivationsMut::new(&mut dq, wide);
        let (mut dk, mut dv) = (
            ActivationsMut::new(&mut dk, narrow),
            ActivationsMut::new(&mut dv, narrow),
        );
        let mut scratch = vec![f32::NAN; attention_scratch(qa.blocks(), heads)];
        attention_backward(
            (&mut dq, &mut dk, &mut dv),
            (doa, o.view(), &lse),
            (qa, ka, va),
            sequences,
            heads,
            &mut scratch,
        );
        let rows = [&dq, &dk, &dv].map(|g| g.view().to_rows(tokens));
        Checked::new(&o.view().to_rows(tokens), 2e-6)
            .forward(
                |inputs| reference(inputs, offsets, heads, window),
                &[&q, &k, &v],
            )
            .gradients(&d_o, &[&rows[0], &rows[1], &rows[2]], 1e-5);
        for gradient in [dq.view(), dk.view(), dv.view(), o.view()] {
            for token in tokens..padded_tokens(tokens) {
                assert!(
                    gradient.token(token).all(|g| g == 0.0),
                    "lanes past the last token are zero"
                );
            }
        }
    }

    #[test]
    fn one_sequence_agrees_with_finite_differences() {
        check(
            &[0, 45],
            Heads {
                queries: 2,
                keys: 1,
                dim: 8,
            },
        );
    }

    #[test]
    fn packed_sequences_do_not_see_each_other() {
        check(
            &[0, 1, 20, 37, 70, 71],
            Heads {
                queries: 4,
                keys: 2,
                dim: 6,
            },
        );
    }

    #[test]
    fn gradients_of_sequences_in_one_block_do_not_depend_on_who_is_first() {
        let heads = Heads {
            queries: 16,
            keys: 16,
            dim: 4,
        };
        let (tokens, width) = (padded_tokens(25), heads.queries * heads.dim);
        let [q, k, v, d_o, o] = [1, 2, 3, 4, 5].map(|seed| values(seed, tokens * width));
        let [q, k, v, d_o, o] = [&q, &k, &v, &d_o, &o].map(|x| Activations::new(x, width));
        let lse = vec![2.0; tokens * heads.queries];
        let offsets = [0, 3, 9, 14, 25];
        let mut starts = vec![0.0; tokens];
        let sequences = Sequences::new(&mut starts, &offsets, &positions(&offsets), None);
        let gradients = || {
            let mut gradients = [(); 3].map(|()| vec![f32::NAN; tokens * width]);
            let mut scratch = vec![f32::NAN; attention_scratch(q.blocks(), heads)];
            let [mut dq, mut dk, mut dv] =
                gradients.each_mut().map(|g| ActivationsMut::new(g, width));
            attention_backward(
                (&mut dq, &mut dk, &mut dv),
                (d_o, o, &lse),
                (q, k, v),
                sequences,
                heads,
                &mut scratch,
            );
            gradients
        };
        let pool = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build().unwrap()
        };
        let alone = pool(1).install(gradients);
        pool(4).install(|| {
            for _ in 0..100 {
                assert!(gradients() == alone, "gradients differ by who was first");
            }
        });
    }

    #[test]
    fn heads_wider_than_a_block_and_many_blocks_of_keys_work() {
        check(
            &[0, 3, 140],
            Heads {
                queries: 1,
                keys: 1,
                dim: 40,
            },
        );
    }

    #[test]
    fn a_window_hides_keys_behind_it_within_and_across_blocks() {
        let heads = Heads {
            queries: 2,
            keys: 1,
            dim: 6,
        };
        for window in [1, 7, 33, 70] {
            check_window(&[0, 5, 110], heads, Some(window));
        }
    }

    #[test]
    fn one_token_sees_what_the_last_of_a_sequence_does() {
        let heads = Heads {
            queries: 4,
            keys: 2,
            dim: 10,
        };
        let (tokens, wide, narrow) = (100, 40, 20);
        let (q, k, v) = (
            values(1, wide),
            values(2, tokens * narrow),
            values(3, tokens * narrow),
        );
        let [kb, vb] = [&k, &v].map(|x| blocks(x, tokens));
        let cached = (Activations::new(&kb, narrow), Activations::new(&vb, narrow));
        let all_q: Vec<f32> = std::iter::repeat_n(0.0, (tokens - 1) * wide)
            .chain(q.iter().copied())
            .collect();
        for window in [1, 3, 40, 99, 100] {
            let seen = tokens - window..tokens;
            let mut scores = vec![f32::NAN; padded_tokens(tokens)];
            let mut o = vec![f32::NAN; wide];
            let all = o.chunks_mut(heads.dim).zip(q.chunks(heads.dim));
            for (head, pair) in all.enumerate() {
                attend_one(
                    pair.0,
                    pair.1,
                    cached,
                    seen.clone(),
                    (heads, head),
                    &mut scores,
                );
            }
            let inputs = [&all_q, &k, &v].map(|x| x.iter().map(|x| f64::from(*x)).collect());
            let all = reference(&inputs, &[0, tokens], heads, Some(window));
            assert_close("o", &o, &all[(tokens - 1) * wide..], 2e-6);
        }
    }
}
