//! A file of samples: a head line, then a line for each sample as it came.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::line::{self, Line};
use super::{Build, Environment, Head, MannerScore, Program, Sample, Score, Status};
use crate::cell::Cell;
use crate::program::ProgramName;

/// The longest file that is read, in bytes: hundreds of thousands of samples. All are kept in memory.
const MAX_LEN: u64 = 1 << 30;

/// The longest line, in bytes: a run with the most intervals takes 5 MB. An endless input fails here.
const MAX_LINE_LEN: u64 = 16 << 20;

/// Why a file of samples cannot be used. Each variant begins with the file's path.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("read {}: {}", .0.display(), .1)]
    Read(PathBuf, #[source] io::Error),
    #[error("open {} for the samples: {}; choose another file", .0.display(), .1)]
    Open(PathBuf, #[source] io::Error),
    #[error(
        "write {}: {}; what was measured before is intact, and the same command goes on with it",
        .0.display(), .1
    )]
    Write(PathBuf, #[source] io::Error),
    #[error("{}, line {}: {}", .0.display(), .1, .2)]
    Line(PathBuf, usize, String),
    #[error("read {}: longer than {} MiB; give files of one matrix each", .0.display(), MAX_LEN >> 20)]
    TooLong(PathBuf),
    #[error("{}: contains no samples", .0.display())]
    Empty(PathBuf),
    #[error("{}: {}", .0.display(), .1)]
    Foreign(PathBuf, String),
}

impl FileError {
    /// Whether the choice of the file is the cause: true for all errors but a failed write.
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Write { .. })
    }
}

/// The samples of a file.
#[derive(Clone, Debug)]
pub struct SampleFile {
    pub path: PathBuf,
    /// Its head lines: one for each environment, none if every sample describes its own.
    pub heads: Vec<Head>,
    pub samples: Vec<Sample>,
    pub scores: Vec<Score>,
    pub manners: Vec<MannerScore>,
}

impl SampleFile {
    fn is_empty(&self) -> bool {
        self.samples.is_empty() && self.scores.is_empty() && self.manners.is_empty()
    }

    /// Reads a file of at least one sample or score.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Read(path.to_owned(), source);
        let bytes = read(path, File::open(path).map_err(failed)?, MAX_LEN)?;
        let no_text = |_| failed(io::Error::new(io::ErrorKind::InvalidData, "it contains bytes that are no text"));
        let file = Self::parse(path, str::from_utf8(&bytes).map_err(no_text)?)?;
        if file.is_empty() { Err(FileError::Empty(path.to_owned())) } else { Ok(file) }
    }

    /// Its samples of one build, which `option` must name if `matrix --against` made the file, with two.
    pub fn into_samples(mut self, build: Option<Build>, option: &str) -> Result<Vec<Sample>, FileError> {
        let first = |build: Build| self.samples.iter().find(|sample| build.made(sample));
        let build = match (build, first(Build::This), first(Build::Against)) {
            (Some(build), ..) => build,
            (None, Some(this), Some(against)) => {
                let [this, against] = [this, against].map(|sample| sample.environment.program.name());
                let reason = format!(
                    "has runs of two builds: this ({this}), and against ({against}); choose one with {option} this or \
                     {option} against"
                );
                return Err(FileError::Foreign(self.path, reason));
            }
            (None, None, Some(_)) => Build::Against,
            (None, ..) => Build::This,
        };
        self.samples.retain(|sample| build.made(sample));
        if self.samples.is_empty() { Err(FileError::Empty(self.path)) } else { Ok(self.samples) }
    }

    /// Its samples of two programs, the old and the new one, as samples of the new one's cells.
    pub fn into_programs(
        self,
        programs: [ProgramName; 2],
        build: Option<Build>,
        option: &str,
    ) -> Result<[Vec<Sample>; 2], FileError> {
        let path = self.path.clone();
        let samples = self.into_samples(build, option)?;
        let of = |name: ProgramName| -> Vec<Sample> {
            samples.iter().filter(|sample| sample.cell.program() == Some(name)).cloned().collect()
        };
        let [mut old, new] = programs.map(of);
        for Sample { cell, .. } in &mut old {
            // Our proxy has settings that another program lacks.
            let same = new.iter().map(|sample| &sample.cell).find(|other| cell.same_work(other)).cloned();
            *cell = same.unwrap_or_else(|| Cell { program: Some(programs[1].into()), ..cell.clone() });
        }
        let sides = [old, new];
        match programs.into_iter().zip(&sides).find(|(_, samples)| samples.is_empty()) {
            None => Ok(sides),
            Some((missing, _)) => {
                let names: BTreeSet<_> = samples.iter().filter_map(|sample| sample.cell.program()).collect();
                let names: Vec<_> = names.iter().map(ProgramName::as_str).collect();
                let reason = format!("has no runs of a program {missing}; its programs: {}", names.join(", "));
                Err(FileError::Foreign(path, reason))
            }
        }
    }

    /// Reads the text of a file, which may be empty. An incomplete last line is an error like any other.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let mut reader = Reader {
            file: Self {
                path: path.to_owned(),
                heads: Vec::new(),
                samples: Vec::new(),
                scores: Vec::new(),
                manners: Vec::new(),
            },
            environments: HashMap::new(),
            known: HashMap::new(),
        };
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            reader.take(line).map_err(|reason| {
                let torn = index + 1 == text.lines().count() && !text.ends_with('\n');
                let reason = if torn {
                    format!("ends in the middle; the command that made it goes on with the file ({reason})")
                } else {
                    reason
                };
                FileError::Line(path.to_owned(), index + 1, reason)
            })?;
        }
        // The scores of several stacks came in between each other. Stable: the cases of a stack keep their order.
        reader.file.scores.sort_by_key(|score| (score.netstack, score.workarounds));
        Ok(reader.file)
    }
}

