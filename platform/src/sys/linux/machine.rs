//! Data about the machine. Each architecture has its own lines in `/proc/cpuinfo`; only x86 has a name in each.

use std::fs;

use crate::KernelObjects;

/// Parts of Arm (implementer 0x41), by their number in the register MIDR (`arch/arm64/include/asm/cputype.h`).
const ARM_PARTS: [(&str, &str); 15] = [
    ("0xd03", "Cortex-A53"),
    ("0xd04", "Cortex-A35"),
    ("0xd05", "Cortex-A55"),
    ("0xd07", "Cortex-A57"),
    ("0xd08", "Cortex-A72"),
    ("0xd09", "Cortex-A73"),
    ("0xd0a", "Cortex-A75"),
    ("0xd0b", "Cortex-A76"),
    ("0xd0c", "Neoverse-N1"),
    ("0xd40", "Neoverse-V1"),
    ("0xd49", "Neoverse-N2"),
    ("0xd4f", "Neoverse-V2"),
    ("0xc07", "Cortex-A7"),
    ("0xc08", "Cortex-A8"),
    ("0xc09", "Cortex-A9"),
];

/// The keys of a name or, failing that, of an architecture, best first. x86 has another.
const NAMES: [&str; 6] = ["Model Name", "cpu model", "uarch", "cpu", "isa", "Hardware"];

pub(super) fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

pub(crate) fn kernel() -> Option<String> {
    line("/proc/sys/kernel/osrelease")
}

pub(crate) fn governor() -> Option<String> {
    line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
}

/// Only x86 has this flag.
pub(crate) fn virtual_machine() -> Option<bool> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    value(&cpuinfo, "flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// The machine's id, processor, number of processors and memory: a cloned image has the same id elsewhere. A container often has
/// no id. The kernel also has one, but another one after each start.
pub(crate) fn identity() -> Option<String> {
    let id =
        line("/etc/machine-id").filter(|id| id.len() >= 32 && id.chars().all(|digit| digit.is_ascii_hexdigit()))?;
    Some(identity_of(&id, cpu().as_deref(), line("/sys/devices/system/cpu/present").as_deref(), memory_bytes()))
}

/// The memory is in whole GiB, because each kernel keeps a little of it for itself.
fn identity_of(id: &str, cpu: Option<&str>, processors: Option<&str>, memory_bytes: Option<u64>) -> String {
    format!("{id} {cpu:?} {processors:?} {:?}", memory_bytes.map(|bytes| bytes.div_ceil(1 << 30)))
}

/// The objects of the kernel; `None` if this process may not know them: only root may.
pub fn kernel_objects() -> Option<KernelObjects> {
    KernelObjects::parse(&fs::read_to_string("/proc/slabinfo").ok()?)
}

/// The machine's memory, in bytes.
pub fn memory_bytes() -> Option<u64> {
    let table = fs::read_to_string("/proc/meminfo").ok()?;
    Some(super::process::number(&table, "MemTotal")? * 1024)
}

pub(crate) fn cpu() -> Option<String> {
    name_of(&fs::read_to_string("/proc/cpuinfo").ok()?, board)
}

fn value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    values(cpuinfo, key).next()
}

fn values<'a>(cpuinfo: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let values = fields.filter(move |(name, _)| name.trim() == key).map(|(_, value)| value.trim());
    values.filter(|value| !value.is_empty())
}

