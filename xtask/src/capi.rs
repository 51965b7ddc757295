//! The library for C and C++, as it is installed: the shared and the static library, the headers, and the file for
//! pkg-config.

use std::{fs, os::unix::fs::symlink, path::Path};

use crate::tools::{Cmd, Result, cargo, read, require, target};

/// Builds the library in a profile of cargo and puts it into the folder `prefix`.
pub fn install(prefix: &str, profile: &str) -> Result {
    let error = |error: std::io::Error| error.to_string();
    cargo("build --package raddle-capi --lib --profile").arg(profile).run()?;
    let folder = if matches!(profile, "dev" | "test") { "debug" } else { profile };
    let archive = target(folder).join("libraddle_capi.a");
    require(archive.exists(), format!("{} was not built", archive.display()))?;
    let prefix = std::path::absolute(prefix).map_err(error)?;
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    for folder in [&include, &lib.join("pkgconfig")] {
        fs::create_dir_all(folder).map_err(error)?;
    }
    for header in ["capi/raddle.h", "examples/c/raddle.hpp"] {
        fs::copy(header, include.join(Path::new(header).file_name().unwrap_or_default())).map_err(error)?;
    }
    fs::copy(&archive, lib.join("libraddle.a")).map_err(error)?;

    // rustc gives neither versions to symbols nor a name to the library, so the system's linker makes it. Before 1.0, a
    // minor version may change the interface.
    let version = env!("CARGO_PKG_VERSION");
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    let (file, name) = (format!("libraddle.so.{version}"), format!("libraddle.so.{minor}"));
    Cmd::new("cc")
        .args(["-shared", "-o"])
        .arg(lib.join(&file))
        .args([
            format!("-Wl,-soname,{name}"),
            "-Wl,--version-script=capi/raddle.map".into(),
            "-Wl,--gc-sections".into(),
        ])
        .arg("-Wl,--whole-archive")
        .arg(&archive)
        .args(["-Wl,--no-whole-archive", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"])
        .run()?;
    for (link, to) in [(&*name, &*file), ("libraddle.so", &*name)] {
        let link = lib.join(link);
        let _ = fs::remove_file(&link);
        symlink(to, link).map_err(error)?;
    }
    let config =
        read("capi/raddle.pc.in")?.replace("@prefix@", &prefix.to_string_lossy()).replace("@version@", version);
    fs::write(lib.join("pkgconfig/raddle.pc"), config).map_err(error)
}
