//! Data about the machine, and the CPU time and memory of processes.

use std::os::windows::io::{FromRawHandle, OwnedHandle};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windows_sys::Wdk::System::SystemServices::RtlGetVersion;
use windows_sys::Win32::Foundation::{CloseHandle, ERROR_SUCCESS, FILETIME, HANDLE};
use windows_sys::Win32::Security::{GetTokenInformation, TOKEN_ELEVATION, TOKEN_QUERY, TokenElevation};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX, OSVERSIONINFOW};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentThread, GetProcessTimes, GetThreadTimes, OpenProcess, OpenProcessToken,
    PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_VM_READ,
};
use windows_sys::Win32::System::WindowsProgramming::{QueryProcessCycleTime, QueryThreadCycleTime};
use windows_sys::w;

const ZERO: FILETIME = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };

/// A FILETIME counts 100 ns.
fn duration(time: FILETIME) -> Duration {
    Duration::from_nanos(((u64::from(time.dwHighDateTime) << 32) | u64::from(time.dwLowDateTime)) * 100)
}

/// The sum of the kernel and user time that a function of Windows writes, beside two other times.
fn cpu_time(times: impl FnOnce([*mut FILETIME; 4]) -> i32) -> Option<Duration> {
    let mut all = [ZERO; 4];
    let ok = times(all.each_mut().map(|time| &raw mut *time));
    let [_, _, kernel, user] = all;
    (ok != 0).then(|| duration(kernel) + duration(user))
}

/// How many cycles Windows counts in a nanosecond of a thread. `None` if it does not count them evenly: then CPU time is
/// counted in ticks of 15.6 ms.
static CYCLES_PER_NS: LazyLock<Option<f64>> = LazyLock::new(|| rate(std::iter::from_fn(busy).take(SPELLS)));

/// A thread computes that often, for that long, to calibrate the cycles.
const SPELLS: usize = 8;
const SPELL: Duration = Duration::from_millis(1);

pub(super) fn calibrate() {
    LazyLock::force(&CYCLES_PER_NS);
}

fn busy() -> Option<(u64, Duration)> {
    let begun = Instant::now();
    let cycles = cycles_of_thread()?;
    while begun.elapsed() < SPELL {}
    Some((cycles_of_thread()?.saturating_sub(cycles), begun.elapsed()))
}

/// The most cycles in a nanosecond: in other spells the thread lost the processor. The best two must agree.
fn rate(spells: impl Iterator<Item = (u64, Duration)>) -> Option<f64> {
    let mut rates: Vec<_> = spells.map(|(cycles, time)| cycles as f64 / time.as_nanos() as f64).collect();
    rates.sort_by(|one, other| other.total_cmp(one));
    let [best, next, ..] = rates[..] else { return None };
    (best > 0.0 && next > best * 0.99).then_some(best)
}

/// On x86-64 these are ticks of the time stamp counter, which is even; other processors count their own, uneven cycles.
fn cycles(query: impl FnOnce(*mut u64) -> i32) -> Option<u64> {
    let mut cycles = 0;
    (cfg!(target_arch = "x86_64") && query(&raw mut cycles) != 0).then_some(cycles)
}

fn cycles_of_thread() -> Option<u64> {
    // SAFETY: the pseudo handle is always valid, and the number is ours to write.
    cycles(|number| unsafe { QueryThreadCycleTime(GetCurrentThread(), number) })
}

fn time_of(cycles: Option<u64>) -> Option<Duration> {
    Some(Duration::from_nanos((cycles? as f64 / (*CYCLES_PER_NS)?) as u64))
}

pub fn cpu_of_process() -> Option<Duration> {
    // SAFETY: the pseudo handle is always valid, and the number is ours to write.
    let cycles = cycles(|number| unsafe { QueryProcessCycleTime(GetCurrentProcess(), number) });
    // SAFETY: the same, for four places.
    time_of(cycles).or_else(|| {
        cpu_time(|[created, exited, kernel, user]| unsafe {
            GetProcessTimes(GetCurrentProcess(), created, exited, kernel, user)
        })
    })
}

