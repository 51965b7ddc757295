//! A market-data feed: one operator applies every tick to the book that the push chooses.
//!
//! ```text
//! cargo run --release --example market
//! ```
//!
//! Look at `Feed`. Its operators are described once. A push passes the tick, which the run stores without an
//! allocation, and names the book. Ticks of one book are applied in the order of their pushes, and those of different
//! books in parallel. A gap in the numbers of a book's ticks fails the book, and later ticks of that book are skipped
//! until a snapshot overwrites it. The index reads two books and mutates a variable of its own.

use std::{error::Error, thread};

use raddle::{
    Engine, Operator, PushError, Var, WaitError,
    chosen::{self, ChosenRead, ChosenWrite, On},
};

const BOOKS: usize = 64;
const TICKS: u64 = 1_999;

#[derive(Clone, Debug, Default, PartialEq)]
struct Book {
    number: u64,
    last: u64,
    volume: u64,
}

/// A change of a book, with its number in that book's sequence.
#[derive(Clone, Copy)]
struct Tick {
    number: u64,
    price: u32,
    size: u32,
}

struct Feed {
    books: Vec<Var<Book>>,
    widest: Var<u64>,
    tick: Operator<On<ChosenWrite<Book>, Tick>>,
    reset: Operator<On<ChosenWrite<Book>, Book>>,
    compare: Operator<On<[ChosenRead<Book>; 2]>>,
}

impl Feed {
    fn new(engine: &Engine) -> Result<Self, PushError> {
        let widest = engine.var(0);
        let apply = |book: &mut Book, (), tick: Tick| {
            if tick.number != book.number + 1 {
                return Err(format!("tick {} follows tick {}", tick.number, book.number).into());
            }
            let Tick { number, price, size } = tick;
            *book = Book { number, last: price.into(), volume: book.volume + u64::from(size) };
            Ok(())
        };
        Ok(Self {
            books: (0..BOOKS).map(|book| engine.var(Book::default()).named(format!("book {book}"))).collect(),
            tick: engine.op("tick").try_operator_on(chosen::write(), (), apply)?,
            reset: engine.op("reset").operator_on(chosen::overwrite(), (), |book, (), to| *book = to)?,
            compare: engine.op("compare").operator_on(
                [chosen::read::<Book>(); 2],
                widest.write(),
                |[a, b], widest, ()| *widest = (*widest).max(a.last.abs_diff(b.last)),
            )?,
            widest,
        })
    }

    /// Pushes the ticks of every fourth book, from `first` on.
    fn receive(&self, first: usize) -> Result<(), PushError> {
        for number in 1..=TICKS {
            for book in (first..BOOKS).step_by(4) {
                let price = 100 + (number as u32 * (book as u32 + 1)) % 50;
                self.tick.push_on(&self.books[book], Tick { number, price, size: 10 })?;
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().max_pending(10_000).build()?;
    let feed = &Feed::new(&engine)?;

    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|first| scope.spawn(move || feed.receive(first))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a feed does not panic"))
    })?;
    for pair in feed.books.windows(2) {
        feed.compare.push_on([&pair[0], &pair[1]], ())?;
    }
    let widest = engine.get(&feed.widest)?;
    println!("{} ticks; the widest distance of two neighbours is {widest}", TICKS * BOOKS as u64);
    assert_eq!(widest, 49);

    // A tick was lost on the way.
    let book = &feed.books[7];
    feed.tick.push_on(book, Tick { number: TICKS + 2, price: 120, size: 10 })?;
    feed.tick.push_on(book, Tick { number: TICKS + 3, price: 121, size: 10 })?; // skipped
    let Err(WaitError::Failed(error)) = engine.get(book) else { return Err("the gap was not noticed".into()) };
    println!("{error}");
    feed.reset.push_on(book, Book { number: TICKS + 3, last: 121, volume: 0 })?;
    let applied = feed.tick.submit_on(book, Tick { number: TICKS + 4, price: 122, size: 10 })?;
    applied.wait()?;

    assert_eq!(engine.get(book)?, Book { number: TICKS + 4, last: 122, volume: 10 });
    assert_eq!(engine.get(&feed.books[63])?.volume, TICKS * 10);
    Ok(())
}
