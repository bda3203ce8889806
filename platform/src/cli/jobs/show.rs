//! `trainyard jobs show`: one job for a person.

use serde_json::Value;
use std::time::Duration;

use crate::cli::output::{bytes, cell, figure, given_fields, pairs, table, time, time_span};

/// What the paths of exports' files begin with.
const EXPORTS: &str = "exports/";

/// What there is to say of a job, with its checkpoints and files.
pub fn in_words(job: &Value) -> String {
    let eta = job["eta_seconds"]
        .as_f64()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let step = format!(
        "{} of {}",
        cell(job, "/progress/step"),
        cell(job, "/progress/total_steps")
    );
    // What an earlier attempt came to is no fault of the one that goes on.
    let (error, failure) = match job["ended_at"].is_null() {
        true => ("last attempt's error", "last attempt's failure"),
        false => ("error", "failure"),
    };
    let all = [
        ("id", cell(job, "/id")),
        ("name", cell(job, "/name")),
        ("base model", cell(job, "/base_model/huggingface_id")),
        ("data set", cell(job, "/dataset_id")),
        ("config", given_fields(job, "/config")),
        ("status", cell(job, "/status")),
        ("attempt", cell(job, "/attempt")),
        ("waits because", cell(job, "/waiting_because")),
        ("begins anew", cell(job, "/begins_anew_because")),
        (error, cell(job, "/error")),
        (failure, cell(job, "/failure_kind")),
        ("worker", cell(job, "/worker_id")),
        ("epoch", cell(job, "/progress/epoch")),
        ("step", step.replace("- of -", "-")),
        ("loss", figure(job, "/progress/loss")),
        ("evaluation loss", figure(job, "/progress/eval_loss")),
        ("time left", eta.map_or_else(|| "-".to_owned(), time_span)),
        ("created", time(job, "/created_at")),
        ("started", time(job, "/started_at")),
        ("ended", time(job, "/ended_at")),
    ];
    let known: Vec<_> = all.into_iter().filter(|(_, value)| value != "-").collect();
    let mut words = pairs(&known);
    let checkpoints = list(job, "checkpoints");
    if !checkpoints.is_empty() {
        let row = |checkpoint: &Value| {
            vec![
                cell(checkpoint, "/step"),
                size(checkpoint),
                time(checkpoint, "/created_at"),
            ]
        };
        let rows: Vec<_> = checkpoints.iter().map(row).collect();
        words.push_str("\n\ncheckpoints\n");
        words.push_str(&table(&["STEP", "SIZE", "SAVED"], &rows));
    }
    let is_export = |file: &&Value| {
        let path = file["path"].as_str().unwrap_or_default();
        path.starts_with(EXPORTS)
    };
    let (exported, own): (Vec<_>, Vec<_>) = list(job, "artifacts").iter().partition(is_export);
    for (heading, files) in [("files", own), ("files of exports", exported)] {
        if !files.is_empty() {
            let row = |file: &&Value| vec![cell(file, "/path"), size(file)];
            let rows: Vec<_> = files.iter().map(row).collect();
            words.push_str(&format!("\n\n{heading}\n"));
            words.push_str(&table(&["PATH", "SIZE"], &rows));
        }
    }
    words
}

fn list<'a>(job: &'a Value, name: &str) -> &'a [Value] {
    job[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn size(file: &Value) -> String {
    file["size_bytes"]
        .as_u64()
        .map_or_else(|| "-".to_owned(), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_is_shown_with_what_it_trains_on_and_what_it_has_made() {
        let job = json!({
            "id": 3, "base_model": {"huggingface_id": "org/tiny"}, "dataset_id": 7, "status": "completed",
            "config": {"epochs": 1, "lr_scheduler_type": "cosine", "packing": false},
            "progress": {"step": 4, "total_steps": 4, "loss": 0.5, "eval_loss": 0.75},
            "ended_at": "2026-01-02T03:04:05.1Z", "error": null,
            "checkpoints": [{"step": 2, "size_bytes": 1024, "created_at": "2026-01-02T03:04:01Z"}],
            "artifacts": [
                {"path": "adapter_model.safetensors", "size_bytes": 2048},
                {"path": "exports/7/a.gguf", "size_bytes": 4096},
            ],
        });
        assert_eq!(
            in_words(&job),
            "id               3\n\
             base model       org/tiny\n\
             data set         7\n\
             config           epochs=1 lr_scheduler_type=cosine packing=false\n\
             status           completed\n\
             step             4 of 4\n\
             loss             0.5000\n\
             evaluation loss  0.7500\n\
             ended            2026-01-02T03:04:05Z\n\
             \n\
             checkpoints\n\
             STEP  SIZE      SAVED\n\
             2     1.00 KiB  2026-01-02T03:04:01Z\n\
             \n\
             files\n\
             PATH                       SIZE\n\
             adapter_model.safetensors  2.00 KiB\n\
             \n\
             files of exports\n\
             PATH              SIZE\n\
             exports/7/a.gguf  4.00 KiB"
        );
    }

    #[test]
    fn the_error_of_an_earlier_attempt_is_called_that() {
        let job =
            json!({"status": "running", "attempt": 2, "ended_at": null, "error": "shut down"});
        let told = in_words(&job);
        assert!(told.contains("last attempt's error  shut down"), "{told}");
    }
}