struct Reader {
    file: SampleFile,
    /// The environments that have been described, by the ids that they have in the file.
    environments: HashMap<String, Arc<Environment>>,
    /// The index of each sample of a matrix, by the environment's id, the round, the program and the cell.
    known: HashMap<(String, u32, bool, Cell), usize>,
}

impl Reader {
    fn take(&mut self, text: &str) -> Result<(), String> {
        match line::parse(text).map_err(|reason| reason + &self.versions(text))? {
            Line::Head(head) => {
                let environment = || Arc::new(head.environment.clone());
                self.environments.entry(head.id.clone()).or_insert_with(environment);
                self.file.heads.push(*head);
            }
            Line::Score(score) => self.file.scores.push(*score),
            Line::Manner(score) => self.file.manners.push(*score),
            Line::Sample { cell, measured, id, environment } => {
                if let Some(environment) = environment {
                    self.environments.insert(id.clone(), environment);
                }
                let environment = self.environments.get(&id).map(Arc::clone);
                let environment =
                    environment.ok_or_else(|| format!("no line before it describes the environment {id}"))?;
                self.keep(Sample { cell: *cell, measured: *measured, environment }, id)?;
            }
        }
        Ok(())
    }

    /// The versions of the program that wrote a wrong line and of this one, if they differ.
    fn versions(&self, text: &str) -> String {
        let described = || {
            let line: Value = serde_json::from_str(text).ok()?;
            Program::deserialize(line.get("environment").unwrap_or(&line)).ok()
        };
        let head = self.file.heads.last().map(|head| head.environment.program.clone());
        let (this, written) = (Program::this(), head.or_else(described).unwrap_or_default());
        let [ours, theirs] = [&this, &written].map(|program| (&program.version, &program.commit));
        if written.version.is_none() || ours == theirs {
            return String::new();
        }
        let [ours, theirs] = [&this, &written].map(|program| {
            let commit = program.commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
            format!("version {}{commit}", program.version.as_deref().unwrap_or("unknown"))
        });
        format!(" (the line is of {theirs}; this program is {ours})")
    }

