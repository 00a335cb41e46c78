//! The operating systems: a module of free functions and types for each, of which one `cfg` picks one. It takes what it
//! has not itself from `fallback`. A public function is documented where Linux has it.

#[cfg(not(target_os = "linux"))]
mod fallback;
#[cfg(target_os = "linux")]
pub(crate) mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(not(windows))]
mod precise;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod sampler;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
pub use fallback::*;
#[cfg(target_os = "linux")]
pub use linux::*;
#[cfg(target_os = "macos")]
pub use macos::*;
#[cfg(windows)]
pub use windows::*;
