//! What answers a message that this worker cannot carry out: never silence (PROTOCOL 11).

use trainyard_shared::FailureKind;
use trainyard_shared::ids::{FederatedSessionId, InferenceId, MessageId, TaskId};
use trainyard_shared::message::{
    DecodeError, FederatedFailed, FederatedFailedData, FromWorker, InferenceFailed,
    InferenceFailedData, JobFailed, JobFailedData,
};

use crate::tasks::failed_message;

/// The answer to a frame that is no message: for a `start_*` that says what it is about, the failure
/// that belongs to it; else `error`. None for an `error`, which is never answered.
pub(super) fn to_undecodable(error: DecodeError) -> Option<FromWorker> {
    let text = error.message.clone();
    let ids = error.ids.clone();
    match error.in_reply_to.as_deref() {
        Some("error") => None,
        Some("start_training") if ids.job_id.is_some() => ids.job_id.map(|job_id| {
            FromWorker::JobFailed(JobFailed {
                worker_id: None,
                job_id,
                attempt: ids.attempt,
                message_id: Some(MessageId::random()),
                data: JobFailedData {
                    error: format!("start_training cannot be taken: {text}"),
                    step: None,
                    last_checkpoint: None,
                    failure_kind: Some(FailureKind::BadConfig),
                },
            })
        }),
        Some("start_inference") if ids.inference_id.is_some() => {
            ids.inference_id.map(|id| inference_failed(id, text))
        }
        Some("start_evaluation") if ids.evaluation_id.is_some() => {
            ids.evaluation_id.map(|id| task_refused(id, text))
        }
        Some("start_export") if ids.export_id.is_some() => {
            ids.export_id.map(|id| task_refused(id, text))
        }
        Some("start_federated_training" | "load_aggregated_weights" | "continue_round")
            if ids.session_id.is_some() =>
        {
            ids.session_id.map(|id| federated_failed(id, None, text))
        }
        _ => Some(FromWorker::Error(error.to_error())),
    }
}

fn inference_failed(inference_id: InferenceId, error: String) -> FromWorker {
    FromWorker::InferenceFailed(InferenceFailed {
        worker_id: None,
        inference_id,
        message_id: Some(MessageId::random()),
        data: InferenceFailedData {
            error,
            failure_kind: Some(FailureKind::BadConfig),
        },
    })
}

fn task_refused(id: impl Into<TaskId>, error: String) -> FromWorker {
    failed_message(id.into(), error, Some(FailureKind::BadConfig))
}

fn federated_failed(
    session_id: FederatedSessionId,
    round: Option<u64>,
    error: String,
) -> FromWorker {
    FromWorker::FederatedFailed(FederatedFailed {
        worker_id: None,
        session_id,
        message_id: Some(MessageId::random()),
        data: FederatedFailedData {
            round,
            error,
            failure_kind: Some(FailureKind::BadConfig),
        },
    })
}

#[cfg(test)]
mod tests {
    use trainyard_shared::message::ToWorker;

    use super::*;

    fn answer(frame: &str) -> FromWorker {
        to_undecodable(ToWorker::decode(frame).unwrap_err()).unwrap()
    }

    #[test]
    fn a_job_that_cannot_be_read_fails_and_the_field_is_named() {
        let frame = r#"{"type":"start_training","job_id":7,"attempt":2,"data":{"dataset":{}}}"#;
        let FromWorker::JobFailed(failed) = answer(frame) else {
            panic!("{frame}");
        };
        assert_eq!((failed.job_id.get(), failed.attempt), (7, Some(2)));
        assert!(failed.data.error.contains("data.dataset"), "{failed:?}");
        assert_eq!(failed.data.failure_kind, Some(FailureKind::BadConfig));
        assert!(failed.message_id.is_some());
    }

    #[test]
    fn what_cannot_be_tied_to_any_work_is_answered_by_an_error() {
        for frame in [
            "{",
            r#"{"type":"party"}"#,
            r#"{"type":"start_training","job_id":"7"}"#,
            r#"{"type":"stop_training"}"#,
        ] {
            assert!(matches!(answer(frame), FromWorker::Error(_)), "{frame}");
        }
    }

    #[test]
    fn an_error_is_never_answered() {
        let error = ToWorker::decode(r#"{"type":"error","code":5}"#).unwrap_err();
        assert_eq!(to_undecodable(error), None);
    }

    #[test]
    fn an_order_of_a_session_that_cannot_be_read_fails_and_the_field_is_named() {
        let frame = r#"{"type":"continue_round","session_id":4,"data":{"round":"3"}}"#;
        let FromWorker::FederatedFailed(failed) = answer(frame) else {
            panic!("{frame}");
        };
        assert_eq!((failed.session_id.get(), failed.data.round), (4, None));
        assert!(failed.data.error.contains("data.round"), "{failed:?}");
    }
}