    /// Adds a sample. An unavailable run may have been tried again in the same round: the new sample replaces it.
    fn keep(&mut self, sample: Sample, id: String) -> Result<(), String> {
        let Some(round) = sample.measured.round else {
            self.file.samples.push(sample);
            return Ok(());
        };
        let key = (id, round, sample.measured.against, sample.cell.clone());
        match self.known.get(&key).map(|index| &mut self.file.samples[*index]) {
            Some(earlier) if earlier.measured.status == Status::Unavailable => *earlier = sample,
            Some(_) => return Err(format!("a second sample of round {round} of {}", sample.cell)),
            None => {
                self.known.insert(key, self.file.samples.len());
                self.file.samples.push(sample);
            }
        }
        Ok(())
    }
}

/// Reads an input of at most `max_len` bytes. An endless one fails at the limit of its first line.
fn read(path: &Path, from: impl Read, max_len: u64) -> Result<Vec<u8>, FileError> {
    let path = || path.to_owned();
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    for line in 1.. {
        let source = from.by_ref().take(MAX_LINE_LEN).read_until(b'\n', &mut bytes);
        let len = source.map_err(|source| FileError::Read(path(), source))? as u64;
        if len == MAX_LINE_LEN && !bytes.ends_with(b"\n") {
            let reason = format!("longer than {} MiB: this is no file of samples", MAX_LINE_LEN >> 20);
            return Err(FileError::Line(path(), line, reason));
        }
        if bytes.len() as u64 > max_len {
            return Err(FileError::TooLong(path()));
        }
        if len == 0 {
            break;
        }
    }
    Ok(bytes)
}

/// A file that samples or scores are appended to. Each is on the disk before the next is measured.
#[derive(Debug)]
pub struct Appender {
    path: PathBuf,
    file: File,
    /// The length of the file, in bytes: the position of the next line.
    len: u64,
}

impl Appender {
    /// Opens a file for the results of `heads`, one for each build, for this process alone, and returns what it already has.
    /// An incomplete last line is cut off. A file that is refused stays unchanged.
    pub fn open(path: &Path, heads: &[Head]) -> Result<(Self, SampleFile), FileError> {
        let foreign = |reason: String| FileError::Foreign(path.to_owned(), reason);
        let file = lock(path)?;
        // Through the same handle: Windows locks a file against all other handles.
        let bytes = read(path, &file, MAX_LEN)?;
        let (whole, torn) = bytes.split_at(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        if whole.is_empty() && !begins_head(torn) {
            return Err(foreign("is no file of this program; choose another file".to_owned()));
        }
        let text = str::from_utf8(whole)
            .map_err(|_| foreign("contains bytes that are no text; choose another file".to_owned()))?;
        let mut earlier = SampleFile::parse(path, text)?;
        // A file with only heads has nothing to continue: it gets the new heads.
        let is_new = earlier.is_empty();
        if !is_new {
            check(&earlier.heads, heads).map_err(foreign)?;
        }
        let kept = if is_new { 0 } else { whole.len() };
        let mut appender = Self { path: path.to_owned(), file, len: kept as u64 };
        if kept < bytes.len() {
            appender.cut().map_err(|source| FileError::Write(path.to_owned(), source))?;
        }
        if is_new {
            heads.iter().try_for_each(|head| appender.append(&head.line()))?;
            earlier.heads = heads.to_vec();
        }
        Ok((appender, earlier))
    }

    /// Appends a line. If that fails, the file is unchanged.
    pub fn append(&mut self, line: &str) -> Result<(), FileError> {
        let text = format!("{line}\n");
        self.write(text.as_bytes()).map_err(|source| {
            // If this fails too, the next `open` cuts the incomplete line off.
            let _torn = self.cut();
            FileError::Write(self.path.clone(), source)
        })?;
        self.len += text.len() as u64;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.len))?;
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)
    }
}

