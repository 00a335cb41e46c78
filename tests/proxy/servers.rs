//! The servers.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use socket2::SockRef;
use tempfile::TempDir;

use super::lab::{Lab, SERVER, SERVER_V6};
use super::process::{PATIENCE, Program};

/// Size of the large file.
pub(crate) const LARGE_BYTES: u64 = 50_000_000;
/// Size of the small file.
const SMALL_BYTES: usize = 100_000;

/// nginx. It serves `/small`, the same file at `/slow/small` in a second or more, and `/large`.
pub(crate) struct Nginx {
    folder: TempDir,
    _program: Program,
}

impl Nginx {
    /// Starts it in the server's network, on port 80 over both IP versions.
    pub(crate) fn start(lab: &Lab) -> Self {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let files = folder.path().join("files");
        fs::create_dir_all(files.join("slow")).unwrap();
        let mut small = vec![0; SMALL_BYTES];
        File::open("/dev/urandom").unwrap().read_exact(&mut small).unwrap();
        fs::write(files.join("small"), &small).unwrap();
        fs::write(files.join("slow/small"), &small).unwrap();
        fs::write(folder.path().join("nginx.conf"), Self::config(&folder)).unwrap();
        let path = folder.path().to_str().unwrap();
        let program = lab.server.start(&["nginx", "-p", path, "-c", "nginx.conf", "-e", "stderr"]);
        lab.server.wait_for_port("tcp", 80);
        lab.server.wait_for_port("tcp6", 80);
        Self { folder, _program: program }
    }

    fn config(folder: &TempDir) -> String {
        let folder = folder.path().display();
        format!(
            "daemon off; master_process off; worker_processes 1; error_log stderr; pid {folder}/pid;
             events {{ worker_connections 1000; }}
             http {{
                 access_log off; sendfile on; keepalive_requests 10000;
                 client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
                 fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
                 server {{
                     listen {SERVER}:80 backlog=4096; listen [{SERVER_V6}]:80 backlog=4096;
                     root {folder}/files;
                     location /slow/ {{ limit_rate 50k; }}
                 }}
             }}\n"
        )
    }

    /// Also serves the large file, and returns its SHA-256.
    pub(crate) fn serve_large(&self) -> &'static str {
        static LARGE: OnceLock<(File, String)> = OnceLock::new();
        let (file, sum) = LARGE.get_or_init(large);
        // The file has no name, so it is deleted when this process ends.
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        symlink(path, self.folder.path().join("files/large")).unwrap();
        sum
    }

    /// Returns the small file.
    pub(crate) fn small(&self) -> Vec<u8> {
        fs::read(self.folder.path().join("files/small")).unwrap()
    }

    /// Makes a folder for the files that a client fetches.
    pub(crate) fn fetched(&self) -> PathBuf {
        let path = self.folder.path().join("fetched");
        fs::create_dir(&path).unwrap();
        path
    }
}

/// A file of random bytes and their SHA-256.
fn large() -> (File, String) {
    let mut file = tempfile::tempfile().unwrap();
    let mut random = File::open("/dev/urandom").unwrap().take(LARGE_BYTES);
    std::io::copy(&mut random, &mut file).unwrap();
    file.rewind().unwrap();
    let sum =
        Command::new("openssl").args(["sha256", "-r"]).stdin(Stdio::from(file.try_clone().unwrap())).output().unwrap();
    (file, String::from_utf8(sum.stdout).unwrap())
}

/// How many strings of [`TEXT_LEN`] characters `large.test` has: more than a packet holds, and fewer than a client
/// accepts.
pub(crate) const TEXTS: usize = 12;
pub(crate) const TEXT_LEN: usize = 250;

/// A name server that knows `host.test` and `large.test`.
pub(crate) fn dnsmasq(lab: &Lab) -> Program {
    let addresses = format!("--listen-address={SERVER},{SERVER_V6}");
    let mut words: Vec<String> = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root"]
        .into_iter()
        .chain(["--no-resolv", "--no-hosts", "--pid-file=", "--bind-interfaces", "--edns-packet-max=4096"])
        .chain([&*addresses, "--host-record=host.test,192.0.2.1,2001:db8::1"])
        .map(ToOwned::to_owned)
        .collect();
    words.extend((0..TEXTS).map(|number| format!("--txt-record=large.test,{number:0>TEXT_LEN$}")));
    let program = lab.server.start(&words.iter().map(String::as_str).collect::<Vec<_>>());
    for table in ["udp", "udp6", "tcp", "tcp6"] {
        lab.server.wait_for_port(table, 53);
    }
    program
}

/// iperf3 as a server.
pub(crate) fn iperf3(lab: &Lab) -> Program {
    let program = lab.server.start(&["iperf3", "--server"]);
    lab.server.wait_for_port("tcp6", 5201);
    program
}

/// Starts a server that accepts one connection and calls a function with it. [`answer_of`] waits for the result.
pub(crate) fn serve_once<T: Send + 'static>(
    lab: &Lab,
    port: u16,
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> Receiver<T> {
    let (answer, result) = mpsc::channel();
    lab.server.run(move || {
        let listener = TcpListener::bind(("::", port)).unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // The port must be free before the result is sent. Closing the socket is not enough: a process that another
            // test starts at the same time holds a copy until its exec.
            SockRef::from(&listener).shutdown(Shutdown::Both).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            // Some tests do not wait for the result.
            let _unasked = answer.send(serve(stream));
        });
    });
    result
}

/// Waits for the result of a server.
pub(crate) fn answer_of<T>(result: &Receiver<T>) -> T {
    result.recv_timeout(PATIENCE).unwrap()
}

/// Starts a server that sends every datagram back. It ends when none has come for some time.
pub(crate) fn echo_datagrams(lab: &Lab, port: u16) {
    note_datagrams(lab, port, mpsc::channel().0);
}

/// Starts a server that sends the bytes of each connection back in sixes, and closes it after "goodby" or a FIN. After
/// "keepit" it keeps its half open.
pub(crate) fn echo_streams(lab: &Lab, port: u16) {
    lab.server.run(move || {
        let listener = TcpListener::bind(("::", port)).unwrap();
        thread::spawn(move || {
            let mut kept = Vec::new();
            let (keep, keeps) = mpsc::channel();
            while let Ok((stream, _)) = listener.accept() {
                kept.extend(keeps.try_iter());
                let keep = keep.clone();
                thread::spawn(move || echo(stream, &keep));
            }
        });
    });
}

fn echo(mut stream: TcpStream, keep: &mpsc::Sender<TcpStream>) {
    let mut six = [0; 6];
    while let Ok(()) = stream.read_exact(&mut six) {
        if six == *b"goodby" || stream.write_all(&six).is_err() {
            return;
        }
    }
    if six == *b"keepit" {
        let _ended = keep.send(stream);
    }
}

/// Starts a server that sends every datagram back, and reports its length and the port that it came from. It ends when
/// none has come for some time.
pub(crate) fn note_datagrams(lab: &Lab, port: u16, seen: mpsc::Sender<(usize, u16)>) {
    lab.server.run(move || {
        let socket = UdpSocket::bind(("::", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 65_535];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _unasked = seen.send((len, from.port()));
                let _lost = socket.send_to(&buffer[..len], from);
            }
        });
    });
}

/// Ends a connection with a RST.
pub(crate) fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(stream);
}

/// Writes, and closes this half of the connection.
pub(crate) fn write_last(mut stream: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)
}
