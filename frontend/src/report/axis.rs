//! The properties of cells. Each is one entry of [`AXES`]. Tables and files are made from this list.

use bytesize::{ByteSize, Display};
use forwarders::Io;
use netstacks::{StackCongestion, StackKind, Workarounds as Repairs};

use super::format::{UNKNOWN, unique};
use crate::measure::CellSummary;
use crate::scenario::{Cell, Forwarder, Generator, Layer, Mode, RuntimeKind, Subject, Workload, is_one, plural, si};

/// The number of threads of a runtime if none was given.
const AS_PROCESSORS: &str = "as processors";

/// A property of a cell.
pub(super) struct Axis {
    /// Its name for machines.
    pub(super) name: &'static str,
    /// The head of its column.
    pub(super) title: &'static str,
    /// Whether its values are numbers.
    pub(super) is_number: bool,
    /// Whether it is part of the work of a cell. Cells with the same work differ only in the other properties.
    pub(super) is_work: fn(&Cell) -> bool,
    /// Its value in a table; `None` if the cell does not have the property.
    value: fn(&Cell) -> Option<String>,
    /// Its value for machines.
    machine: fn(&Cell) -> Option<String>,
    /// Its value as a phrase, for text without a column head; `None` if it need not be mentioned.
    phrase: fn(&Cell, &str) -> Option<String>,
}

