//! `struct tcp_info` (`include/uapi/linux/tcp.h`). The structure in libc ends before the windows.

use std::time::Duration;

use crate::TcpStatistics;

/// Length of the structure up to the last field that is read here, in bytes.
pub(super) const LEN: usize = RCV_WND + 4;

/// Offsets of fields of 32 bits, in bytes. The first eight bytes are flags.
const SND_MSS: usize = 16;
const RTT_US: usize = 68;
const SND_CWND: usize = 80;
const TOTAL_RETRANS: usize = 100;
const MIN_RTT_US: usize = 148;
const SND_WND: usize = 228;
const RCV_WND: usize = 232;

/// Reads the part of the structure that the kernel has filled.
pub(super) fn read(info: &[u8]) -> TcpStatistics {
    let word = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    TcpStatistics {
        retransmits: word(TOTAL_RETRANS).map(Into::into),
        // Zero or all ones mean "not measured yet" (`net/ipv4/tcp.c`, `tcp_get_info`).
        rtt: word(RTT_US).filter(|rtt_us| *rtt_us > 0).map(microseconds),
        min_rtt: word(MIN_RTT_US).filter(|rtt_us| *rtt_us != u32::MAX).map(microseconds),
        congestion_window_bytes: word(SND_CWND)
            .zip(word(SND_MSS))
            .map(|(segments, mss)| u64::from(segments) * u64::from(mss)),
        send_window_bytes: word(SND_WND).map(Into::into),
        receive_window_bytes: word(RCV_WND).map(Into::into),
    }
}

fn microseconds(time_us: u32) -> Duration {
    Duration::from_micros(time_us.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of each word is its offset.
    fn info() -> [u8; LEN] {
        let mut info = [0; LEN];
        for (index, word) in info.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&(index as u32 * 4).to_ne_bytes());
        }
        info
    }

    #[test]
    fn every_field_is_read_where_it_lies() {
        let us = Duration::from_micros;
        assert_eq!(
            read(&info()),
            TcpStatistics {
                retransmits: Some(100),
                rtt: Some(us(68)),
                min_rtt: Some(us(148)),
                congestion_window_bytes: Some(80 * 16),
                send_window_bytes: Some(228),
                receive_window_bytes: Some(232),
            }
        );
    }

    #[test]
    fn what_a_kernel_does_not_fill_or_measure_is_not_said() {
        // Linux 5.4 to 6.1, and Linux 4.9.
        let statistics = read(&info()[..232]);
        assert_eq!((statistics.send_window_bytes, statistics.receive_window_bytes), (Some(228), None));
        let statistics = read(&info()[..160]);
        assert_eq!((statistics.min_rtt, statistics.send_window_bytes), (Some(microseconds(148)), None));
        assert_eq!(read(&[]), TcpStatistics::default());
        assert_eq!(read(&info()[..70]).rtt, None);
        // Not measured.
        let mut info = info();
        info[RTT_US..RTT_US + 4].fill(0);
        info[MIN_RTT_US..MIN_RTT_US + 4].fill(0xff);
        let statistics = read(&info);
        assert_eq!((statistics.rtt, statistics.min_rtt), (None, None));
    }
}
