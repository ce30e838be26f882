//! A build without a change does nothing, also where there is no CUDA compiler.

use std::fs;
use std::process::Command;

#[test]
fn a_second_build_is_fresh_without_a_toolchain() {
    // The build script of the device floor, in a crate with nothing else.
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("src/device");
    fs::create_dir_all(&device).unwrap();
    fs::create_dir(folder.path().join("kernels")).unwrap();
    fs::write(folder.path().join("kernels/build.sh"), "exit 3").unwrap();
    let package = "[package]\nname = \"device\"\nedition = \"2024\"\n[lib]\npath = \"mod.rs\"\n";
    fs::write(device.join("Cargo.toml"), package).unwrap();
    fs::write(device.join("mod.rs"), "").unwrap();
    fs::copy("src/device/build.rs", device.join("build.rs")).unwrap();
    let build = || {
        let mut cargo = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()));
        cargo
            .args(["build", "--offline", "--message-format", "json"])
            .current_dir(&device);
        cargo.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
        let done = cargo.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let said = String::from_utf8(done.stdout).unwrap();
        said.lines()
            .filter(|line| line.contains("\"fresh\":false"))
            .count()
    };
    assert!(build() > 0);
    assert_eq!(build(), 0, "the second build compiled something again");
}
