//! How fast uploads are checked and merged: `merge_speed FOLDER THREADS RULE RUNS`, for `tests/bench/merge`.
//!
//! FOLDER holds `global.safetensors` and `update-*.safetensors`. Each run checks all uploads, one a thread as a platform
//! does that is sent several at once, merges them and saves the result. Prints one JSON object: seconds of both parts of
//! every run, and the length of the last result's file.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use trainyard_aggregation::{GlobalAdapter, Merge, Update, check, merge};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, threads, rule, runs] = arguments.as_slice() else {
        return Err("merge_speed FOLDER THREADS RULE RUNS".into());
    };
    let folder = Path::new(folder);
    let (threads, rule, runs): (usize, _, u32) = (threads.parse()?, rule.parse()?, runs.parse()?);
    let uploads = uploads(folder)?;
    let (mut checking, mut merging) = (Vec::new(), Vec::new());
    let mut size_bytes = 0;
    for _ in 0..runs {
        let begun = Instant::now();
        let global = GlobalAdapter::open(&folder.join("global.safetensors"))?;
        let updates = check_all(&uploads, &global, threads)?;
        checking.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        let velocity = folder.join("velocity.safetensors");
        let merged = merge(
            &Merge {
                global: &global,
                velocity: velocity.exists().then_some(velocity.as_path()),
                updates: &updates,
                rule,
                outer_lr: 1.0,
                outer_momentum: 0.5,
                threads,
            },
            &folder.join("merged.safetensors"),
            &velocity,
            &|| false,
        )?;
        merging.push(begun.elapsed().as_secs_f64());
        assert_eq!(merged.kept.len(), uploads.len(), "nothing is left out");
        size_bytes = merged.size_bytes;
    }
    println!("{{\"check\": {checking:?}, \"merge\": {merging:?}, \"size_bytes\": {size_bytes}}}");
    Ok(())
}

fn uploads(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut uploads = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("update-")) {
            uploads.push(path);
        }
    }
    Ok(uploads)
}

fn check_all(
    uploads: &[PathBuf],
    global: &GlobalAdapter,
    threads: usize,
) -> Result<Vec<Update>, Box<dyn Error>> {
    let left = Mutex::new(uploads.iter());
    let next = || {
        left.lock()
            .expect("no thread panics while it takes one")
            .next()
    };
    let check_some = || {
        let mut updates = Vec::new();
        while let Some(path) = next() {
            let checked = check(path, global, None).map_err(|error| error.to_string())?;
            updates.push(Update {
                name: path.display().to_string(),
                path: path.clone(),
                weight: 1,
                delta_norm: checked.delta_norm,
            });
        }
        Ok::<_, String>(updates)
    };
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..threads).map(|_| scope.spawn(check_some)).collect();
        let mut updates = Vec::new();
        for thread in begun {
            updates.extend(thread.join().expect("a check does not panic")?);
        }
        Ok(updates)
    })
}