/// Opens a file for this process alone. Creates it if it does not exist.
fn lock(path: &Path) -> Result<File, FileError> {
    let failed = |source| FileError::Open(path.to_owned(), source);
    let foreign = |reason: &str| FileError::Foreign(path.to_owned(), reason.to_owned());
    // Not in append mode: in that mode Windows does not let the program truncate the file.
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    // A device may be endless.
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(foreign("is no regular file; choose another"));
    }
    // If a process ended while it was starting a child, the child holds the lock until it calls exec.
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            Err(fs::TryLockError::WouldBlock) => {
                return Err(foreign("another process is writing to it; wait, or choose another file"));
            }
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

/// Whether a file with only these bytes is empty, or has only the beginning of a head line.
fn begins_head(torn: &[u8]) -> bool {
    let begin = Head::BEGIN.as_bytes();
    torn.starts_with(begin) || begin.starts_with(torn)
}

fn check(old: &[Head], new: &[Head]) -> Result<(), String> {
    let (Some((old, old_builds)), Some((new, new_builds))) = (old.split_first(), new.split_first()) else {
        return Err("was not written by one command; choose another file".to_owned());
    };
    match (old.plan.is_empty(), new.plan.is_empty()) {
        (true, false) => return Err("has results of conform, and no samples; choose another file".to_owned()),
        (false, true) => return Err("has samples, and no results of conform; choose another file".to_owned()),
        // They have no plan. The arguments say which cases of which stacks they are of.
        (true, true) if old.arguments != new.arguments => {
            return Err(format!("was made by another command, {:?}; choose another file", old.arguments.join(" ")));
        }
        _ => {}
    }
    same_environment("was made in another environment", old, new)?;
    match (old_builds, new_builds) {
        ([], []) => {}
        ([old], [new]) if old.plan.is_empty() => same_environment("is against another build", old, new)?,
        ([], [new]) => {
            let name = new.environment.program.name();
            return Err(format!("has no runs of the other build, {name}; leave out --against, or choose another file"));
        }
        ([old], []) if old.plan.is_empty() => {
            let name = old.environment.program.name();
            return Err(format!("has runs of another build, {name}, too; add --against, or choose another file"));
        }
        _ => return Err("was not written by one command; choose another file".to_owned()),
    }
    if old.plan == new.plan {
        return Ok(());
    }
    let [old, new] = [old, new].map(|head| head.plan.iter().map(options).collect::<Vec<_>>());
    let names: BTreeSet<_> = old.iter().chain(&new).flat_map(BTreeMap::keys).collect();
    let values = |cells: &[BTreeMap<String, String>], name| -> BTreeSet<String> {
        cells.iter().map(|cell| cell.get(name).cloned().unwrap_or_else(|| "the default".to_owned())).collect()
    };
    let differing = names.into_iter().map(|name| (name, values(&old, name), values(&new, name)));
    let differing = differing.filter(|(_, old, new)| old != new);
    let or = |values: BTreeSet<String>| values.into_iter().collect::<Vec<_>>().join(" or ");
    let differing: Vec<_> =
        differing.map(|(name, old, new)| format!("{name} was {}, and is {}", or(old), or(new))).collect();
    Err(match differing.as_slice() {
        [] => "has other combinations of the same options, or another order; choose another file".to_owned(),
        options => format!("is of other cells: {}; give the same options, or choose another file", options.join("; ")),
    })
}

#[allow(clippy::ptr_arg, reason = "it maps the words of a plan")]
fn options(words: &Vec<String>) -> BTreeMap<String, String> {
    let option = |word: &String| {
        let (name, value) = word.split_once('=').unwrap_or((word, "on"));
        (name.to_owned(), value.to_owned())
    };
    words.iter().map(option).collect()
}

fn same_environment(title: &str, old: &Head, new: &Head) -> Result<(), String> {
    let differences = old.environment.differences(&new.environment);
    if !differences.is_empty() {
        let list: Vec<_> =
            differences.iter().map(|(name, old, new)| format!("{name} was {old} and is {new}")).collect();
        return Err(format!("{title}: {}; choose another file", list.join(", ")));
    }
    if old.id != new.id {
        // The file has fields that this program does not know.
        return Err("was made by another version of this program; choose another file".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
