//! Extension traits for push forms that tests need and the library lacks: the function may precede the variables, take
//! only the context, and return nothing or a `Result` with an error of any type.

use raddle::{
    Accesses, Completion, Engine, OpBuilder, OpContext, OpHandle, Operator, PushError, Token, access::Refs, completion,
    cx, error::BoxError, gpu::GpuStream, stream,
};

/// The return type of a function: `()`, a `Result` with any error, or `!`.
pub trait Report {
    fn into_result(self) -> Result<(), BoxError>;
}

impl Report for () {
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError>> Report for Result<(), E> {
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

/// Names the return type of a function type, so that this file can refer to the type `!`.
pub trait Returns {
    type Type;
}

impl<R> Returns for fn() -> R {
    type Type = R;
}

impl Report for <fn() -> ! as Returns>::Type {
    fn into_result(self) -> Result<(), BoxError> {
        self
    }
}

/// Additional methods of a builder.
pub trait DescriptionShapes: Sized {
    /// Sets the property or calls the builder method that represents it.
    fn kind(self, property: Property) -> Self;

    /// Pushes a function that takes the context, over the untyped variables declared so far.
    fn push_sync<F, R>(self, f: F) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>) -> R + Send + 'static,
        R: Report;

    /// Creates an operator over the untyped variables declared so far, from a function that takes the context.
    fn operator_sync<F, R>(self, f: F) -> Result<Operator, PushError>
    where
        F: Fn(&OpContext<'_>) -> R + Send + Sync + 'static,
        R: Report;

    /// Like `push` or `try_push`, depending on the return type of the function.
    fn push_any<A, F, R>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> R + Send + 'static,
        R: Report;

    /// Like `push` or `try_push` with a completion, depending on the return type of the function.
    fn push_async_any<A, F, R>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>, Completion) -> R + Send + 'static,
        R: Report;

    /// Like `operator` or `try_operator`, depending on the return type of the function.
    fn operator_any<A, F, R>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(Refs<'a, A>) -> R + Send + Sync + 'static,
        R: Report;

    /// Like `try_submit`, but with an error of any type.
    fn submit_any<A, F, R, E>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Into<BoxError>;

    /// Like `launch` or `try_launch`, depending on the return type of the function.
    fn launch_any<A, F, R>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(&mut GpuStream, Refs<'a, A>) -> R + Send + 'static,
        R: Report;

    /// Like `try_submit_launch`, but with an error of any type.
    fn submit_launch_any<A, F, R, E>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(&mut GpuStream, Refs<'a, A>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Into<BoxError>;

    /// Like `launch_operator` or `try_launch_operator`, depending on the return type of the function.
    fn launch_operator_any<A, F, R>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(&mut GpuStream, Refs<'a, A>) -> R + Send + Sync + 'static,
        R: Report;
}

impl DescriptionShapes for OpBuilder<'_> {
    fn kind(self, property: Property) -> Self {
        match property {
            Property::Normal => self.property(raddle::Property::Normal),
            Property::CopyFromGpu => self.property(raddle::Property::CopyFromGpu),
            Property::CopyToGpu => self.property(raddle::Property::CopyToGpu),
            Property::CpuPrioritized => self.property(raddle::Property::CpuPrioritized),
            Property::GpuPrioritized => self.property(raddle::Property::GpuPrioritized),
            Property::Async => self.eager(),
            Property::DeleteVar => self.cleanup(),
            Property::NoSkip => self.run_always(),
        }
    }

    #[inline]
    #[track_caller]
    fn push_sync<F, R>(self, f: F) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>) -> R + Send + 'static,
        R: Report,
    {
        self.try_push(cx(), move |cx| f(cx).into_result())
    }

    #[track_caller]
    fn operator_sync<F, R>(self, f: F) -> Result<Operator, PushError>
    where
        F: Fn(&OpContext<'_>) -> R + Send + Sync + 'static,
        R: Report,
    {
        self.try_operator(cx(), move |cx| f(cx).into_result())
    }

    #[track_caller]
    fn push_any<A, F, R>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> R + Send + 'static,
        R: Report,
    {
        self.try_push(accesses, move |refs| f(refs).into_result())
    }

    #[track_caller]
    fn push_async_any<A, F, R>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>, Completion) -> R + Send + 'static,
        R: Report,
    {
        self.try_push((accesses, completion()), move |(refs, done)| f(refs, done).into_result())
    }

    #[track_caller]
    fn operator_any<A, F, R>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(Refs<'a, A>) -> R + Send + Sync + 'static,
        R: Report,
    {
        self.try_operator(accesses, move |refs| f(refs).into_result())
    }

    #[track_caller]
    fn submit_any<A, F, R, E>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Into<BoxError>,
    {
        self.try_submit(accesses, move |refs| f(refs).map_err(Into::into))
    }

    #[track_caller]
    fn launch_any<A, F, R>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(&mut GpuStream, Refs<'a, A>) -> R + Send + 'static,
        R: Report,
    {
        self.try_push((accesses, stream()), move |(refs, stream)| f(stream, refs).into_result())
    }

    #[track_caller]
    fn submit_launch_any<A, F, R, E>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(&mut GpuStream, Refs<'a, A>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Into<BoxError>,
    {
        self.try_submit((accesses, stream()), move |(refs, stream)| f(stream, refs).map_err(Into::into))
    }

    #[track_caller]
    fn launch_operator_any<A, F, R>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(&mut GpuStream, Refs<'a, A>) -> R + Send + Sync + 'static,
        R: Report,
    {
        self.try_operator((accesses, stream()), move |(refs, stream)| f(stream, refs).into_result())
    }
}

/// Additional methods of an engine.
pub trait EngineShapes {
    /// Pushes an unnamed operation that completes when its function returns.
    fn push_sync<F, R, const READS: usize, const WRITES: usize>(
        &self,
        f: F,
        reads: [&Token; READS],
        writes: [&Token; WRITES],
    ) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>) -> R + Send + 'static,
        R: Report;

    /// Pushes an unnamed operation that completes only when its [`Completion`] is used or dropped.
    fn push_async<F, R, const READS: usize, const WRITES: usize>(
        &self,
        f: F,
        reads: [&Token; READS],
        writes: [&Token; WRITES],
    ) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>, Completion) -> R + Send + 'static,
        R: Report;
}

impl EngineShapes for Engine {
    #[inline]
    #[track_caller]
    fn push_sync<F, R, const READS: usize, const WRITES: usize>(
        &self,
        f: F,
        reads: [&Token; READS],
        writes: [&Token; WRITES],
    ) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>) -> R + Send + 'static,
        R: Report,
    {
        self.op("").reads(reads).writes(writes).push_sync(f)
    }

    #[track_caller]
    fn push_async<F, R, const READS: usize, const WRITES: usize>(
        &self,
        f: F,
        reads: [&Token; READS],
        writes: [&Token; WRITES],
    ) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>, Completion) -> R + Send + 'static,
        R: Report,
    {
        let description = self.op("").reads(reads).writes(writes);
        description.try_push((cx(), completion()), move |(cx, done)| f(cx, done).into_result())
    }
}

/// The kinds of operations in random programs: raddle's properties, and what is a property in `MXNet` but a builder
/// method in raddle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Property {
    #[default]
    Normal,
    CopyFromGpu,
    CopyToGpu,
    CpuPrioritized,
    GpuPrioritized,
    Async,
    DeleteVar,
    NoSkip,
}
