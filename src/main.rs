#[global_allocator]
static MEMORY: gptrain::device::allocator::OrMessage = gptrain::device::allocator::OrMessage;

fn main() -> std::process::ExitCode {
    gptrain::cli::main()
}
