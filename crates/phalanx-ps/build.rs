//! Compiles `proto/phalanx.proto` with protox, so that no protoc has to be installed.

use prost::Message as _;
use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/phalanx.proto");
    let descriptors = protox::compile(["phalanx.proto"], ["proto"])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("phalanx.bin"), descriptors.encode_to_vec())?;
    // `bytes` fields arrive as slices of the receive buffer instead of copies of it.
    // The service is in `service.rs`; the generated client is for tests and other programs.
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(descriptors)?;
    Ok(())
}
