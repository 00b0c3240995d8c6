//! The library applied to MNIST.

use std::process::ExitCode;

// Half again as many small steps per second as with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    phalanx::main()
}
