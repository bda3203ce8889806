//! The `trainyard-worker` program.

fn main() -> std::process::ExitCode {
    trainyard_worker::cli::main()
}
