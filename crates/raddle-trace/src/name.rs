//! Names of operations and variables.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher},
    ptr,
    sync::Arc,
};

use arc_swap::ArcSwapOption;

/// The name of an operation or a variable: a `&'static str`, or a `String` or `Arc<str>` created at run time.
///
/// Names are for people: they appear in errors, dumps and statistics, but the engine does not depend on them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// for shard in 0..4 {
///     let counts = engine.var(0).named(format!("counts of shard {shard}"));
///     engine.op("count").push(counts.write(), |counts| *counts += 1)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Name(Repr);

/// Only two words in size, since every operation's record reserves space for a name.
#[derive(Clone)]
enum Repr {
    Static(&'static str),
    Shared(Arc<Box<str>>),
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Name>() == 16);

impl Name {
    /// Returns the name as a string.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::Name;
    ///
    /// assert_eq!(Name::from("load").as_str(), Name::from(String::from("load")).as_str());
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Static(name) => name,
            Repr::Shared(name) => name,
        }
    }
}

/// The interned names: lists, each of names with the same remainder of their hash. They only grow, by their first name.
/// Lock-free, so that a fork never finds one locked.
static INTERNED: [ArcSwapOption<Interned>; 64] = [const { ArcSwapOption::const_empty() }; 64];

struct Interned {
    name: &'static str,
    next: Option<Arc<Interned>>,
}

/// Returns the name with this text among those from `first` on.
fn find(mut first: Option<&Arc<Interned>>, text: &str) -> Option<&'static str> {
    while let Some(interned) = first {
        if interned.name == text {
            return Some(interned.name);
        }
        first = interned.next.as_ref();
    }
    None
}

impl Name {
    /// Returns a name that owns no memory, so that a push with it costs as little as one with a `&'static str`. The
    /// text is copied once for all calls with equal texts and is never freed: use this for a bounded number of texts,
    /// such as those of a configuration.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let stages = ["load", "blur"].map(|stage| raddle::Name::interned(&format!("{stage} of camera 1")));
    /// for _ in 0..10 {
    ///     for stage in &stages {
    ///         engine.op(stage.clone()).push((), |()| {})?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn interned(text: &str) -> Self {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(text);
        let list = &INTERNED[hash as usize % INTERNED.len()];
        if let Some(name) = find(list.load().as_ref(), text) {
            return Self(Repr::Static(name));
        }
        let mut name = Box::leak(Box::<str>::from(text)) as &'static str;
        list.rcu(|first| match find(first.as_ref(), text) {
            Some(found) => {
                // Another thread was faster. Its copy serves all; the other stays too.
                name = found;
                first.clone()
            }
            None => Some(Arc::new(Interned { name, next: first.clone() })),
        });
        Self(Repr::Static(name))
    }
}

/// Stored in place of the length in the words of a name that owns memory. No string is this long.
const SHARED: usize = usize::MAX;

impl Name {
    /// The empty name.
    pub const EMPTY: Self = Self(Repr::Static(""));

    /// Returns whether this is the empty name.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Repr::Static(""))
    }

    /// Returns the string of a name that owns no memory.
    #[doc(hidden)]
    #[inline]
    pub fn as_static(&self) -> Option<&'static str> {
        match self.0 {
            Repr::Static(name) => Some(name),
            Repr::Shared(_) => None,
        }
    }

    /// Converts the name into two words, which own it until [`from_words`](Self::from_words) restores it.
    #[doc(hidden)]
    #[inline]
    pub fn into_words(self) -> [usize; 2] {
        match self.0 {
            Repr::Static(name) => [name.as_ptr().expose_provenance(), name.len()],
            Repr::Shared(name) => [Arc::into_raw(name).expose_provenance(), SHARED],
        }
    }

    /// Restores a name from the words returned by [`into_words`](Self::into_words).
    ///
    /// # Safety
    /// 1. The words came from `into_words`, and this is called once with them.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn from_words([start, len]: [usize; 2]) -> Self {
        if len == SHARED {
            // SAFETY: by (1) the pointer came from an `Arc`, which the words own.
            return Self(Repr::Shared(unsafe { Arc::from_raw(ptr::with_exposed_provenance(start)) }));
        }
        // SAFETY: by (1) `start` is the start of a static string of this length.
        let bytes = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(start), len) };
        // SAFETY: by (1) the bytes came from a string.
        Self(Repr::Static(unsafe { std::str::from_utf8_unchecked(bytes) }))
    }

    /// Returns whether the name owns memory.
    #[doc(hidden)]
    #[inline]
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Repr::Shared(_))
    }
}

/// A name, escaped for display: it can neither begin a line nor control a terminal.
#[derive(Debug)]
pub struct Plain<'t>(pub &'t str);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.0.contains(char::is_control) {
            return f.pad(self.0);
        }
        let escaped = self.0.chars().fold(String::new(), |mut text, char| {
            if char.is_control() {
                text.extend(char.escape_default());
            } else {
                text.push(char);
            }
            text
        });
        f.pad(&escaped)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Default for Name {
    #[inline]
    fn default() -> Self {
        Self::EMPTY
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&'static str> for Name {
    #[inline]
    fn from(name: &'static str) -> Self {
        Self(Repr::Static(name))
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Self(Repr::Shared(Arc::new(name.into_boxed_str())))
    }
}

/// Copies the name.
impl From<&String> for Name {
    fn from(name: &String) -> Self {
        Self::from(name.clone())
    }
}

impl From<Arc<str>> for Name {
    fn from(name: Arc<str>) -> Self {
        Self::from(name.to_string())
    }
}
