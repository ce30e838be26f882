fn main() -> std::process::ExitCode {
    gptrain::cli::main()
}
