use gptrain::device::allocator::ReportingAllocator;

#[global_allocator]
static MEMORY: ReportingAllocator = ReportingAllocator;

fn main() -> std::process::ExitCode {
    gptrain::commands::main(env!("GPTRAIN_COMMIT"))
}
