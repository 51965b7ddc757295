//! The kind of work that an operation is, which determines its lane.

/// The kind of work that an operation is, which determines the lane that it runs in.
///
/// Operations [on a GPU](crate::OpBuilder::on):
///
/// | property | `PerDevice` | `Pooled` | `Naive` |
/// |---|---|---|---|
/// | `Normal`, `NoSkip` | the GPU's lane for computations | the GPU's lane | the pushing thread |
/// | `DeleteVar` | the same, before all others | the same | the same |
/// | `CopyToGpu`, `CopyFromGpu` | the GPU's lane for copies in this direction | the GPU's lane | the pushing thread |
/// | `GpuPrioritized` | the GPU's lane for urgent work | the GPU's lane, before all others | the pushing thread |
/// | `CpuPrioritized`, `Async` | refused: [`PushError::NotOfDevice`](crate::PushError::NotOfDevice) | refused | refused |
///
/// All other operations:
///
/// | property | `PerDevice` | `Pooled` | `Naive` |
/// |---|---|---|---|
/// | `Normal` | the CPU's workers | the workers | the pushing thread |
/// | `CopyToGpu` | the thread for copies to devices | the copy thread | the pushing thread |
/// | `CopyFromGpu` | the thread for copies from devices | the copy thread | the pushing thread |
/// | `CpuPrioritized`, `GpuPrioritized` | the workers for prioritised operations | the workers, at the maximum priority | the pushing thread |
/// | `Async` | the pushing thread if the operation is ready immediately, else the CPU's workers | the same | the pushing thread |
/// | `DeleteVar` | the CPU's workers, before all others; runs even if variables have failed or the engine cancels | the same | the pushing thread |
/// | `NoSkip` | as `Normal`; runs even if variables have failed | the same | the pushing thread |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Property {
    /// Ordinary work.
    #[default]
    Normal,
    /// A copy from a device, on a thread of its own, so that it overlaps with computation.
    CopyFromGpu,
    /// A copy to a device, on a thread of its own, so that it overlaps with computation.
    CopyToGpu,
    /// Work that must start even if all workers are busy.
    CpuPrioritized,
    /// Urgent work of a device; without a device, like [`CpuPrioritized`](Self::CpuPrioritized).
    GpuPrioritized,
    /// Work that is short or only starts something: it begins on the pushing thread if it is ready then.
    Async,
    /// Work that releases a resource: never skipped, never cancelled.
    DeleteVar,
    /// Work that runs even if its variables have failed.
    NoSkip,
}