pub fn cpu_of_thread() -> Option<Duration> {
    // SAFETY: as above.
    time_of(cycles_of_thread()).or_else(|| {
        cpu_time(|[created, exited, kernel, user]| unsafe {
            GetThreadTimes(GetCurrentThread(), created, exited, kernel, user)
        })
    })
}

/// Memory of this process that is not the program's.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

/// Calls a function whose memory is not part of the peak: Wintun's driver locks its two rings in the process, as a kernel has a
/// device's queue elsewhere.
pub(super) fn uncounted<T>(start: impl FnOnce() -> T) -> T {
    let (growth, result) = growth(start);
    UNCOUNTED.fetch_add(growth, Ordering::Relaxed);
    result
}

fn growth<T>(start: impl FnOnce() -> T) -> (u64, T) {
    let resident = || rss_bytes_of(std::process::id()).unwrap_or_default();
    let before = resident();
    let result = start();
    (resident().saturating_sub(before), result)
}

/// Without the rings of the adapter.
pub fn peak_rss_bytes() -> Option<u64> {
    // SAFETY: the pseudo handle is always valid.
    let peak = memory_of(unsafe { GetCurrentProcess() })?.PeakWorkingSetSize as u64;
    Some(peak.saturating_sub(UNCOUNTED.load(Ordering::Relaxed)))
}

pub(crate) fn rss_bytes_of(pid: u32) -> Option<u64> {
    // SAFETY: the call takes numbers alone.
    let process = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_VM_READ, 0, pid) };
    if process.is_null() {
        return None;
    }
    // SAFETY: the handle is open, and no other value owns it.
    let _owner = unsafe { OwnedHandle::from_raw_handle(process) };
    Some(memory_of(process)?.WorkingSetSize as u64)
}

fn memory_of(process: HANDLE) -> Option<PROCESS_MEMORY_COUNTERS> {
    let mut counters = PROCESS_MEMORY_COUNTERS::default();
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    // SAFETY: the callers keep the process open, and `size` is the size of what is written.
    let ok = unsafe { K32GetProcessMemoryInfo(process, &raw mut counters, size) };
    (ok != 0).then_some(counters)
}

/// The machine's memory, as far as Windows manages it.
pub fn memory_bytes() -> Option<u64> {
    let size = size_of::<MEMORYSTATUSEX>() as u32;
    let mut status = MEMORYSTATUSEX { dwLength: size, ..MEMORYSTATUSEX::default() };
    // SAFETY: the structure is ours to write, and its size is set.
    let ok = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    (ok != 0).then_some(status.ullTotalPhys)
}

/// Whether this process has administrator rights. An administrator gets them with "run as administrator".
pub(super) fn is_elevated() -> Option<bool> {
    let mut token: HANDLE = std::ptr::null_mut();
    // SAFETY: the pseudo handle is always valid, and the token is ours to write.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token) } == 0 {
        return None;
    }
    let mut elevation = TOKEN_ELEVATION::default();
    let size = size_of::<TOKEN_ELEVATION>() as u32;
    let mut written = 0;
    // SAFETY: the token is open, and at most `size` bytes are written to `elevation`, which is that large.
    let ok = unsafe { GetTokenInformation(token, TokenElevation, (&raw mut elevation).cast(), size, &raw mut written) };
    // SAFETY: the token was opened above, and is not used after this.
    unsafe { CloseHandle(token) };
    (ok != 0).then_some(elevation.TokenIsElevated != 0)
}

/// `GetVersionEx` would return a version that depends on the program's manifest.
pub(crate) fn kernel() -> Option<String> {
    let size = size_of::<OSVERSIONINFOW>() as u32;
    let mut version = OSVERSIONINFOW { dwOSVersionInfoSize: size, ..OSVERSIONINFOW::default() };
    // SAFETY: the structure is ours to write, and its size is set.
    let status = unsafe { RtlGetVersion(&raw mut version) };
    let OSVERSIONINFOW { dwMajorVersion: major, dwMinorVersion: minor, dwBuildNumber: build, .. } = version;
    (status == 0).then(|| format!("{major}.{minor}.{build}"))
}

