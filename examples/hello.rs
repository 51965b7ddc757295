//! A first program: operations declare the variables that they read and write, and the engine finds the order.
//!
//! ```text
//! cargo run --example hello
//! ```
//!
//! Look at the accesses, such as `(text.read(), words.write())`: the engine derives the order from them and from the
//! order of the pushes alone. The two counts both read `text`, so they may run in parallel. `report` reads what the
//! counts write, so it runs after them. `replace` writes `text`, so it runs after the two readers pushed before it.

use std::error::Error;

use raddle::Engine;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;

    // The engine owns the values. Operations borrow them: `&T` for a read, `&mut T` for a write.
    let text = engine.var(String::new());
    let letters = engine.var(0);
    let words = engine.var(0);

    // On an engine with workers, a push returns without waiting for the operation.
    engine.op("write").push(text.write(), |text| text.push_str("warp and weft"))?;
    engine.op("count letters").push((text.read(), letters.write()), |(text, letters)| {
        *letters = text.chars().filter(|letter| letter.is_alphabetic()).count();
    })?;
    engine.op("count words").push((text.read(), words.write()), |(text, words)| {
        *words = text.split_whitespace().count();
    })?;
    engine.op("replace").push(text.write(), |text| *text = "heddle".to_owned())?;

    // `submit` pushes an operation that returns a value, and returns a handle to the value.
    let report = engine
        .op("report")
        .submit((letters.read(), words.read()), |(letters, words)| format!("{letters} letters in {words} words"))?;

    // Only these two lines wait: one for an operation, the other for a variable.
    let report = report.wait()?;
    let text = engine.get(&text)?;

    println!("{report}; then the text became `{text}`");
    assert_eq!(report, "11 letters in 3 words");
    assert_eq!(text, "heddle");
    Ok(())
}
