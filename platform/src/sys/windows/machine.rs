//! Data about the machine, and the CPU time and memory of this process.

use std::time::Duration;

use windows_sys::Wdk::System::SystemServices::RtlGetVersion;
use windows_sys::Win32::Foundation::{CloseHandle, ERROR_SUCCESS, FILETIME, HANDLE};
use windows_sys::Win32::Security::{GetTokenInformation, TOKEN_ELEVATION, TOKEN_QUERY, TokenElevation};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX, OSVERSIONINFOW};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentThread, GetProcessTimes, GetThreadTimes, OpenProcessToken,
};
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

pub fn cpu_of_process() -> Option<Duration> {
    // SAFETY: the pseudo handle is always valid and the four places are ours to write.
    cpu_time(|[created, exited, kernel, user]| unsafe {
        GetProcessTimes(GetCurrentProcess(), created, exited, kernel, user)
    })
}

pub fn cpu_of_thread() -> Option<Duration> {
    // SAFETY: as above.
    cpu_time(|[created, exited, kernel, user]| unsafe {
        GetThreadTimes(GetCurrentThread(), created, exited, kernel, user)
    })
}

pub fn peak_rss_bytes() -> Option<u64> {
    let mut counters = PROCESS_MEMORY_COUNTERS::default();
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    // SAFETY: the pseudo handle is always valid, and `size` is the size of what is written.
    let ok = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, size) };
    (ok != 0).then_some(counters.PeakWorkingSetSize as u64)
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
    fn the_machine_has_a_kernel_and_a_processor() {
        assert!(kernel().is_some_and(|version| version.split('.').all(|part| part.parse::<u32>().is_ok())));
        assert!(cpu().is_some_and(|model| !model.is_empty()));
        assert_eq!(virtual_machine().is_some(), cfg!(target_arch = "x86_64"));
    }
}
