//! Replays the kept corpus of every target and then runs it on mutations of that, from a fixed seed, while the
//! memory that it takes is watched.
//!
//! `FUZZ_SECONDS` says for how long each target is run on mutations (10 by default), `FUZZ_SEED` from which seed.
//! An input that fails is written to `target/fuzz/` and named; once the fault is mended it goes into the corpus.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mutatis::Session;
use peak_alloc::PeakAlloc;
use trainyard_fuzz::{TARGETS, Target};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// So much memory may be taken for each byte of the input, beyond the target's own.
const BYTES_PER_BYTE: usize = 256;
/// Inputs are not let grow beyond this.
const LONGEST_INPUT: usize = 64 * 1024;
/// Mutations that are made of one input of the corpus one upon another.
const GENERATIONS: usize = 8;

/// Pieces that random bytes rarely hit: numbers at the edges, and syntax of the formats.
const PIECES: &[&[u8]] = &[
    b"9223372036854775807",
    b"18446744073709551615",
    b"-1",
    b"1e308",
    b"1e-400",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"\"\"",
    b"\\ud83d",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x00\x00\x00\x00\x00\x00\x00\x80",
    b"\xff\xff\xff\x7f",
    b"{% for i in range(99999) %}",
    b"{% endfor %}",
    b"{{ 'a' * 999999999 }}",
    b"{% set x = x ~ x %}",
];

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let read = |path: PathBuf| {
        let content = fs::read(&path).expect("the corpus can be read");
        (path, content)
    };
    files.into_iter().map(read).collect()
}

/// Runs a target on an input. What is wrong with that, where something is.
fn fault(target: &Target, input: &[u8]) -> Option<String> {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let panicked = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    let taken = MEMORY.peak_usage().saturating_sub(before);
    let allowed = target.base_bytes + BYTES_PER_BYTE * input.len();
    if panicked {
        Some("a panic".to_owned())
    } else if taken > allowed {
        Some(format!(
            "{taken} bytes of memory for {} of input",
            input.len()
        ))
    } else {
        None
    }
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    let given = std::env::var(name).ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn kept(name: &str, input: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("fuzz")
        .join(name);
    fs::create_dir_all(&folder).expect("the target folder can be written");
    let path = folder.join("failed");
    fs::write(&path, input).expect("the target folder can be written");
    path
}

/// Puts a piece, of the list or of another input, somewhere into the input.
fn splice(input: &mut Vec<u8>, piece: &[u8], at: usize) {
    let at = at % (input.len() + 1);
    input.splice(at..at, piece.iter().copied());
}

/// Runs a target on mutations until `end`. Returns how many they were, or the first fault.
fn run_on_mutations(
    target: &Target,
    corpus: &[(PathBuf, Vec<u8>)],
    seed: u64,
    end: Instant,
) -> Result<u64, String> {
    let mut session = Session::new().seed(seed);
    let mut runs = 0;
    loop {
        for (index, (path, content)) in corpus.iter().enumerate() {
            let mut input = content.clone();
            for _ in 0..GENERATIONS {
                // How often a target gets to run depends on the machine; what it gets in which order does not.
                let number = usize::try_from(runs).expect("few enough to be counted");
                let turn = number.wrapping_mul(0x9e37_79b1) ^ index;
                match turn % 4 {
                    0 => splice(&mut input, PIECES[turn / 4 % PIECES.len()], turn / 64),
                    1 => {
                        let other = &corpus[turn / 4 % corpus.len()].1;
                        let from = turn / 64 % (other.len() + 1);
                        let to = other.len().min(from + turn / 1024 % 64);
                        splice(&mut input, &other[from..to], turn / 16);
                    }
                    // An input that nothing can be made of stays as it is.
                    _ => drop(session.mutate(&mut input)),
                }
                input.truncate(LONGEST_INPUT);
                runs += 1;
                if let Some(fault) = fault(target, &input) {
                    let failed = kept(target.name, &input);
                    return Err(format!(
                        "{}: {fault}, on a mutation of {} (seed {seed}, run {runs}): {}",
                        target.name,
                        path.display(),
                        failed.display()
                    ));
                }
                if Instant::now() >= end {
                    return Ok(runs);
                }
            }
        }
    }
}

/// One test for all, so that no other one takes memory at the same time.
#[test]
fn no_input_brings_a_target_down_or_takes_memory_that_it_only_claims() {
    let seconds = Duration::from_secs_f64(setting("FUZZ_SECONDS", 10.0));
    let seed = setting("FUZZ_SEED", 0x7261_696e);
    let mut faults = Vec::new();
    for target in TARGETS {
        let corpus = corpus(target.name);
        for (path, input) in &corpus {
            if let Some(fault) = fault(target, input) {
                faults.push(format!("{}: {fault}", path.display()));
            }
        }
        match run_on_mutations(target, &corpus, seed, Instant::now() + seconds) {
            Ok(runs) => println!("{}: {} kept, {runs} mutations", target.name, corpus.len()),
            Err(fault) => faults.push(fault),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
