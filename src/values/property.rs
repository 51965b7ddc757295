//! What kind of work an operation is, and the lane it gets for it.

/// What kind of work an operation is, and so the lane that it runs in.
///
/// Operations [on a GPU](crate::OpBuilder::on):
///
/// | property | `PerDevice` | `Pooled` | `Naive` |
/// |---|---|---|---|
/// | `Normal`, `NoSkip` | the GPU's lane for computations | the GPU's lane | the pushing thread |
/// | `DeleteVar` | the same, before all others | the same | the same |
/// | `CopyToGpu`, `CopyFromGpu` | the GPU's lane for copies this way | the GPU's lane | the pushing thread |
/// | `GpuPrioritized` | the GPU's lane for urgent work | the GPU's lane, before all others | the pushing thread |
/// | `CpuPrioritized`, `Async` | refused: [`PushError::NotOfDevice`](crate::PushError::NotOfDevice) | refused | refused |
///
/// All others:
///
/// | property | `PerDevice` | `Pooled` | `Naive` |
/// |---|---|---|---|
/// | `Normal` | the CPU's workers | the workers | the pushing thread |
/// | `CopyToGpu` | the thread for copies to devices | the copy thread | the pushing thread |
/// | `CopyFromGpu` | the thread for copies from devices | the copy thread | the pushing thread |
/// | `CpuPrioritized`, `GpuPrioritized` | the workers for prioritised operations | the workers, before all with a lower priority than the highest | the pushing thread |
/// | `Async` | the pushing thread if the operation is ready at once, else the CPU's workers | the same | the pushing thread |
/// | `DeleteVar` | the CPU's workers, before all others; runs although variables have failed or the engine cancels | the same | the pushing thread |
/// | `NoSkip` | as `Normal`; runs although variables have failed | the same | the pushing thread |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Property {
    /// Ordinary work.
    #[default]
    Normal,
    /// A copy from a device, on a thread of its own so that it overlaps with computation.
    CopyFromGpu,
    /// A copy to a device, on a thread of its own so that it overlaps with computation.
    CopyToGpu,
    /// Work that must start although all workers are busy.
    CpuPrioritized,
    /// The same for work of a device; without one, as [`CpuPrioritized`](Self::CpuPrioritized).
    GpuPrioritized,
    /// Work that is short or only starts something: begun on the pushing thread if it is ready then.
    Async,
    /// Work that gives something back: never skipped, never cancelled.
    DeleteVar,
    /// Work that runs although variables it names have failed.
    NoSkip,
}
