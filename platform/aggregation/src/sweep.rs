//! Goes over the pieces of an adapter: several are computed at once on all threads, and taken one by one in order.

use rayon::prelude::*;

use crate::pieces::Piece;

/// Pieces a thread that are computed while those before them are taken.
const PIECES_PER_THREAD: usize = 4;
/// Bytes that all workspaces together may take up, as long as there is one to compute in and one to take.
const WORKSPACE_BYTES: usize = 64 << 20;

/// Computes every piece, each into a workspace of its own, and gives the workspaces to `take` in the pieces' order.
/// There are never more than a few workspaces, fewer where one takes up many bytes, and none is computed before those far
/// ahead of it are taken.
///
/// # Errors
/// The first thing that `compute` or `take` answers; nothing more is taken after it.
pub(crate) fn sweep<W: Default + Send + Sync, E: Send>(
    pieces: &[Piece],
    bytes_of_one: usize,
    compute: impl Fn(&mut W, &Piece) -> Result<(), E> + Sync,
    mut take: impl FnMut(&W) -> Result<(), E> + Send,
) -> Result<(), E> {
    let most = PIECES_PER_THREAD * rayon::current_num_threads();
    let width = (WORKSPACE_BYTES / 2 / bytes_of_one.max(1)).clamp(1, most);
    let workspaces = || (0..width).map(|_| W::default()).collect::<Vec<W>>();
    let (mut ready, mut next) = (workspaces(), workspaces());
    let mut full = 0;
    for wave in pieces.chunks(width) {
        let (taken, computed) = rayon::join(
            || ready[..full].iter().try_for_each(&mut take),
            || {
                let each = next[..wave.len()].par_iter_mut().zip(wave);
                each.try_for_each(|(workspace, piece)| compute(workspace, piece))
            },
        );
        taken.and(computed)?;
        std::mem::swap(&mut ready, &mut next);
        full = wave.len();
    }
    ready[..full].iter().try_for_each(take)
}
