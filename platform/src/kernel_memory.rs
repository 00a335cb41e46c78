//! The memory that the kernel takes for sockets: it is of no process.

use std::collections::BTreeMap;

/// The objects in the caches of the kernel, whoever they are for (`/proc/slabinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelObjects {
    /// The objects of each cache in use, and the length of one in bytes.
    caches: BTreeMap<String, (u64, u64)>,
}

impl KernelObjects {
    /// Reads the table; `None` if it has no line of a cache. A line begins with its name, the objects in use, all objects, and
    /// the length of one (`slabinfo(5)`).
    pub fn parse(table: &str) -> Option<Self> {
        let cache = |line: &str| {
            let mut words = line.split_whitespace();
            let (name, active) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            Some((name, (active, words.nth(1)?.parse().ok()?)))
        };
        let caches: BTreeMap<_, _> = table.lines().filter_map(cache).collect();
        (!caches.is_empty()).then_some(Self { caches })
    }

    /// The memory of the objects that this many sockets have added since `earlier`, in bytes: those of each cache that has grown
    /// by one for every two sockets or more. Others have grown by chance.
    pub fn added_by(&self, sockets: u64, earlier: &Self) -> u64 {
        let added = self.caches.iter().map(|(name, (active, len))| {
            let before = earlier.caches.get(name).map_or(0, |(active, _)| *active);
            let grown = active.saturating_sub(before);
            if grown.saturating_mul(2) >= sockets { grown.saturating_mul(*len) } else { 0 }
        });
        added.fold(0, u64::saturating_add)
    }
}

/// The sockets of a network that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCount {
    /// Those of TCP that are bound or connected.
    pub tcp: u64,
    /// Those of UDP that are bound.
    pub udp: u64,
}

impl SocketCount {
    /// Reads the tables of both versions of IP (`/proc/net/sockstat` and `sockstat6`). A line is `TCP: inuse 3 …` or `TCP6: inuse 3`.
    pub fn parse(table: &str) -> Self {
        let count = |protocol: &str| {
            let of_line = |line: &str| {
                let (name, rest) = line.split_once(": inuse ")?;
                let is_wanted = name.strip_suffix('6').unwrap_or(name) == protocol;
                rest.split_whitespace().next().filter(|_| is_wanted)?.parse().ok()
            };
            table.lines().filter_map(of_line).fold(0, u64::saturating_add)
        };
        Self { tcp: count("TCP"), udp: count("UDP") }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn objects_count_where_there_is_one_for_two_sockets() {
        let table = |tcp, dentry, vma| {
            let head = "slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize> <objperslab>\n";
            let tail = "1 : tunables 0 0 0 : slabdata 9 9 0";
            format!(
                "{head}TCP {tcp} 9999 2368 13 {tail}\ndentry {dentry} 9999 192 21 {tail}\nvma {vma} 9999 100 21 {tail}\n"
            )
        };
        let [before, after] =
            [table(10, 500, 70), table(210, 600, 169)].map(|text| KernelObjects::parse(&text).unwrap());
        assert_eq!(after.added_by(200, &before), 200 * 2368 + 100 * 192, "99 for 200 are others'");
        assert_eq!(before.added_by(200, &after), 0);
        for wrong in ["", "slabinfo - version: 2.1\n", "TCP x 1 2\nUDP 1\nA -1 2 3\nB 1 2 -3\n"] {
            assert_eq!(KernelObjects::parse(wrong), None, "{wrong:?}");
        }
        let most = KernelObjects::parse(&format!("TCP {0} {0} {0}", u64::MAX)).unwrap();
        assert_eq!(most.added_by(u64::MAX, &before), u64::MAX);
    }

    #[test]
    fn sockets_of_both_versions_of_ip_count() {
        let table = "sockets: used 13\nTCP: inuse 3 orphan 9 tw 0 alloc 4 mem 1\nUDP: inuse 2 mem 0\nUDPLITE: inuse 7\n\
                     TCP6: inuse 4\nUDP6: inuse 1\nUDPLITE6: inuse 7\nRAW6: inuse 7\n";
        assert_eq!(SocketCount::parse(table), SocketCount { tcp: 7, udp: 3 });
        assert_eq!(SocketCount::parse("TCP: inuse\nTCP: inuse x\nUDP: inuse -1"), SocketCount::default());
    }
}
