//! Segments out of order, at the edges of the window, and tiny ones.

use super::*;

impl Bench {
    /// Sends a segment at an offset from `next`.
    fn put_at(&mut self, next: &Segment, offset: usize, len: usize, flags: u8) {
        self.put(&Segment { seq: next.seq.wrapping_add(offset as u32), len, flags, ..next.clone() });
    }

    /// Reads all received bytes, and checks them. Returns their number, and whether the peer's FIN came behind.
    fn read(&mut self, accepted: Accepted, from: usize) -> (usize, bool) {
        let (mut count, mut buffer) = (0, [0; 4096]);
        loop {
            match self.engine.recv(accepted.flow, &mut buffer) {
                Ok(0) => return (count, true),
                Ok(len) => {
                    assert_eq!(buffer[..len], bytes(100 + from + count, len));
                    count += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (count, false),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_fin_out_of_order_does_not_lengthen_the_window() {
    let mut bench = Bench::new();
    let (accepted, next) = bench.open(&MSS_1460);
    for offset in (0..64_100).step_by(1282) {
        bench.put_at(&next, offset, 1282, ACK);
        bench.turn();
    }
    // The window is 1,435 bytes.
    bench.put_at(&next, 65_100, 0, FIN | ACK);
    bench.turn();
    bench.put_at(&next, 64_100, 1460, ACK);
    let ack = bench.turn().pop().unwrap();
    assert_eq!(ack.ack, next.seq + 65_101);
    assert_eq!(bench.read(accepted, 0), (65_100, true));
}

/// A generator of random numbers: the one of Numerical Recipes.
pub(super) struct Random(pub(super) u32);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % end
    }
}

/// How many ranges the adapter has looked at.
fn steps() -> usize {
    // SAFETY: the caller's bench holds the lock of lwIP's only engine.
    unsafe { lwip_sys::lwip_sys_reorder_steps }
}

/// A window of 4 MiB, and buffers of 64 KiB.
fn wide() -> (Bench, Accepted, Segment) {
    let mut bench = Bench::over(MemoryLink::offloading_pair(1500, 256), 4 << 20);
    let (accepted, next) = bench.open(&[2, 4, 5, 180, 3, 3, 7, 1]);
    (bench, accepted, next)
}

#[test]
fn a_byte_at_every_second_place_costs_few_steps_and_holds_no_buffer() {
    const COUNT: usize = 5000;
    for order in 0..3 {
        let (mut bench, accepted, next) = wide();
        let mut random = Random(7);
        let before = steps();
        for index in 0..COUNT {
            let place = [index, COUNT - index, random.below(COUNT)][order];
            bench.put_at(&next, 2 * place + 1, 1, ACK);
            bench.turn();
        }
        let each = (steps() - before) / COUNT;
        assert!(each <= 512, "{each} steps for each segment");
        assert!(bench.engine.core().pool.lent <= 1, "{} buffers", bench.engine.core().pool.lent);
        bench.put_at(&next, 0, 1400, ACK);
        bench.turn();
        assert!(bench.read(accepted, 0).0 >= 1400);
    }
}

#[test]
fn a_window_behind_one_hole_is_appended_in_one_step_each() {
    const LEN: usize = 1448;
    let (mut bench, accepted, next) = wide();
    let before = steps();
    let count = (4 << 20) / LEN;
    for index in 1..count {
        bench.put_at(&next, index * LEN, LEN, ACK);
        bench.turn();
    }
    assert_eq!(steps() - before, count - 1);
    bench.put_at(&next, 0, LEN, ACK);
    assert_eq!(bench.turn().pop().unwrap().ack, next.seq + (count * LEN) as u32);
    assert_eq!(bench.read(accepted, 0), (count * LEN, false));
}

#[test]
fn tiny_segments_behind_a_hole_are_joined_when_it_is_filled() {
    const COUNT: usize = 8000;
    let (mut bench, accepted, next) = wide();
    for index in 1..COUNT {
        bench.put_at(&next, index, 1, ACK);
        bench.turn();
    }
    bench.put_at(&next, 0, 1, ACK);
    bench.turn();
    let mut pieces = 0;
    let taken = bench.engine.lend(accepted.flow, &mut |slices| {
        pieces += slices.len();
        Ok(slices.iter().map(|slice| slice.len()).sum())
    });
    assert_eq!(taken.unwrap(), COUNT);
    assert!(pieces < 10, "{pieces} pieces");
}
