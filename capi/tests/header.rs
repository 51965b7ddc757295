//! Whether `raddle.h` is that of the sources, and whether it says what C must know.

use std::{env, fs, path::Path};

/// Returns the header for the sources.
fn generated() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("the configuration is valid");
    let bindings = cbindgen::Builder::new().with_crate(folder).with_config(config).generate();
    let mut header = Vec::new();
    bindings.expect("the header can be made").write(&mut header);
    let header = String::from_utf8(header).expect("the header is UTF-8");
    let mut lines: Vec<String> = Vec::new();
    for line in header.lines().map(|line| line.trim_end().replace("* # Safety", "* The caller promises:")) {
        // A comment of one line is written as one.
        if let ("*/", [.., start, text]) = (line.trim(), &mut *lines) {
            if let ("/**", Some(text)) = (start.trim(), text.trim().strip_prefix("* ")) {
                *start += &format!(" {text} */");
                lines.pop();
                continue;
            }
        }
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_header_is_that_of_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("raddle.h");
    let header = generated();
    if env::var_os("RADDLE_RENEW").is_some() {
        fs::write(&path, &header).expect("the header can be written");
    }
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == header, "renew raddle.h: RADDLE_RENEW=1 cargo test -p raddle-capi --test header");
}

#[test]
fn each_function_says_what_it_returns_and_where_it_may_be_called() {
    let header = generated();
    let comments: Vec<_> = header.split("/**").skip(1).filter_map(|part| part.split_once("*/\n")).collect();
    let is_function = |code: &str| code.contains(");") && !code.contains("typedef");
    let functions: Vec<_> = comments.iter().filter(|(_, code)| is_function(code)).collect();
    assert!(functions.len() > 50, "{} functions were found", functions.len());
    for (comment, code) in functions {
        let text = comment.split_whitespace().filter(|&word| word != "*").collect::<Vec<_>>().join(" ");
        for words in ["Threads: ", "In operations", "After a fork: "] {
            assert!(text.contains(words), "this does not say `{words}`: {code}");
        }
        assert!(text.contains("Returns ") || code.trim().starts_with("void ") || text.contains("returns "), "{code}");
    }
}