/// Names a processor, or else its core and its board: a core runs at very different speeds on boards.
fn name_of(cpuinfo: &str, board: impl Fn() -> Option<String>) -> Option<String> {
    let x86 = value(cpuinfo, "model name").filter(|_| value(cpuinfo, "CPU part").is_none());
    if let Some(name) = x86 {
        return Some(name.to_owned());
    }
    let processor = arm(cpuinfo).or_else(|| s390(cpuinfo)).or_else(|| {
        let name = NAMES.iter().find_map(|key| value(cpuinfo, key))?;
        Some(name.to_owned())
    });
    let machine = value(cpuinfo, "machine").or_else(|| value(cpuinfo, "system type")).map(str::to_owned);
    let parts: Vec<String> = [processor, board().or(machine)].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Names the kinds of cores of an Arm processor: a phone or a small board has two or three.
fn arm(cpuinfo: &str) -> Option<String> {
    let implementers = values(cpuinfo, "CPU implementer");
    let mut names = Vec::new();
    for (implementer, part) in implementers.zip(values(cpuinfo, "CPU part")) {
        let known = ARM_PARTS.iter().find(|(number, _)| implementer == "0x41" && *number == part);
        let name = known.map_or_else(|| format!("CPU {implementer}/{part}"), |(_, name)| (*name).to_owned());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| names.join(" + "))
}

/// Names a mainframe. The identification is a serial number and is left out.
fn s390(cpuinfo: &str) -> Option<String> {
    let line = value(cpuinfo, "processor 0")?;
    let machine = line.split(',').find_map(|part| part.trim().strip_prefix("machine = "))?;
    Some(format!("IBM {machine}"))
}

/// Returns the name of the board by the device tree, or else of the machine by its firmware (DMI).
fn board() -> Option<String> {
    let text = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        let text = text.trim_end_matches('\0').trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    text("/proc/device-tree/model").or_else(|| {
        let names = ["sys_vendor", "product_name"].map(|file| text(&format!("/sys/class/dmi/id/{file}")));
        let names: Vec<_> = names.into_iter().flatten().collect();
        (!names.is_empty()).then(|| names.join(" "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of some machines, cut to the first processor where all are alike.
    #[test]
    fn machines_without_a_model_name_are_told_apart() {
        let named = |cpuinfo: &str, board: &str| {
            name_of(cpuinfo, || (!board.is_empty()).then(|| board.to_owned())).unwrap_or_default()
        };
        let x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu\n";
        assert_eq!(named(x86, "Amazon EC2 c7a.large"), "AMD EPYC 9R14");
        let graviton = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\n\
                        CPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n";
        assert_eq!(named(graviton, "Amazon EC2 m6g.large"), "Neoverse-N1, Amazon EC2 m6g.large");
        let two_kinds = "CPU implementer\t: 0x41\nCPU part\t: 0xd05\n\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n\n\
                         CPU implementer\t: 0x51\nCPU part\t: 0x804\n";
        assert_eq!(named(two_kinds, ""), "Cortex-A55 + CPU 0x51/0x804");
        let armv7 = "processor\t: 0\nmodel name\t: ARMv7 Processor rev 5 (v7l)\nCPU implementer\t: 0x41\nCPU part\t: 0xc07\n\n\
                     Hardware\t: BCM2835\nRevision\t: a01041\nModel\t\t: Raspberry Pi 2 Model B Rev 1.1\n";
        assert_eq!(named(armv7, "Raspberry Pi 2 Model B Rev 1.1"), "Cortex-A7, Raspberry Pi 2 Model B Rev 1.1");
        let riscv = "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\nuarch\t\t: sifive,u74-mc\n";
        assert_eq!(named(riscv, "StarFive VisionFive 2 v1.3B"), "sifive,u74-mc, StarFive VisionFive 2 v1.3B");
        let power = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 2166.0MHz\n\ntimebase\t: 512000000\n\
                     platform\t: PowerNV\nmachine\t\t: PowerNV 9006-22P\n";
        assert_eq!(named(power, ""), "POWER9, altivec supported, PowerNV 9006-22P");
        let mainframe = "vendor_id       : IBM/S390\n# processors    : 2\n\
                         processor 0: version = FF,  identification = 0CFF28,  machine = 8561\n";
        assert_eq!(named(mainframe, ""), "IBM 8561");
        let mips = "system type\t\t: MediaTek MT7621 ver:1 eco:3\nmachine\t\t\t: Xiaomi Mi Router 4A\ncpu model\t\t: MIPS 1004Kc V2.15\n";
        assert_eq!(named(mips, ""), "MIPS 1004Kc V2.15, Xiaomi Mi Router 4A");
        assert_eq!(named("", ""), "");
        assert_eq!(named("CPU part\t:\n", ""), "");
    }

    #[test]
    fn a_cloned_image_on_another_machine_has_another_identity() {
        let id = "2c8c1f5ad3b04ef9a9bd2b7a4f0f6c11";
        let of = |cpu, processors, mib: u64| identity_of(id, Some(cpu), Some(processors), Some(mib << 20));
        let this = of("Xeon", "0-1", 7900);
        assert_eq!(this, of("Xeon", "0-1", 7950), "another kernel");
        let others = [of("EPYC", "0-1", 7900), of("Xeon", "0-3", 7900), of("Xeon", "0-1", 15_900)];
        assert!(others.iter().all(|other| *other != this), "{this}: {others:?}");
    }

    /// The name is one line of text.
    #[test]
    fn this_machine_has_a_name() {
        let name = cpu();
        if fs::exists("/proc/cpuinfo").unwrap_or_default() {
            assert!(name.as_ref().is_some_and(|name| !name.contains(char::is_control)), "{name:?}");
        }
    }
}
