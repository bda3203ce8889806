//! The `trainyard` program: the platform, and the client that people use it with.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