pub(crate) fn cpu() -> Option<String> {
    let mut text = [0_u16; 128];
    let mut len_bytes = size_of_val(&text) as u32;
    // SAFETY: the names end with a zero, at most `len_bytes` bytes are written to `text`, which is that long, and the
    // pointer to the value's type may be null.
    let code = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!("HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0"),
            w!("ProcessorNameString"),
            RRF_RT_REG_SZ,
            std::ptr::null_mut(),
            text.as_mut_ptr().cast(),
            &raw mut len_bytes,
        )
    };
    let end = text.iter().position(|unit| *unit == 0)?;
    (code == ERROR_SUCCESS && end > 0).then(|| String::from_utf16_lossy(&text[..end]).trim().to_owned())
}

/// Reads the bit that is reserved for hypervisors (CPUID 1, ECX 31).
#[cfg(target_arch = "x86_64")]
#[allow(clippy::unnecessary_wraps, reason = "other processors do not say")]
pub(crate) fn virtual_machine() -> Option<bool> {
    use std::arch::x86_64::__cpuid;

    /// EBX, ECX and EDX of leaf 0x40000000: "Microsoft Hv".
    const HYPER_V: [u32; 3] = [0x7263_694d, 0x666f_736f, 0x7648_2074];
    #[allow(unused_unsafe, reason = "a safe function from Rust 1.94 on")]
    // SAFETY: every processor of x86_64 has the instruction.
    let cpuid = |leaf| unsafe { __cpuid(leaf) };
    if cpuid(1).ecx >> 31 == 0 {
        return Some(false);
    }
    // If Hyper-V is on, Windows itself runs above it, in the partition that may create others (Hypervisor Top Level
    // Functional Specification, leaf 0x40000003, EBX bit 0). This is not a virtual machine.
    let vendor = cpuid(0x4000_0000);
    let root = [vendor.ebx, vendor.ecx, vendor.edx] == HYPER_V && cpuid(0x4000_0003).ebx & 1 == 1;
    Some(!root)
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn virtual_machine() -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filetime_counts_from_the_low_word_to_the_high_one() {
        assert_eq!(duration(FILETIME { dwLowDateTime: 10, dwHighDateTime: 0 }), Duration::from_micros(1));
        assert_eq!(duration(FILETIME { dwLowDateTime: 0, dwHighDateTime: 1 }), Duration::from_nanos(100 << 32));
    }

    #[test]
    fn cycles_are_calibrated_by_the_spells_that_nothing_interrupted() {
        let spell = |cycles| (cycles, Duration::from_millis(1));
        assert_eq!(rate([2_000_000, 3_000_000, 10, 2_990_000].map(spell).into_iter()), Some(3.0));
        // A processor that counts its own cycles, a system that counts none, and one spell alone.
        for uneven in [&[3_000_000, 2_000_000][..], &[0, 0], &[3_000_000], &[]] {
            assert_eq!(rate(uneven.iter().copied().map(spell)), None, "{uneven:?}");
        }
    }

    #[test]
    fn memory_that_a_call_makes_resident_is_its_growth() {
        let (growth, block) = growth(|| std::hint::black_box(vec![1_u8; 64 << 20]));
        assert!(growth > block.len() as u64 / 4, "{growth}");
    }

    #[test]
    fn the_machine_has_a_kernel_and_a_processor() {
        assert!(kernel().is_some_and(|version| version.split('.').all(|part| part.parse::<u32>().is_ok())));
        assert!(cpu().is_some_and(|model| !model.is_empty()));
        assert_eq!(virtual_machine().is_some(), cfg!(target_arch = "x86_64"));
    }
}
