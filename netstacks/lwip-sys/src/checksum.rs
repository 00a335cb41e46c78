//! lwIP's three ways to compute the internet checksum (`LWIP_CHKSUM_ALGORITHM`, `core/inet_chksum.c`), side
//! by side: for the bench that compares them. The stack itself uses the third (`c/lwipopts.h`).

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn lwip_sys_sum_1(bytes: *const c_void, len: c_int) -> u16;
    fn lwip_sys_sum_2(bytes: *const c_void, len: c_int) -> u16;
    fn lwip_sys_sum_3(bytes: *const c_void, len: c_int) -> u16;
}

/// The algorithms 1, 2 and 3. Each answers the sum of RFC 1071, in the machine's byte order and not
/// complemented, of the first 65,535 bytes: more would not fit in the 32 bits of the first two's sums.
pub const ALGORITHMS: [fn(&[u8]) -> u16; 3] =
    [|bytes| sum(lwip_sys_sum_1, bytes), |bytes| sum(lwip_sys_sum_2, bytes), |bytes| sum(lwip_sys_sum_3, bytes)];

#[inline]
fn sum(algorithm: unsafe extern "C" fn(*const c_void, c_int) -> u16, bytes: &[u8]) -> u16 {
    let len = bytes.len().min(usize::from(u16::MAX)) as u16;
    // SAFETY: the pointer is a slice's, which is at least so long.
    u16::from_be(unsafe { algorithm(bytes.as_ptr().cast(), c_int::from(len)) })
}
