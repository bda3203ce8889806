//! Tokens of running answers on their way to the socket: in order, merged while it is slow, and never with a gap.
//!
//! Tokens are not acknowledged, so what a broken link has swallowed is not known. An answer whose tokens
//! went onto a link that broke sends no more of them: its end brings the whole text.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trainyard_shared::ids::InferenceId;
use trainyard_shared::message::{FromWorker, InferenceTokens, InferenceTokensData};

/// Text of one message, in bytes: far below the limit of a frame, also where JSON needs six bytes for one.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Tokens of one message (source: "batched: 5 tokens or 50ms").
const BATCH_TOKENS: usize = 5;
/// With more than this waiting the socket is slow: then messages hold as many as fit.
const SLOW_TOKENS: usize = 20 * BATCH_TOKENS;

/// The tokens that wait. Shared by the answers and the connection.
#[derive(Debug, Clone, Default)]
pub struct WaitingTokens(Arc<Mutex<VecDeque<Answer>>>);

#[derive(Debug)]
struct Answer {
    id: InferenceId,
    waiting: VecDeque<String>,
    /// Whether any of its tokens are on the present link.
    is_sent: bool,
    /// Whether some may be lost, so that no more may follow.
    is_broken: bool,
}

impl WaitingTokens {
    /// Puts tokens behind those of the same answer that wait.
    pub fn add(&self, id: &InferenceId, tokens: Vec<String>) {
        let mut answers = self.answers();
        match answers.iter_mut().find(|answer| answer.id == *id) {
            Some(answer) if answer.is_broken => {}
            Some(answer) => answer.waiting.extend(tokens),
            None => answers.push_back(Answer {
                id: id.clone(),
                waiting: tokens.into(),
                is_sent: false,
                is_broken: false,
            }),
        }
    }

    /// The next message with tokens of any answer; answers take turns.
    pub(crate) fn next(&self) -> Option<FromWorker> {
        let mut answers = self.answers();
        let index = answers
            .iter()
            .position(|answer| !answer.waiting.is_empty())?;
        let mut answer = answers.remove(index)?;
        let message = answer.next();
        answers.push_back(answer);
        message
    }

    /// The next message with tokens of this answer.
    pub(super) fn next_of(&self, id: &InferenceId) -> Option<FromWorker> {
        let mut answers = self.answers();
        answers.iter_mut().find(|answer| answer.id == *id)?.next()
    }

    /// The answer has ended and all its tokens are sent.
    pub(super) fn forget(&self, id: &InferenceId) {
        self.answers().retain(|answer| answer.id != *id);
    }

    /// A message with tokens did not get onto the link, or the link is gone with those that did.
    pub(super) fn link_lost(&self) {
        for answer in self.answers().iter_mut().filter(|answer| answer.is_sent) {
            answer.is_broken = true;
            answer.waiting.clear();
        }
    }

    fn answers(&self) -> MutexGuard<'_, VecDeque<Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer {
    fn next(&mut self) -> Option<FromWorker> {
        let most = match self.waiting.len() > SLOW_TOKENS {
            true => usize::MAX,
            false => BATCH_TOKENS,
        };
        let mut bytes = 0;
        let mut tokens = Vec::new();
        while let Some(token) = self.waiting.front() {
            bytes += token.len();
            let is_full = bytes > MESSAGE_BYTES || tokens.len() == most;
            if is_full && !tokens.is_empty() {
                break;
            }
            tokens.extend(self.waiting.pop_front());
        }
        if tokens.is_empty() {
            return None;
        }
        self.is_sent = true;
        Some(FromWorker::InferenceTokens(InferenceTokens {
            worker_id: None,
            inference_id: self.id.clone(),
            data: InferenceTokensData { tokens },
        }))
    }
}

/// The answer that a message ends, if it is such a message.
pub(super) fn ended_answer(message: &FromWorker) -> Option<&InferenceId> {
    match message {
        FromWorker::InferenceCompleted(end) => Some(&end.inference_id),
        FromWorker::InferenceFailed(end) => Some(&end.inference_id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> InferenceId {
        name.parse().unwrap()
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn tokens(message: Option<FromWorker>) -> Option<(String, Vec<String>)> {
        match message? {
            FromWorker::InferenceTokens(tokens) => {
                Some((tokens.inference_id.to_string(), tokens.data.tokens))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_waits_is_merged_in_order_and_answers_take_turns() {
        let waiting = WaitingTokens::default();
        waiting.add(&id("a"), words(&["one", " two"]));
        waiting.add(&id("b"), words(&["x"]));
        waiting.add(&id("a"), words(&[" three"]));
        let a = Some(("a".to_owned(), words(&["one", " two", " three"])));
        assert_eq!(tokens(waiting.next()), a);
        waiting.add(&id("a"), words(&[" four"]));
        assert_eq!(
            tokens(waiting.next()),
            Some(("b".to_owned(), words(&["x"])))
        );
        assert_eq!(tokens(waiting.next_of(&id("b"))), None);
        assert_eq!(
            tokens(waiting.next_of(&id("a"))),
            Some(("a".to_owned(), words(&[" four"])))
        );
        assert_eq!(tokens(waiting.next()), None);
    }

    #[test]
    fn messages_hold_five_tokens_and_more_only_where_the_socket_is_slow() {
        let waiting = WaitingTokens::default();
        waiting.add(&id("a"), words(&["x"; 12]));
        let lengths = |waiting: &WaitingTokens| -> Vec<usize> {
            std::iter::from_fn(|| tokens(waiting.next()))
                .map(|(_, tokens)| tokens.len())
                .collect()
        };
        assert_eq!(lengths(&waiting), [5, 5, 2]);
        waiting.add(&id("a"), words(&["x"; 300]));
        assert_eq!(lengths(&waiting), [300]);
    }

    #[test]
    fn no_message_gets_larger_than_a_frame_and_no_token_is_cut() {
        let waiting = WaitingTokens::default();
        let long = "x".repeat(MESSAGE_BYTES - 10);
        waiting.add(&id("a"), vec![long.clone(), "y".repeat(20), long.clone()]);
        let lengths: Vec<usize> = std::iter::from_fn(|| tokens(waiting.next()))
            .map(|(_, tokens)| tokens.len())
            .collect();
        assert_eq!(lengths, [1, 1, 1]);
    }

    #[test]
    fn an_answer_that_a_lost_link_had_begun_sends_no_more_and_one_that_had_not_does() {
        let waiting = WaitingTokens::default();
        waiting.add(&id("begun"), words(&["one"]));
        assert!(waiting.next().is_some());
        waiting.add(&id("begun"), words(&["two"]));
        waiting.add(&id("new"), words(&["first"]));
        waiting.link_lost();
        waiting.add(&id("begun"), words(&["three"]));
        assert_eq!(
            tokens(waiting.next()),
            Some(("new".to_owned(), words(&["first"])))
        );
        assert_eq!(tokens(waiting.next()), None);
        waiting.forget(&id("begun"));
        waiting.add(&id("begun"), words(&["again"]));
        assert!(waiting.next().is_some(), "a later answer of the same name");
    }
}
