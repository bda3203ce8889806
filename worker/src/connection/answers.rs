//! What answers a message that this worker cannot carry out: never silence (PROTOCOL 11).

use trainyard_shared::FailureKind;
use trainyard_shared::ids::{EvaluationId, FederatedSessionId, InferenceId, MessageId};
use trainyard_shared::message::{
    DecodeError, EvaluationFailed, EvaluationFailedData, FederatedFailed, FederatedFailedData,
    FromWorker, InferenceFailed, InferenceFailedData, JobFailed, JobFailedData, ToWorker,
};

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
            ids.evaluation_id.map(|id| evaluation_failed(id, text))
        }
        Some("start_federated_training" | "load_aggregated_weights" | "continue_round")
            if ids.session_id.is_some() =>
        {
            ids.session_id.map(|id| federated_failed(id, None, text))
        }
        _ => Some(FromWorker::Error(error.to_error())),
    }
}

/// The answer to a request for work that this version does not do; none for other messages.
pub(super) fn to_unsupported(message: &ToWorker) -> Option<FromWorker> {
    let cannot = |work: &str| format!("worker version {} cannot {work}", env!("CARGO_PKG_VERSION"));
    match message {
        ToWorker::StartFederatedTraining(start) => Some(federated_failed(
            start.session_id,
            Some(start.data.round),
            cannot("train in rounds"),
        )),
        ToWorker::LoadAggregatedWeights(load) => Some(federated_failed(
            load.session_id,
            Some(load.data.round),
            cannot("train in rounds"),
        )),
        ToWorker::ContinueRound(next) => Some(federated_failed(
            next.session_id,
            Some(next.data.round),
            cannot("train in rounds"),
        )),
        _ => None,
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

fn evaluation_failed(evaluation_id: EvaluationId, error: String) -> FromWorker {
    FromWorker::EvaluationFailed(EvaluationFailed {
        worker_id: None,
        evaluation_id,
        message_id: Some(MessageId::random()),
        data: EvaluationFailedData {
            error,
            failure_kind: Some(FailureKind::BadConfig),
        },
    })
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
    fn work_of_later_versions_fails_by_name() {
        let next = r#"{"type":"continue_round","session_id":4,"data":{
            "round":3,"upload":{"url":"https://x/y","key":"rounds/3/a"},"deadline":"2026-03-10T14:30:00Z"}}"#;
        let answer = to_unsupported(&ToWorker::decode(next).unwrap());
        let Some(FromWorker::FederatedFailed(failed)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(failed.data.round, Some(3));
        assert!(failed.data.error.contains("cannot train"), "{failed:?}");
    }
}
