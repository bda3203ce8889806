//! Base models as the commands name them: a folder, a `.gguf` file, or a name at the hub.

use std::path::{Path, PathBuf};

use trainyard_shared::message::BaseModel;

use super::error::CliError;
use super::output::remark;
use crate::config::ModelSettings;
use crate::tasks::base_model::{FetchProgress, ModelSource};
use crate::tasks::transfers::{Http, RetryPolicy};

/// Fetching a file is told after so many more bytes of it.
const TOLD_BYTES: u64 = 64 << 20;

/// Finds what `name` means: first a path (from `base`), then a model's name.
pub(super) fn find(name: &str, base: &Path, settings: ModelSettings) -> Result<PathBuf, CliError> {
    let path = base.join(name);
    if path.exists() {
        return Ok(path);
    }
    let http = Http::new(RetryPolicy::default())?;
    let model = BaseModel {
        huggingface_id: name.to_owned(),
        download_urls: Vec::new(),
    };
    let source = ModelSource::new(settings, http);
    let found = actix_rt::System::new().block_on(source.find(&model, tell()))?;
    Ok(found)
}

fn tell() -> impl FnMut(FetchProgress<'_>) {
    let mut told: Option<(String, u64)> = None;
    move |progress| {
        let next = match &told {
            Some((file, bytes)) if file == progress.file => bytes + TOLD_BYTES,
            _ => 0,
        };
        if progress.bytes >= next {
            told = Some((progress.file.to_owned(), progress.bytes));
            let total = progress
                .total_bytes
                .map_or_else(String::new, |total| format!(" of {} MB", total >> 20));
            remark(&format!(
                "fetching {}: {}{total}",
                progress.file,
                progress.bytes >> 20
            ));
        }
    }
}
