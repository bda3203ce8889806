//! What waits to be sent to one connection: bounded, in order, and with older updates giving way to newer
//! ones of the same kind (PROTOCOL 9). Pure.
//!
//! An update that replaces another keeps its place in the line, so that a slow reader sees everything in an
//! order that could have happened. What may not be lost is never replaced: when that alone exceeds the
//! limit, the connection cannot be served and must end.

use std::collections::{HashMap, VecDeque};

use bytestring::ByteString;
use trainyard_shared::ids::{FederatedSessionId, JobId, TaskId, WorkerId};

/// Which updates say the same thing anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// The progress of a job between two changes of its state.
    Job(JobId),
    /// How far a task is.
    Task(TaskId),
    /// How the round of a federated session stands.
    FederatedSession(FederatedSessionId),
    /// The load of a worker between two changes of what it does.
    Worker(WorkerId),
}

/// The queue of one connection.
#[derive(Debug)]
pub struct Outbox {
    frames: VecDeque<Frame>,
    /// Where the replaceable frame of a topic stands, as its number.
    replaceable: HashMap<Topic, u64>,
    first_number: u64,
    bytes: usize,
    limit_bytes: usize,
    limit_frames: usize,
}

#[derive(Debug)]
struct Frame {
    text: ByteString,
    topic: Option<Topic>,
}

/// More is waiting than may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side takes too little of what is sent to it")]
pub struct Overflow;

impl Outbox {
    /// An empty queue for so many bytes and frames at most.
    pub fn new(limit_bytes: usize, limit_frames: usize) -> Self {
        Self {
            frames: VecDeque::new(),
            replaceable: HashMap::new(),
            first_number: 0,
            bytes: 0,
            limit_bytes,
            limit_frames,
        }
    }

    /// Adds what may not be lost. A `topic` says that later updates of it must not be put before this one.
    ///
    /// # Errors
    ///
    /// [`Overflow`] if it would exceed the limits; it is not added then.
    pub fn push(&mut self, text: ByteString, topic: Option<Topic>) -> Result<(), Overflow> {
        self.check(text.len(), 0)?;
        if let Some(topic) = topic {
            self.replaceable.remove(&topic);
        }
        self.add(text, None);
        Ok(())
    }

    /// Adds an update, or puts it in the place of the one of the same topic that still waits.
    ///
    /// # Errors
    ///
    /// [`Overflow`] if it would exceed the limits; it is not added then.
    pub fn update(&mut self, text: ByteString, topic: Topic) -> Result<(), Overflow> {
        if let Some(number) = self.replaceable.get(&topic) {
            let place = (number - self.first_number) as usize;
            let frame = &mut self.frames[place];
            self.bytes = self.bytes - frame.text.len() + text.len();
            frame.text = text;
            return Ok(());
        }
        self.check(text.len(), 1)?;
        self.replaceable
            .insert(topic, self.first_number + self.frames.len() as u64);
        self.add(text, Some(topic));
        Ok(())
    }

    /// Takes the next frame out.
    pub fn pop(&mut self) -> Option<ByteString> {
        let frame = self.frames.pop_front()?;
        if let Some(topic) = frame.topic
            && self.replaceable.get(&topic) == Some(&self.first_number)
        {
            self.replaceable.remove(&topic);
        }
        self.first_number += 1;
        self.bytes -= frame.text.len();
        Some(frame.text)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.first_number += self.frames.len() as u64;
        self.frames.clear();
        self.replaceable.clear();
        self.bytes = 0;
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn check(&self, more_bytes: usize, reserve_frames: usize) -> Result<(), Overflow> {
        let fits = self.bytes + more_bytes <= self.limit_bytes
            && self.frames.len() + reserve_frames < self.limit_frames;
        if fits { Ok(()) } else { Err(Overflow) }
    }

    fn add(&mut self, text: ByteString, topic: Option<Topic>) {
        self.bytes += text.len();
        self.frames.push_back(Frame { text, topic });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Topic = Topic::Job(JobId(1));
    const OTHER: Topic = Topic::Job(JobId(2));

    fn drained(outbox: &mut Outbox) -> Vec<String> {
        std::iter::from_fn(|| outbox.pop())
            .map(|text| text.to_string())
            .collect()
    }

    #[test]
    fn g032_a_newer_update_takes_the_place_of_an_older_one() {
        let mut outbox = Outbox::new(1000, 100);
        outbox.update("a1".into(), JOB).unwrap();
        outbox.update("b1".into(), OTHER).unwrap();
        outbox.update("a2".into(), JOB).unwrap();
        outbox.update("a3-longer".into(), JOB).unwrap();
        assert_eq!(outbox.bytes(), 11);
        assert_eq!(drained(&mut outbox), ["a3-longer", "b1"]);
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn g032_changes_of_state_are_never_merged_nor_overtaken() {
        let mut outbox = Outbox::new(1000, 100);
        outbox.update("step 1".into(), JOB).unwrap();
        outbox.push("stopping".into(), Some(JOB)).unwrap();
        outbox.update("step 2".into(), JOB).unwrap();
        outbox.update("step 3".into(), JOB).unwrap();
        outbox.push("stopped".into(), Some(JOB)).unwrap();
        assert_eq!(
            drained(&mut outbox),
            ["step 1", "stopping", "step 3", "stopped"]
        );
    }

    #[test]
    fn an_update_whose_predecessor_has_left_is_a_new_one() {
        let mut outbox = Outbox::new(1000, 100);
        outbox.update("a1".into(), JOB).unwrap();
        assert_eq!(outbox.pop().as_deref(), Some("a1"));
        outbox.update("a2".into(), JOB).unwrap();
        outbox.update("a3".into(), JOB).unwrap();
        assert_eq!(drained(&mut outbox), ["a3"]);
    }

    /// Promise P6.
    #[test]
    fn g032_however_much_is_reported_memory_is_bounded() {
        let mut outbox = Outbox::new(10_000, 1_000);
        for step in 0..100_000_u64 {
            let topic = Topic::Job(JobId(1 + (step % 20) as i64));
            outbox
                .update(format!("{step:0>100}").into(), topic)
                .unwrap();
        }
        assert_eq!(outbox.bytes(), 20 * 100);
        for _ in 0..80 {
            outbox.push("x".repeat(100).into(), None).unwrap();
        }
        assert_eq!(outbox.push("x".into(), None), Err(Overflow));
        assert_eq!(outbox.bytes(), 10_000);
    }

    #[test]
    fn frames_are_bounded_too() {
        let mut outbox = Outbox::new(10_000, 3);
        for _ in 0..3 {
            outbox.push("".into(), None).unwrap();
        }
        assert_eq!(outbox.push("".into(), None), Err(Overflow));
        outbox.clear();
        assert!(outbox.is_empty());
        outbox.push("".into(), None).unwrap();
    }
}
