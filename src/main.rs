use std::process::ExitCode;

fn main() -> ExitCode {
    gptrain::cli::main()
}
