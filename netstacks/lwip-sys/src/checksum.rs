//! lwIP's three checksum algorithms (`LWIP_CHKSUM_ALGORITHM`), for the bench. The stack uses the third.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn lwip_sys_sum_1(bytes: *const c_void, len: c_int) -> u16;
    fn lwip_sys_sum_2(bytes: *const c_void, len: c_int) -> u16;
    fn lwip_sys_sum_3(bytes: *const c_void, len: c_int) -> u16;
}

/// Each returns the sum of RFC 1071 of at most 65,535 bytes, in the machine's byte order and not complemented.
pub const ALGORITHMS: [fn(&[u8]) -> u16; 3] =
    [|bytes| sum(lwip_sys_sum_1, bytes), |bytes| sum(lwip_sys_sum_2, bytes), |bytes| sum(lwip_sys_sum_3, bytes)];

#[inline]
fn sum(algorithm: unsafe extern "C" fn(*const c_void, c_int) -> u16, bytes: &[u8]) -> u16 {
    let len = bytes.len().min(usize::from(u16::MAX)) as u16;
    // SAFETY: the pointer comes from a slice of at least `len` bytes.
    u16::from_be(unsafe { algorithm(bytes.as_ptr().cast(), c_int::from(len)) })
}
