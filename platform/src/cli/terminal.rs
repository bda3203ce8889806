//! Asks the person at the terminal.

use std::io::{self, BufRead, IsTerminal, Write};

use trainyard_shared::Secret;

use super::error::CliError;

/// Asks for a line of text.
pub fn ask(question: &str) -> Result<String, CliError> {
    require_terminal(question)?;
    let failed = |source| CliError::io("terminal", source);
    write!(io::stderr(), "{question}: ").map_err(failed)?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(failed)?;
    Ok(line.trim().to_owned())
}

/// The password: the first line of standard input where that was asked for, else from the terminal, not shown.
pub fn password(question: &str, from_stdin: bool) -> Result<Secret, CliError> {
    let text = if from_stdin {
        let mut line = String::new();
        io::stdin()
            .lock()
            .read_line(&mut line)
            .map_err(|source| CliError::io("standard input", source))?;
        line.trim_end_matches(['\r', '\n']).to_owned()
    } else {
        require_terminal(question)?;
        let failed = |source| CliError::io("terminal", source);
        write!(io::stderr(), "{question}: ").map_err(failed)?;
        console::Term::stderr().read_secure_line().map_err(failed)?
    };
    if text.is_empty() {
        return Err(CliError::Input("the password is empty".to_owned()));
    }
    Ok(Secret::from(text))
}

/// A new password: from the terminal it is asked for twice.
pub fn new_password(from_stdin: bool) -> Result<Secret, CliError> {
    let first = password("Password of the new account", from_stdin)?;
    if !from_stdin && password("The same again", false)? != first {
        return Err(CliError::Input("the two passwords differ".to_owned()));
    }
    Ok(first)
}

fn require_terminal(question: &str) -> Result<(), CliError> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    let question = question.to_lowercase();
    Err(CliError::Input(format!(
        "there is no terminal to ask for: {question}; see --help for how to give it"
    )))
}
