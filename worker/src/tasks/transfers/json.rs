//! Small JSON answers, tried again like files are.

use serde::de::DeserializeOwned;
use trainyard_shared::Secret;
use url::Url;

use super::retry::{Fault, Tries};
use super::{Http, RetryPolicy, TransferError};

/// A question is asked a few times only: whoever waits for its answer has other places to ask.
const TRIES: u32 = 5;

impl Http {
    /// Asks for JSON. `name` is what messages call it.
    ///
    /// # Errors
    ///
    /// A final refusal or tries used up; text that is not what is expected counts as a fault that may pass.
    pub async fn json<T: DeserializeOwned>(
        &self,
        name: &str,
        url: &Url,
        bearer: Option<&Secret>,
    ) -> Result<T, TransferError> {
        let retry = RetryPolicy {
            tries: self.retry().tries.min(TRIES),
            ..self.retry().clone()
        };
        let mut tries = Tries::new(&retry);
        loop {
            match self.ask(name, url, bearer).await {
                Ok(answer) => return Ok(answer),
                Err(Fault::Passing {
                    reason,
                    retry_after,
                }) => tries.wait(name, reason, retry_after).await?,
                Err(Fault::Expired { answer, status }) => {
                    return Err(TransferError::Refused {
                        name: name.to_owned(),
                        status,
                        answer,
                    });
                }
                Err(Fault::Final(error)) => return Err(error),
            }
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        name: &str,
        url: &Url,
        bearer: Option<&Secret>,
    ) -> Result<T, Fault> {
        let mut request = self.client().get(url.clone());
        if let Some(token) = bearer {
            request = request.bearer_auth(token.expose());
        }
        let response = request
            .send()
            .await
            .map_err(|error| Fault::from_client(name, error))?;
        if !response.status().is_success() {
            return Err(Fault::from_answer(name, response).await);
        }
        response
            .json()
            .await
            .map_err(|error| Fault::from_client(name, error))
    }
}
