//! `GET /api/models`: the base models that workers have, and what jobs and federated sessions have made of them.

use std::collections::BTreeMap;

use actix_web::web;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trainyard_shared::JobStatus;
use trainyard_shared::training::TrainingConfig;
use utoipa::ToSchema;

use super::target::Origin;
use crate::auth::CurrentUser;
use crate::database::{DatabaseError, from_json_text, shown_time};
use crate::error::ApiError;
use crate::jobs::history;
use crate::jobs::store::JobRow;
use crate::server::AppState;
use crate::{jobs, rounds, workers};

/// Most workers and jobs that are looked at.
const MAX_ROWS: i64 = 10_000;

/// A model that can be worked with.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelView {
    /// Its name at the hub, or `job-` or `federated-` and the number of what made it.
    id: String,
    kind: ModelKind,
    /// What a job or a session made it of.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_model: Option<String>,
    /// The job that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<i64>,
    /// The federated session that made it, of workers or of volunteers.
    #[serde(skip_serializing_if = "Option::is_none")]
    federated_session_id: Option<i64>,
    /// The workers that have a base model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    worker_ids: Vec<i64>,
    /// Whether the files of what was made are stored and checked, so that it can be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<DateTime<Utc>>,
}

impl ModelView {
    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it can be asked.
    pub fn can_answer(&self) -> bool {
        self.verified.unwrap_or(true)
    }

    /// When it was made, where that is known.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }
}

/// What a model is.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// A model of the hub.
    Base,
    /// An adapter that a job or a federated session made for one.
    Adapter,
    /// What a job made of one by training all its weights.
    Full,
}

impl ModelKind {
    /// What a job makes, by its config.
    fn of_result(job: &JobRow) -> Result<Self, DatabaseError> {
        let config = TrainingConfig::parse(&Value::Object(job.config()?));
        Ok(match config {
            Ok(config) if !config.use_peft => Self::Full,
            _ => Self::Adapter,
        })
    }
}

/// All models that one may work with.
#[derive(Debug, Serialize, ToSchema)]
pub struct Models {
    items: Vec<ModelView>,
}

/// What of a worker's registration matters here.
#[derive(Deserialize)]
struct Hardware {
    #[serde(default)]
    models: Vec<String>,
}

/// Base models seen on workers, and the results of completed jobs and of federated sessions that one may see.
#[utoipa::path(get, path = "/api/models", tag = "models",
    responses((status = 200, body = Models, description = "the models")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
) -> Result<web::Json<Models>, ApiError> {
    let items = visible(&state, &user).await?;
    Ok(web::Json(Models { items }))
}

/// All models that one may work with: base models first, each kind in its order.
///
/// # Errors
/// Those of the database.
pub async fn visible(state: &AppState, user: &CurrentUser) -> Result<Vec<ModelView>, ApiError> {
    let owner = user.listed_owner();
    let (workers, jobs, verified, sessions) = state
        .database
        .read::<_, DatabaseError, _>(move |c| {
            let workers = workers::store::list(c, i64::MAX, MAX_ROWS)?;
            let completed = Some(JobStatus::Completed);
            let jobs = jobs::store::list(c, owner, completed, i64::MAX, MAX_ROWS)?;
            let sessions = rounds::store::with_files(c, owner, MAX_ROWS)?;
            let verified = history::jobs_with_result_files(c)?;
            Ok((workers, jobs, verified, sessions))
        })
        .await?;
    let mut bases: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for worker in workers {
        let Some(hardware) = worker.hardware.as_deref() else {
            continue;
        };
        for model in from_json_text::<Hardware>(hardware)?.models {
            bases.entry(model).or_default().push(worker.id);
        }
    }
    let bases = bases.into_iter().map(|(id, worker_ids)| ModelView {
        id,
        kind: ModelKind::Base,
        base_model: None,
        job_id: None,
        federated_session_id: None,
        worker_ids,
        verified: None,
        created_at: None,
    });
    let results = jobs.into_iter().map(|job| {
        Ok(ModelView {
            id: format!("job-{}", job.id),
            kind: ModelKind::of_result(&job)?,
            base_model: Some(job.base_model),
            job_id: Some(job.id),
            federated_session_id: None,
            worker_ids: Vec::new(),
            verified: Some(verified.contains(&job.id)),
            created_at: job.ended_at.map(shown_time),
        })
    });
    let of_sessions = sessions.into_iter().map(|session| ModelView {
        id: Origin::Federated(session.id()).name(),
        kind: ModelKind::Adapter,
        base_model: Some(session.base_model),
        job_id: None,
        federated_session_id: Some(session.id),
        worker_ids: Vec::new(),
        // The platform itself has merged and stored it.
        verified: Some(true),
        created_at: session.ended_at.map(shown_time),
    });
    bases
        .map(Ok)
        .chain(results)
        .chain(of_sessions.map(Ok))
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::Platform;
    use crate::testing::sockets::TestWorker;
    use serde_json::json;

    #[actix_web::test]
    async fn models_are_what_workers_have_and_what_jobs_have_made() {
        let platform = Platform::start(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
        let admin = platform.admin().await;
        let member = platform.user("member@example.org", "member").await;
        let mut worker = TestWorker::enrol(&admin).await;
        let data = json!({"gpu_available": false, "models": ["yard/tiny", "org/other"]});
        worker
            .socket
            .send(json!({"type": "worker_register", "data": data}))
            .await;
        let job = admin.job(json!({})).await;
        worker.take_job().await;
        worker.say_acked("job_completed", job, json!({})).await;
        let ids = |models: &serde_json::Value| -> Vec<String> {
            let items = models["items"].as_array().unwrap();
            items
                .iter()
                .map(|model| model["id"].as_str().unwrap().to_owned())
                .collect()
        };
        let (_, models) = admin.get("/api/models").await;
        assert_eq!(
            ids(&models),
            ["org/other", "yard/tiny", &format!("job-{job}")]
        );
        assert_eq!(models["items"][1]["worker_ids"], json!([worker.id]));
        assert_eq!(models["items"][2]["base_model"], "yard/tiny");
        assert_eq!(models["items"][2]["verified"], false);
        assert_eq!(models["items"][2]["kind"], "adapter");
        let whole = admin.job(json!({"config": {"use_lora": false}})).await;
        worker.take_job().await;
        worker.say_acked("job_completed", whole, json!({})).await;
        let (_, models) = admin.get("/api/models").await;
        let kinds: Vec<_> = models["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| &model["kind"])
            .collect();
        assert_eq!(kinds, ["base", "base", "full", "adapter"]);
        let (_, models) = member.get("/api/models").await;
        assert_eq!(ids(&models), ["org/other", "yard/tiny"]);
    }
}
