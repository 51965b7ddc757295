//! Files for other programs, read by these.
//!
//! Perfetto's own `trace_processor` would be the better reader, but Perfetto's package for Python downloads it from
//! elsewhere. So traces are read with the schema that the package contains.

use crate::tools::{Cmd, Result, cargo, empty_folder, install, may_install, skip, target};

pub fn run() -> Result {
    let folder = empty_folder("files")?;
    let [ring, cholesky] = ["ring.json", "cholesky.pftrace"].map(|name| folder.join(name));
    cargo("test --test observing -- files::").env("RADDLE_FILES", &folder).run()?;
    cargo("run --quiet --profile test --example ring").env("RADDLE_PROFILE", &ring).run()?;
    cargo("run --quiet --profile test --example cholesky").env("RADDLE_PROFILE", &cholesky).run()?;
    let python = target("readers/bin/python");
    let has_schema = || Cmd::new(&python).args(["-c", "import perfetto.protos"]).capture().0;
    if !has_schema() && may_install() {
        // Without Python or a network, the schema is missing afterwards.
        let _ = Cmd::new("python3").args(["-m", "venv"]).arg(target("readers")).run();
        let _ = Cmd::new(&python).args(["-m", "pip", "install", "-q", "perfetto==0.59.1", "protobuf"]).run();
    }
    if !has_schema() {
        skip("Perfetto's schema is neither installed nor installable: no file was read");
        return Ok(());
    }
    if !install("/usr/bin/dot", "graphviz") {
        skip("Graphviz is neither installed nor installable: no dump was drawn");
    }
    if !install("/usr/bin/chromium", "chromium") {
        skip("a browser is neither installed nor installable: no page was opened");
    }
    Cmd::new(python).arg("tests/observing/read_files.py").args([&folder, &ring, &cholesky]).run()
}
