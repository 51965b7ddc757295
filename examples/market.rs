//! A market-data feed: one operator applies every tick to the book that the push chooses.
//!
//! ```text
//! cargo run --release --example market
//! ```
//!
//! Look at `Feed`. Its operators are described once. A push passes the tick, which the run stores without an
//! allocation, and names the book. Ticks of one book are applied in the order of their pushes, and those of different
//! books in parallel. A gap in the numbers of a book's ticks fails the book, and later ticks of that book are skipped
//! until a snapshot overwrites it. The index reads two books and mutates a variable of its own. The screen is slower
//! than the feed and shows only the newest of the quotes that wait for it.

use std::{error::Error, thread, time::Duration};

use raddle::{
    Engine, Operator, PushError, Var, WaitError,
    chosen::{self, ChosenRead, ChosenWrite, Newest, On},
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

/// A price of the first book, for the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Quote {
    number: u64,
    price: u32,
}

/// What the screen shows, and how often it was drawn.
#[derive(Clone, Default)]
struct Screen {
    shown: Quote,
    drawn: u64,
}

struct Feed {
    books: Vec<Var<Book>>,
    screen: Var<Screen>,
    widest: Var<u64>,
    tick: Operator<On<ChosenWrite<Book>, Tick>>,
    reset: Operator<On<ChosenWrite<Book>, Book>>,
    compare: Operator<On<[ChosenRead<Book>; 2]>>,
    show: Operator<Newest<Quote>>,
}

impl Feed {
    fn new(engine: &Engine) -> Result<Self, PushError> {
        let (widest, screen) = (engine.var(0), engine.var(Screen::default()));
        let draw = |screen: &mut Screen, quote: Quote| {
            thread::sleep(Duration::from_micros(100));
            *screen = Screen { shown: quote, drawn: screen.drawn + 1 };
        };
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
            show: engine.op("show").operator_newest(1, screen.write(), draw)?,
            screen,
            widest,
        })
    }

    /// Pushes the ticks of every fourth book, from `first` on.
    fn receive(&self, first: usize) -> Result<(), PushError> {
        for number in 1..=TICKS {
            for book in (first..BOOKS).step_by(4) {
                let price = 100 + (number as u32 * (book as u32 + 1)) % 50;
                self.tick.push_on(&self.books[book], Tick { number, price, size: 10 })?;
                if book == 0 {
                    self.show.push(Quote { number, price })?;
                }
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

    // The last quote is shown, however slow the screen is.
    let screen = engine.get(&feed.screen)?;
    println!(
        "the screen shows {:?}, was drawn {} times, and left out {} quotes",
        screen.shown,
        screen.drawn,
        feed.show.dropped()
    );
    assert_eq!(screen.shown.number, TICKS);
    assert_eq!(screen.drawn + feed.show.dropped(), TICKS);

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