/// All axes, in the order of their columns.
pub(super) static AXES: [Axis; 37] = [
    axis("layer", "layer", |cell| Some(cell.layer().to_string())).said(|cell, value| {
        (!matches!(cell.layer(), Layer::Path | Layer::Program | Layer::Forward)).then(|| format!("layer {value}"))
    }),
    axis("netstack", "stack", |cell| {
        let stack = cell.stack().map(|stack| stack.to_string());
        stack.or_else(|| cell.program().map(|program| program.to_string()))
    })
    .machine(|cell| cell.stack().map(|stack| stack.to_string()))
    .work(|_| false),
    axis("program", "program", |_| None)
        .machine(|cell| cell.program().map(|program| program.to_string()))
        .work(|_| false),
    number("row", "#", |cell| cell.forwarder()?.row().map(|row| row.to_string())).work(|_| false).said(|_, _| None),
    axis("forwarder", "forwarder", |cell| Some(cell.forwarder()?.config().map_or("go", |_| "rust").to_owned()))
        .work(|_| false),
    axis("io", "io", |cell| Some(cell.forwarder()?.io().map_or(UNKNOWN, Io::name).to_owned())).work(|_| false),
    axis("mode", "mode", |cell| cell.mode().map(|mode| mode.to_string())).said(|cell, value| {
        Some(match cell.forwarder().and(cell.mode()) {
            Some(Mode::Writer) => "payload forward".to_owned(),
            Some(Mode::Reader) => "payload in reverse".to_owned(),
            Some(Mode::Both) => "payload both ways".to_owned(),
            Some(Mode::Rr | Mode::Crr | Mode::Idle) | None => value.to_owned(),
        })
    }),
    axis("repairs", "repairs", |cell| cell.stack().map(|_| cell.repairs.to_string()))
        .machine(|cell| (cell.repairs != Repairs::ALL).then(|| cell.repairs.to_string()))
        .work(|_| false)
        .said(|_, value| (value != "all").then(|| format!("repairs {value}"))),
    axis("stack_congestion", "stack's congestion control", |cell| {
        cell.stack().filter(|stack| *stack == StackKind::Smoltcp).map(|_| cell.stack_congestion.name().to_owned())
    })
    .machine(|cell| (cell.stack_congestion != StackCongestion::None).then(|| cell.stack_congestion.name().to_owned()))
    .work(|_| false)
    .said(|_, value| (value != "none").then(|| format!("{value} in the stack"))),
    number("shards", "shards", |cell| cell.stack().map(|_| cell.shards.to_string()))
        .machine(|cell| (!is_one(&cell.shards)).then(|| cell.shards.to_string()))
        .work(|_| false)
        .said(|_, value| (value != "1").then(|| plural(value, "shard"))),
    number("queues", "queues", |cell| {
        let has_several = !is_one(&cell.shards) && cell.subject.has_conditions();
        has_several.then(|| given(cell.queues))
    })
    .work(|_| false)
    .said(|_, value| Some(plural(value, "queue"))),
    axis("runtime", "runtime", |cell| cell.runtime.map(|runtime| runtime.to_string())).work(|_| false),
    axis("offload", "offload", |cell| match cell.forwarder() {
        Some(forwarder) => Some(forwarder.offload().name().to_owned()),
        None => cell.offload.map(|offload| if offload { "on" } else { "off" }.to_owned()),
    })
    .work(|cell| cell.forwarder().is_none())
    .said(|_, value| Some(format!("offload {value}"))),
    axis("hop", "hop", |cell| Some(cell.forwarder()?.handoff().name().to_owned())).work(|_| false),
    number("workers", "workers", |cell| {
        Some(cell.forwarder()?.config().map_or(UNKNOWN.to_owned(), |config| config.workers.to_string()))
    })
    .work(|_| false)
    .said(|_, value| Some(plural(value, "worker"))),
    number("threads", "threads", threads).work(|_| false).said(|_, value| Some(plural(value, "thread"))),
    axis("generator", "generator", |cell| cell.forwarder().map(|_| cell.generator.to_string())).said(|cell, value| {
        Some(format!("load by {}", if cell.generator == Generator::Own { "this program" } else { value }))
    }),
    number("mtu_bytes", "MTU", |cell| cell.mtu.map(|mtu| mtu.to_string()))
        .said(|_, value| Some(format!("MTU {value}"))),
    number("parallel", "connections", |cell| Some(cell.parallel.to_string())).said(|cell, value| {
        match (cell.workload.datagram_bytes(), cell.workload.held()) {
            (Some(_), _) => None,
            (None, Some(held)) => Some(plural(value, held)),
            (None, None) => Some(plural(value, if cell.workload.is_bulk() { "stream" } else { "connection" })),
        }
    }),
    number("client_threads", "client threads", |cell| {
        let has_choice =
            cell.workload.held().is_none() && cell.subject != Subject::Device && cell.forwarder().is_none();
        has_choice.then(|| given(cell.client_threads))
    })
    .said(|_, value| Some(plural(value, "client thread"))),
    axis("pin", "pinned to", |cell| Some(given(cell.pin.as_ref()))).said(|_, value| Some(format!("pinned to {value}"))),
    axis("protocol", "protocol", |cell| cell.workload.protocol().map(|protocol| protocol.to_string()))
        .said(|_, value| (value != "tcp").then(|| value.to_uppercase())),
    number("datagram_bytes", "datagram", |cell| cell.workload.datagram_bytes().map(|len| len.to_string()))
        .said(|_, value| Some(format!("datagrams of {}", plural(value, "byte")))),
    number("bitrate", "bit/s", |cell| {
        (cell.workload.is_bulk() || cell.background.is_some()).then(|| given(cell.bitrate))
    })
    .said(|cell, _| cell.bitrate.map(|rate| format!("{}bit/s at most", si(rate.get())))),
    axis("background", "beside", |cell| cell.workload.requests().map(|_| given(cell.background)))
        .said(|_, value| Some(format!("beside a stream ({value})"))),
    number("request_bytes", "request", |cell| Some(cell.workload.requests()?.request_bytes.to_string()))
        .said(|_, value| Some(format!("request of {}", plural(value, "byte")))),
    number("response_bytes", "response", |cell| Some(cell.workload.requests()?.response_bytes.to_string()))
        .said(|_, value| Some(format!("response of {}", plural(value, "byte")))),
    number("depth", "depth", |cell| Some(cell.workload.requests()?.depth.to_string()))
        .said(|_, value| (value != "1").then(|| format!("depth {value}"))),
    number("rate", "rate /s", |cell| Some(given(cell.workload.requests()?.rate)))
        .said(|_, value| Some(format!("{value} requests a second"))),
    number("think_seconds", "think s", |cell| {
        let think = cell.workload.requests()?.think;
        Some(given(Some(think.as_secs_f64()).filter(|_| !think.is_zero())))
    })
    .said(|_, value| Some(format!("{value} s between a response and the next request"))),
    number("blackholes", "black holes", |cell| {
        Some(given(Some(cell.workload.requests()?.blackholes).filter(|holes| *holes > 0)))
    })
    .said(|_, value| Some(format!("beside {}", plural(value, "black hole")))),
    axis("half_closed", "half-closed", |cell| match cell.workload {
        Workload::Idle => Some("no".to_owned()),
        Workload::HalfClosed => Some("yes".to_owned()),
        _ => None,
    })
    .machine(|cell| (cell.workload == Workload::HalfClosed).then(|| "true".to_owned()))
    .said(|_, _| None),
    axis("ipv6", "IP", |cell| Some(if cell.ipv6 { "IPv6" } else { "IPv4" }.to_owned()))
        .machine(|cell| Some(cell.ipv6.to_string())),
    axis("conditions", "link", |cell| {
        let conditions = Some(cell.conditions.to_string()).filter(|conditions| !conditions.is_empty());
        cell.subject.has_conditions().then(|| given(conditions))
    }),
    axis("window_bytes", "window", |cell| {
        let bytes = ByteSize(cell.window_bytes? as u64);
        Some(exact(bytes, [bytes.display().iec(), bytes.display().si()]))
    })
    .machine(|cell| cell.window_bytes.map(|bytes| bytes.to_string()))
    .said(|_, value| Some(format!("window {value}"))),
    axis("buffer_bytes", "buffer", |cell| {
        let bytes = ByteSize(cell.buffer_bytes as u64);
        Some(exact(bytes, [bytes.display().si(), bytes.display().iec()]))
    })
    .machine(|cell| Some(cell.buffer_bytes.to_string()))
    .said(|_, value| Some(format!("buffer {value}"))),
    number("queue_packets", "queue", |cell| {
        (cell.queue_packets.is_some() || cell.subject.has_conditions()).then(|| given(cell.queue_packets))
    })
    .said(|_, value| Some(format!("queue of {}", plural(value, "packet")))),
];

