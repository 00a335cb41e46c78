//! Private readers of bytes, for the fuzz targets alone. This is no part of the interface.

/// Reads a text as each reader of a file of `/proc` does. Returns how many of them found something.
#[cfg(target_os = "linux")]
pub fn read_proc(text: &str, interface: &str, hertz: u64) -> usize {
    use crate::sys::linux;
    usize::from(linux::parse_counts(text, interface).is_some())
        + usize::from(linux::parse_stolen(text, hertz).is_some())
        + usize::from(linux::parse_throttled(text).is_some())
        + usize::from(linux::is_alive_by(text))
}
