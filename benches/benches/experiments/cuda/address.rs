//! Does the engine find the device, and thus the cores near it, in sysfs?

use std::{ffi::CStr, fs, path::Path};

use raddle::gpu::cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::{
    Experiment, Outcome,
    child::{self, figure, leaving},
    hand,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "address",
    about: "the device's PCI address: the one that the driver returns, compared with one made of domain, bus, device \
            and function 0; which of them sysfs has, and the cores that it lists as near",
    run,
    part,
};

fn run() -> Outcome {
    let part = child::run("address", &[], &[], 15)?.well()?;
    let [same, own, made, cores] = ["same", "own", "made", "cores"].map(|name| part.get(name) != 0.0);
    part.complete()?;
    let addresses = if same { "both addresses are the same" } else { "THE ADDRESSES DIFFER" };
    let follows = match (own, made) {
        (true, true) if cores => "sysfs has both, with the same cores",
        (true, true) => "sysfs has both, with DIFFERENT CORES; the engine uses the driver's",
        (true, false) => "sysfs has only the driver's, which the engine uses",
        (false, true) => "sysfs has ONLY THE ONE WITH FUNCTION 0, which the engine does not use",
        (false, false) => "sysfs has neither, so the cores near the device are not known here",
    };
    Ok(format!("{addresses}; {follows}"))
}

fn part(_: &[&str]) {
    let gpu = hand::open();
    let mut text = [0; 32];
    let device = gpu.context().cu_device();
    // SAFETY: the buffer has this size, and the driver writes only to it.
    let result = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) };
    hand::must("the address", result);
    // SAFETY: the driver has written a zero-terminated string, and the rest of the buffer is zeros.
    let own = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().to_lowercase();
    let attribute = |which| gpu.context().attribute(which).expect("the driver should know the attribute");
    let made = format!(
        "{:04x}:{:02x}:{:02x}.0",
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
    );
    let look = |address: &str| {
        let folder = Path::new("/sys/bus/pci/devices").join(address);
        let read = |name| fs::read_to_string(folder.join(name)).map(|text| text.trim().to_owned());
        let (cores, node) = (read("local_cpulist").unwrap_or_default(), read("numa_node").unwrap_or_default());
        println!(
            "{address}: {}, cores [{cores}], node [{node}]",
            if folder.exists() { "exists" } else { "does not exist" }
        );
        (folder.exists(), cores)
    };
    let (has_own, own_cores) = look(&own);
    let (has_made, made_cores) = look(&made);
    let is = |it| f64::from(u8::from(it));
    figure("same", is(own == made));
    figure("own", is(has_own));
    figure("made", is(has_made));
    figure("cores", is(own_cores == made_cores));
    leaving();
}