/// The value of a property that the cell has: [`UNKNOWN`] if it was not set.
fn given(value: Option<impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// A number of bytes in the first form that is exact, else in full: no two have the same text.
fn exact(bytes: ByteSize, forms: [Display; 2]) -> String {
    let exact = forms.map(|form| form.to_string()).into_iter().find(|text| text.parse().ok() == Some(bytes));
    exact.unwrap_or_else(|| plural(bytes.as_u64(), "byte"))
}

/// The threads of a runtime that may have several.
fn threads(cell: &Cell) -> Option<String> {
    let threads = match (cell.forwarder(), cell.runtime) {
        (Some(Forwarder::Rust(config)), _) if config.io != Io::Sync => {
            config.threads.map(|threads| threads.to_string())
        }
        (None, Some(RuntimeKind::MultiThread(workers))) => workers.map(|workers| workers.to_string()),
        _ => return None,
    };
    Some(threads.unwrap_or_else(|| AS_PROCESSORS.to_owned()))
}

const fn axis(name: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Axis {
    let phrase = |_: &Cell, value: &str| Some(value.to_owned());
    Axis { name, title, is_number: false, is_work: |_| true, value, machine: value, phrase }
}

const fn number(name: &'static str, title: &'static str, value: fn(&Cell) -> Option<String>) -> Axis {
    Axis { is_number: true, ..axis(name, title, value) }
}

impl Axis {
    const fn work(self, is_work: fn(&Cell) -> bool) -> Self {
        Self { is_work, ..self }
    }

    const fn machine(self, machine: fn(&Cell) -> Option<String>) -> Self {
        Self { machine, ..self }
    }

    const fn said(self, phrase: fn(&Cell, &str) -> Option<String>) -> Self {
        Self { phrase, ..self }
    }

    /// The head of its column in a table of these cells: the column of stacks may have programs alone.
    pub(super) fn head(&self, cells: &[&Cell]) -> &'static str {
        let has_programs = self.name == "netstack" && cells.iter().all(|cell| cell.program().is_some());
        if has_programs { "program" } else { self.title }
    }

    /// Its value in a table; [`UNKNOWN`] if the cell does not have the property.
    pub(super) fn value(&self, cell: &Cell) -> String {
        (self.value)(cell).unwrap_or_else(|| UNKNOWN.to_owned())
    }

    /// Its value for machines; empty if the cell does not have the property.
    pub(super) fn machine_value(&self, cell: &Cell) -> String {
        (self.machine)(cell).filter(|value| !is_usual(value)).unwrap_or_default()
    }

    fn phrase(&self, cell: &Cell) -> Option<String> {
        let value = (self.value)(cell).filter(|value| !is_usual(value))?;
        (self.phrase)(cell, &value)
    }

    /// Whether all cells that have the property have the same value.
    fn is_alike(&self, cells: &[&Cell]) -> bool {
        let mut values = cells.iter().filter_map(|cell| (self.value)(cell));
        let first = values.next();
        values.all(|value| Some(value) == first)
    }
}

/// Whether a value need not be mentioned.
fn is_usual(value: &str) -> bool {
    matches!(value, UNKNOWN | AS_PROCESSORS)
}

/// The axes in which the cells differ.
pub(super) fn differing(cells: &[&Cell]) -> Vec<&'static Axis> {
    AXES.iter().filter(|axis| !axis.is_alike(cells)).collect()
}

/// The properties that are equal for all cells that have them, as phrases.
#[derive(Default)]
pub(super) struct Shared {
    /// Those that all cells have.
    pub(super) by_all: Vec<String>,
    /// Those that only some have: the kernel alone has no MTU.
    by_some: Vec<String>,
}

