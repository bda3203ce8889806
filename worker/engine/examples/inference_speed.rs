//! How fast a model processes prompts and generates: `inference_speed MODEL THREADS`, for `tests/bench/infer`.
//!
//! Prints one JSON object: tokens a second of a prompt of 512 tokens, of greedy generation after a prompt of 62, and of
//! eight such generations at once.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use trainyard_engine::device::set_threads;
use trainyard_engine::generate::{Audience, Next, SamplingOptions, StreamEvent, StreamId, Streams};
use trainyard_engine::model::{CacheRoom, Holding, Llama, LoadedAdapter};
use trainyard_engine::weights::ModelFiles;

/// Times that each figure is taken; the best one counts, as the others were disturbed.
const TURNS: usize = 3;
/// Tokens that are generated and timed.
const GENERATED: usize = 64;

/// Takes all tokens.
struct Everything;

impl Audience for Everything {
    fn is_stopped(&self, _: StreamId) -> bool {
        false
    }

    fn take(&mut self, _: StreamId, event: StreamEvent) -> Next {
        match event {
            StreamEvent::Token(_) => Next::GoOn,
            StreamEvent::Finished(_) => Next::Leave,
            StreamEvent::Failed(error) => panic!("a stream failed: {error}"),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(threads)) = (arguments.next(), arguments.next()) else {
        return Err("inference_speed MODEL THREADS".into());
    };
    set_threads(threads.parse()?)?;
    let files = ModelFiles::open(model.as_ref())?;
    let model = Arc::new(Llama::load_as(&files, Holding::AsStored)?);
    files.release_memory();
    let held = model.held();
    let adapter = Arc::new(LoadedAdapter::none(model.config())?);
    let mut streams = Streams::new(model, CacheRoom::unlimited());
    let mut best = [0.0_f64; 3];
    for _ in 0..TURNS {
        let figures = [
            prompt(&mut streams, &adapter)?,
            generation(&mut streams, &adapter, 1)?,
            generation(&mut streams, &adapter, 8)?,
        ];
        for (best, figure) in best.iter_mut().zip(figures) {
            *best = best.max(figure);
        }
    }
    let [prompt, one, eight] = best;
    println!(
        "{}",
        serde_json::json!({
            "held": held.to_string(), "weight_bytes": held.bytes(),
            "prompt": prompt, "decode": one, "decode_8": eight,
        })
    );
    Ok(())
}

/// The same tokens as in `infer.py`, others for each stream.
fn tokens(stream: usize, len: usize) -> Vec<u32> {
    let token = |i: usize| ((i + 100 * stream) * 7919 % 40_000 + 100) as u32;
    (0..len).map(token).collect()
}

fn prompt(streams: &mut Streams, adapter: &Arc<LoadedAdapter>) -> Result<f64, Box<dyn Error>> {
    let len = 512;
    let options = SamplingOptions {
        max_tokens: 1,
        temperature: 0.0,
        ..SamplingOptions::default()
    };
    streams.join(&tokens(0, len), &options, adapter.clone())?;
    let start = Instant::now();
    while !streams.is_empty() {
        streams.advance(&mut Everything);
    }
    Ok(len as f64 / start.elapsed().as_secs_f64())
}

fn generation(
    streams: &mut Streams,
    adapter: &Arc<LoadedAdapter>,
    count: usize,
) -> Result<f64, Box<dyn Error>> {
    let options = SamplingOptions {
        max_tokens: GENERATED + 2 * count + 2,
        temperature: 0.0,
        ..SamplingOptions::default()
    };
    for stream in 0..count {
        streams.join(&tokens(stream, 62), &options, adapter.clone())?;
    }
    // A prompt is a part or two, and a round runs one part: after so many rounds all streams generate.
    for _ in 0..=2 * count {
        streams.advance(&mut Everything);
    }
    let start = Instant::now();
    for _ in 0..GENERATED {
        streams.advance(&mut Everything);
    }
    let speed = (GENERATED * count) as f64 / start.elapsed().as_secs_f64();
    while !streams.is_empty() {
        streams.advance(&mut Everything);
    }
    Ok(speed)
}
