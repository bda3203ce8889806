//! What a worker is told of an inference, and under which id.

use bytestring::ByteString;
use trainyard_shared::ids::InferenceId;
use trainyard_shared::message::{StartInference, StartInferenceData, StopInference, ToWorker};

use super::request::Request;
use crate::storage::ObjectStore;

/// The id of an attempt on the wire: the request's own, and for later attempts their number behind it.
pub fn wire_id(id: &InferenceId, attempt: u32) -> InferenceId {
    if attempt <= 1 {
        return id.clone();
    }
    format!("{id}.{attempt}")
        .parse()
        .expect("our ids are short and visible ASCII, and so is a number")
}

/// The request's id, and the attempt, of an id on the wire.
pub fn of_wire_id(wire: &InferenceId) -> Option<(InferenceId, u32)> {
    match wire.as_str().split_once('.') {
        None => Some((wire.clone(), 1)),
        Some((id, attempt)) => {
            let attempt = attempt.parse().ok().filter(|attempt| *attempt > 1)?;
            Some((id.parse().ok()?, attempt))
        }
    }
}

/// `start_inference` for an attempt.
pub fn start_text(
    id: &InferenceId,
    attempt: u32,
    request: &Request,
    storage: &dyn ObjectStore,
) -> ByteString {
    let sampling = request.sampling.clone();
    let start = StartInference {
        inference_id: wire_id(id, attempt),
        data: StartInferenceData {
            model_path: request.target.folder(),
            huggingface_id: request.target.base_model.clone(),
            download_urls: request.target.download_urls(storage),
            messages: request.chat.messages.clone(),
            system_prompt: request.chat.system_prompt.clone(),
            temperature: sampling.temperature,
            max_tokens: sampling.max_tokens,
            stream: request.stream,
            top_p: sampling.top_p,
            top_k: sampling.top_k.filter(|top_k| *top_k > 0),
            repetition_penalty: sampling.repetition_penalty,
            seed: sampling.seed,
            stop: sampling.stop,
        },
    };
    ToWorker::StartInference(start).encode().into()
}

/// `stop_inference` for an attempt.
pub fn stop_text(id: &InferenceId, attempt: u32) -> ByteString {
    let stop = StopInference {
        inference_id: wire_id(id, attempt),
    };
    ToWorker::StopInference(stop).encode().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_read_back_from_its_id_on_the_wire() {
        let id: InferenceId = "infer-4f".parse().unwrap();
        for attempt in [1, 2, 17] {
            assert_eq!(
                of_wire_id(&wire_id(&id, attempt)),
                Some((id.clone(), attempt))
            );
        }
        for foreign in [
            "infer-4f.1",
            "infer-4f.0",
            "infer-4f.x",
            ".2",
            "infer-4f.2.3",
        ] {
            assert_eq!(of_wire_id(&foreign.parse().unwrap()), None, "{foreign}");
        }
    }
}