impl Shared {
    pub(super) fn of(cells: &[&Cell]) -> Self {
        let mut shared = Self::default();
        for axis in AXES.iter().filter(|axis| axis.is_alike(cells)) {
            let phrases: Vec<_> = cells.iter().map(|cell| axis.phrase(cell)).collect();
            // Cells with the same value may need other words: one stream, or one connection.
            let different = unique(phrases.iter().flatten().cloned());
            let is_by_all = different.len() == 1 && phrases.iter().all(Option::is_some);
            if is_by_all { &mut shared.by_all } else { &mut shared.by_some }.extend(different);
        }
        shared
    }

    /// Adds words that hold for all runs, or only for some.
    pub(super) fn extend(&mut self, is_by_all: bool, words: impl IntoIterator<Item = String>) {
        if is_by_all { &mut self.by_all } else { &mut self.by_some }.extend(words);
    }

    /// A sentence, or two.
    pub(super) fn sentences(&self) -> String {
        let parts = [("In every run", &self.by_all), ("In every run that has it", &self.by_some)];
        let parts = parts.into_iter().filter(|(_, words)| !words.is_empty());
        parts.map(|(of, words)| format!("{of}: {}.", words.join(", "))).collect::<Vec<_>>().join(" ")
    }
}

/// The properties of a cell on some axes, as one phrase.
pub(super) fn phrase<'a>(cell: &Cell, axes: impl IntoIterator<Item = &'a Axis>) -> String {
    axes.into_iter().filter_map(|axis| axis.phrase(cell)).collect::<Vec<_>>().join(", ")
}

/// The cells of some rows.
pub(super) fn cells<'a>(rows: impl IntoIterator<Item = &'a CellSummary>) -> Vec<&'a Cell> {
    rows.into_iter().map(|row| &row.cell).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::time::Duration;

    use crate::measure::fixture::cell;
    use crate::scenario::{Mode, Requests, Subject};

    use super::*;

    #[test]
    fn no_two_sizes_have_one_text() {
        let texts = |bytes| {
            let cell = Cell { window_bytes: Some(bytes), buffer_bytes: bytes, ..cell(StackKind::Lwip, Mode::Reader) };
            ["window_bytes", "buffer_bytes"]
                .map(|name| AXES.iter().find(|axis| axis.name == name).unwrap().value(&cell))
        };
        assert_eq!(texts(1_000_000), ["1.0 MB", "1.0 MB"]);
        assert_eq!(texts(1 << 20), ["1.0 MiB", "1.0 MiB"]);
        assert_eq!(texts(1_000_001), ["1000001 bytes", "1000001 bytes"]);
    }

    #[test]
    fn a_property_that_is_set_in_some_cells_tells_them_apart() {
        let usual = Cell { workload: Workload::Rr(Requests::default()), ..cell(StackKind::Lwip, Mode::Rr) };
        let with = |requests| Cell { workload: Workload::Rr(requests), ..usual.clone() };
        let default = Requests::default();
        for (name, set) in [
            ("rate", with(Requests { rate: Some(1000.try_into().unwrap()), ..default })),
            ("think_seconds", with(Requests { think: Duration::from_secs(1), ..default })),
            ("blackholes", with(Requests { blackholes: 5, ..default })),
            ("queue_packets", Cell { queue_packets: Some(1000), ..usual.clone() }),
            ("pin", Cell { pin: "0".parse().ok(), ..usual.clone() }),
            ("client_threads", Cell { client_threads: Some(2), ..usual.clone() }),
        ] {
            let differing: Vec<_> = differing(&[&usual, &set]).into_iter().map(|axis| axis.name).collect();
            assert_eq!(differing, [name]);
        }
    }

    #[test]
    fn in_every_run_is_only_what_holds_for_all() {
        let stack = cell(StackKind::Lwip, Mode::Reader);
        let kernel = Cell { subject: Subject::Loopback, offload: None, mtu: None, window_bytes: None, ..stack.clone() };
        let requests = Cell { workload: Workload::Rr(Requests::default()), ..stack.clone() };
        let words = Shared::of(&[&stack, &kernel]);
        assert!(words.by_all.contains(&"1 stream".to_owned()), "{}", words.sentences());
        assert_eq!(words.by_some[..2], ["lwip", "offload off"], "{}", words.sentences());
        assert!(Shared::of(&[&stack]).by_some.is_empty());
        let both = Shared::of(&[&stack, &requests]);
        assert!(["1 stream", "1 connection"].iter().all(|words| both.by_some.contains(&(*words).to_owned())));
    }
}
