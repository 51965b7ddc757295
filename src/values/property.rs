//! The kind of work that an operation performs, which determines its lane.

/// The kind of work that an operation performs, which determines its lane.
///
/// Operations [on a GPU](crate::OpBuilder::on):
///
/// | property | `PerDevice` | `Pooled` | `Naive` |
/// |---|---|---|---|
/// | `Normal` | the GPU's lane for computations | the GPU's lane | the pushing thread |
/// | `CopyToGpu`, `CopyFromGpu` | the GPU's lane for copies in this direction | the GPU's lane | the pushing thread |
/// | `GpuPrioritized` | the GPU's lane for urgent work | the GPU's lane, at the maximum priority | the pushing thread |
/// | `CpuPrioritized` | refused: [`Misfit::NotOfDevice`](crate::error::Misfit::NotOfDevice) | refused | refused |
///
/// All other operations:
///
/// | property | `PerDevice` | `Pooled` | `Naive` |
/// |---|---|---|---|
/// | `Normal` | the CPU's workers | the workers | the pushing thread |
/// | `CopyToGpu` | the thread for copies to devices | the copy thread | the pushing thread |
/// | `CopyFromGpu` | the thread for copies from devices | the copy thread | the pushing thread |
/// | `CpuPrioritized`, `GpuPrioritized` | the workers for prioritised operations | the workers, at the maximum priority | the pushing thread |
///
/// [`EngineKind::Naive`](crate::EngineKind::Naive) describes when its operations run on a thread other than the pushing
/// one.
///
/// These properties correspond to the values of `MXNet`'s `FnProperty` that select a lane. For the other values, raddle
/// has builder methods:
///
/// | `MXNet` | raddle |
/// |---|---|
/// | `kNoSkip` | [`OpBuilder::run_always`](crate::OpBuilder::run_always) |
/// | `kDeleteVar` | [`OpBuilder::cleanup`](crate::OpBuilder::cleanup) |
/// | `kAsync` | [`OpBuilder::eager`](crate::OpBuilder::eager) |
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::Property;
///
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// engine.op("urgent").property(Property::CpuPrioritized).push((), |()| {})?;
/// engine.wait_for_all()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Property {
    /// Ordinary work. `MXNet`'s `kNormal`.
    #[default]
    Normal,
    /// A copy from a device. Such copies overlap with computation and have their own thread in a `PerDevice` engine.
    /// `MXNet`'s `kCopyFromGPU`.
    CopyFromGpu,
    /// A copy to a device. Such copies overlap with computation and have their own thread in a `PerDevice` engine.
    /// `MXNet`'s `kCopyToGPU`.
    CopyToGpu,
    /// Urgent work on the CPU. In a `PerDevice` engine, it has its own workers, so it does not wait for busy ordinary
    /// workers. `MXNet`'s `kCPUPrioritized`.
    CpuPrioritized,
    /// Urgent work on a GPU. For an operation that is not on a GPU, equivalent to
    /// [`CpuPrioritized`](Self::CpuPrioritized). `MXNet`'s `kGPUPrioritized`.
    GpuPrioritized,
}
