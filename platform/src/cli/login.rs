//! `trainyard login` and `logout`.

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use trainyard_shared::Secret;

use super::client::Platform;
use super::credentials::{Credentials, Login};
use super::error::CliError;
use super::output::{Output, cell};
use super::{Common, terminal};

/// Options of `login`.
#[derive(Args)]
pub struct Options {
    /// Who logs in; asked for where it is missing.
    #[arg(long, value_name = "EMAIL")]
    email: Option<String>,
    /// Read the password from the first line of standard input instead of the terminal.
    #[arg(long)]
    password_stdin: bool,
}

/// Logs in and keeps the token.
pub async fn login(options: &Options, common: &Common, output: &Output) -> Result<(), CliError> {
    let platform = Platform::anonymous(common.platform.as_ref())?;
    let email = match &options.email {
        Some(email) => email.clone(),
        None => terminal::ask("E-mail")?,
    };
    let password = terminal::password("Password", options.password_stdin)?;
    let body = json!({ "email": email, "password": password.expose() });
    let mut answer = platform
        .post_anonymous(&["api", "auth", "login"], &body)
        .await?;
    let Value::String(token) = answer["token"].take() else {
        return Err(CliError::UnexpectedAnswer("no token".to_owned()));
    };
    let mut credentials = Credentials::load()?;
    let email = answer["user"]["email"]
        .as_str()
        .map_or(email, str::to_owned);
    credentials.logins.insert(
        platform.base().to_string(),
        Login {
            email,
            token: Secret::from(token),
        },
    );
    credentials.platform = Some(platform.base().to_string());
    credentials.save()?;
    let shown = json!({ "platform": platform.base().as_str(), "user": answer["user"] });
    output.result(&shown, |shown| {
        format!(
            "logged in at {} as {} ({})",
            platform.base(),
            cell(shown, "/user/email"),
            cell(shown, "/user/role")
        )
    })
}

/// Ends the session at the platform and forgets its token.
pub async fn logout(common: &Common, output: &Output) -> Result<(), CliError> {
    let platform = Platform::with_credentials(common.platform.as_ref())?;
    let ended = platform
        .json(platform.request(Method::POST, &["api", "auth", "logout"])?)
        .await;
    // A token that is void already is forgotten all the same.
    match ended {
        Ok(_) | Err(CliError::Refused { status: 401, .. }) => {}
        Err(error) => return Err(error),
    }
    let mut credentials = Credentials::load()?;
    credentials.logins.remove(platform.base().as_str());
    credentials.save()?;
    output.result(&json!({ "platform": platform.base().as_str() }), |_| {
        format!("logged out at {}", platform.base())
    })
}
