//! The base model of a session: whether this machine can hold it, where it is, and the adapter on it.

use std::path::{Path, PathBuf};

use trainyard_shared::coordinator::Task;
use trainyard_shared::message::BaseModel;

use super::adapter;
use super::client::retry_policy;
use super::error::VolunteerError;
use super::event::VolunteerEvent;
use super::rounds::Volunteer;
use super::training::{self, Trainee};
use crate::engine::trainer::LogLevel;
use crate::engine::trainer::local::LocalTraining;
use crate::engine::weights::{ModelDescription, ModelFiles, SafetensorsFile};
use crate::hardware::free_memory_bytes;
use crate::tasks::base_model::{FetchProgress, ModelSource};
use crate::tasks::transfers::Http;

/// Fetching the base model is told after so many more bytes of a file.
const TOLD_BYTES: u64 = 64 << 20;
/// What a file of weights may take up beyond the values that are trained.
const WEIGHTS_HEAD_BYTES: u64 = 16 << 20;

impl Volunteer<'_> {
    /// The base model with the session's adapter, whose shape the weights tell where the coordinator does not.
    pub(super) async fn trainee(
        &self,
        task: &Task,
        weights: Option<&Path>,
    ) -> Result<Trainee, VolunteerError> {
        let not_possible = VolunteerError::NotPossible;
        let name = &self.model_name;
        let told = self.info.clone().unwrap_or_default().adapter;
        let alpha = told.alpha.or(self.config.lora_alpha);
        let adapter = match weights {
            None => adapter::told(&told, alpha, name),
            Some(weights) => {
                if alpha.is_none() {
                    self.tell(VolunteerEvent::Log {
                        level: LogLevel::Warning,
                        line: "the coordinator does not say the adapter's alpha: twice its rank is taken (--lora-alpha)".to_owned(),
                    });
                }
                adapter::of_weights(&SafetensorsFile::open(weights)?, alpha, name)
            }
        };
        let adapter = adapter.map_err(not_possible)?;
        let config = training::config_of(task, &adapter).map_err(not_possible)?;
        self.check_size().await?;
        let path = self.base_model().await?;
        let files = ModelFiles::open(&path)?;
        LocalTraining::check_memory(&files, &adapter, &config, free_memory_bytes())?;
        Ok(Trainee {
            files,
            adapter,
            local: None,
            data: None,
        })
    }

    /// That the base model is not far too large for this machine, before its weights are fetched.
    async fn check_size(&self) -> Result<(), VolunteerError> {
        if self.config.model.is_some() && Path::new(&self.model_name).exists() {
            return Ok(());
        }
        let source = self.model_source()?;
        let found = source.find_description(&self.model_name);
        let Ok(path) = self.until_stopped(found).await? else {
            // Whoever looks for the model itself will say why it is not to be had.
            return Ok(());
        };
        let Ok(description) = ModelDescription::open(&path) else {
            return Ok(());
        };
        let (least, free) = (
            description.config.parameter_count() / 2,
            free_memory_bytes(),
        );
        if least > free {
            return Err(VolunteerError::NotPossible(format!(
                "the base model {} takes up more than {} MiB even at 4 bits a weight, and {} MiB are free",
                self.model_name,
                least >> 20,
                free >> 20
            )));
        }
        Ok(())
    }

    fn model_source(&self) -> Result<ModelSource, VolunteerError> {
        let kept_bytes = self.config.limits.disk.keep_free_bytes;
        let http = Http::new(retry_policy(self.config))?.keeping_free(kept_bytes);
        Ok(ModelSource::new(self.config.models.clone(), http))
    }

    fn base_model_id(&self) -> BaseModel {
        BaseModel {
            huggingface_id: self.model_name.clone(),
            download_urls: Vec::new(),
        }
    }

    /// The folder or file of the base model, fetched if need be.
    async fn base_model(&self) -> Result<PathBuf, VolunteerError> {
        if self.config.model.is_some() {
            let path = PathBuf::from(&self.model_name);
            if path.exists() {
                return Ok(path);
            }
        }
        let (source, model) = (self.model_source()?, self.base_model_id());
        let mut told: Option<(String, u64)> = None;
        let found = source.find(&model, |progress: FetchProgress<'_>| {
            let next = match &told {
                Some((file, bytes)) if file == progress.file => bytes + TOLD_BYTES,
                _ => 0,
            };
            if progress.bytes >= next {
                told = Some((progress.file.to_owned(), progress.bytes));
                self.tell(VolunteerEvent::Fetching {
                    file: progress.file.to_owned(),
                    bytes: progress.bytes,
                });
            }
        });
        Ok(self.until_stopped(found).await??)
    }

    /// More bytes than these are no weights of the session's adapter.
    pub(super) fn most_weight_bytes(&self) -> Option<u64> {
        let trainee = self.trainee.as_ref()?;
        let targets = trainee.adapter.targets(&trainee.files.config).ok()?;
        let values = targets.iter().map(|target| {
            let [outputs, inputs] = trainee.files.config.projection_shape(target.projection);
            (target.rank * (outputs + inputs)) as u64
        });
        let whole = match trainee.adapter.modules_to_save.is_empty() {
            true => 0,
            false => trainee.files.config.parameter_count(),
        };
        Some(4 * (values.sum::<u64>() + whole) + WEIGHTS_HEAD_BYTES)
    }
}
