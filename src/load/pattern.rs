//! The payload: bytes that reveal their position in the stream.

use super::error::LoadError;
/// Length of the pattern, in bytes: a prime, so bytes that were lost, repeated or moved by a usual length do not match.
const PERIOD: usize = 65_521;

/// The longest slice of a row of messages, in bytes.
const CHUNK: usize = 64 << 10;

/// An endless payload, which both sides make from the same seed. One period and the length of a buffer are in memory.
pub(crate) struct Pattern {
    /// The length after which it repeats, in bytes.
    pub(crate) period: usize,
    bytes: Vec<u8>,
}

impl Pattern {
    pub(crate) fn new(seed: u64, longest: usize) -> Self {
        Self::repeating(seed, PERIOD, longest)
    }

    /// A row of messages of `len` bytes. All are alike: the beginning of the stream of this seed.
    pub(crate) fn of_messages(seed: u64, len: usize) -> Self {
        Self::repeating(seed, len, CHUNK)
    }

    fn repeating(seed: u64, period: usize, longest: usize) -> Self {
        let mut state = seed;
        let mut stream = Vec::with_capacity(PERIOD + 8);
        while stream.len() < PERIOD {
            stream.extend_from_slice(&split_mix(&mut state).to_le_bytes());
        }
        stream.truncate(PERIOD);
        let mut bytes: Vec<u8> = stream.iter().copied().cycle().take(period).collect();
        let repeated: Vec<u8> = bytes.iter().copied().cycle().take(longest).collect();
        bytes.extend(repeated);
        Self { period, bytes }
    }

    /// `len` bytes from `offset` on; fewer if `len` exceeds the longest slice, and at least one.
    pub(crate) fn slice(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset % self.period as u64) as usize;
        let end = self.bytes.len().min(start + len);
        &self.bytes[start..end]
    }

    pub(crate) fn verify(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), LoadError> {
        while !bytes.is_empty() {
            let expected = self.slice(offset, bytes.len());
            let (head, rest) = bytes.split_at(expected.len());
            if head != expected {
                let at = head.iter().zip(expected).take_while(|(a, b)| a == b).count();
                return Err(LoadError::Corrupt { offset: offset + at as u64 });
            }
            offset += head.len() as u64;
            bytes = rest;
        }
        Ok(())
    }
}

/// `SplitMix64`, by Steele, Lea and Flood (2014), with the constants of the paper.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_verifies_in_any_cut() {
        let pattern = Pattern::new(1, 1000);
        let mut stream = Vec::new();
        while stream.len() < 3 * PERIOD {
            let offset = stream.len() as u64;
            stream.extend_from_slice(pattern.slice(offset, 1000));
        }
        for cut in [1, 7, 1460, PERIOD, PERIOD + 1, stream.len()] {
            let mut offset = 0;
            for piece in stream.chunks(cut) {
                assert!(pattern.verify(offset, piece).is_ok(), "cut {cut} at {offset}");
                offset += piece.len() as u64;
            }
        }
    }

    #[test]
    fn a_changed_a_lost_a_repeated_byte_and_another_stream_are_found() {
        let pattern = Pattern::new(1, 200_000);
        let good = pattern.slice(0, 150_000).to_vec();
        let mut flipped = good.clone();
        flipped[100_000] ^= 1;
        assert!(matches!(pattern.verify(0, &flipped), Err(LoadError::Corrupt { offset: 100_000 })));
        for shift in [1, 1460, 65_536, 65_160] {
            assert!(pattern.verify(0, &good[shift..]).is_err(), "{shift} bytes lost");
            assert!(pattern.verify(shift as u64, &good[..1000]).is_err(), "{shift} bytes repeated");
        }
        assert!(pattern.verify(0, Pattern::new(2, 1000).slice(0, 1000)).is_err());
    }

    #[test]
    fn messages_follow_each_other_and_a_changed_byte_is_found() {
        for len in [1, 7, 1000, CHUNK, CHUNK + 1, 1_000_000] {
            let messages = Pattern::of_messages(1, len);
            // As a sender cuts them.
            let (mut sent, mut offset) = (Vec::new(), 0);
            while offset < 2 * len + 1 {
                let bytes = messages.slice(offset as u64, (2 * len + 1 - offset).min(999));
                sent.extend_from_slice(bytes);
                offset += bytes.len();
            }
            assert_eq!(sent[..len], sent[len..2 * len], "{len}");
            // As a receiver gets them.
            assert!(messages.verify(0, &sent).is_ok(), "{len}");
            assert!(messages.verify(3, &sent[3.min(2 * len)..]).is_ok(), "{len}");
            sent[2 * len] ^= 1;
            let found = messages.verify(0, &sent);
            assert!(matches!(found, Err(LoadError::Corrupt { offset }) if offset == 2 * len as u64), "{len}");
        }
    }
}
