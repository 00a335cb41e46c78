//! The server side of requests: a task for each connection, and one for datagrams.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;

use super::Exchange;
use crate::load::error::LoadError;

/// Requests over UDP that the server answers before it yields.
const BATCH: usize = 64;

/// Answers the requests of one connection until the client closes it, or answers one and closes. A connection that breaks is
/// no failure of the server: the client counts it.
pub(crate) async fn serve(mut connection: impl netstacks::Stream, exchange: &Exchange) -> Result<(), LoadError> {
    match answer(&mut connection, exchange).await {
        Err(LoadError::Io { .. }) => Ok(()),
        result => result,
    }
}

async fn answer(connection: &mut impl netstacks::Stream, exchange: &Exchange) -> Result<(), LoadError> {
    let Exchange { request, response, .. } = exchange;
    let mut buffer = exchange.room(request);
    let mut got = 0;
    loop {
        let len = connection.read(&mut buffer).await.map_err(LoadError::io("read a request"))?;
        if len == 0 {
            if exchange.is_half_closed {
                // Boxed, so that it adds nothing to the memory of other connections.
                Box::pin(exchange.rest()).await;
                let last = response.slice(0, response.period);
                connection.write_all(last).await.map_err(LoadError::io("write a response"))?;
            }
            break;
        }
        if exchange.verify.checks(!exchange.is_timed()) {
            request.verify(got as u64, &buffer[..len])?;
        }
        got += len;
        let mut due = got / request.period * response.period;
        got %= request.period;
        let mut sent = 0;
        while due > 0 {
            let bytes = response.slice(sent as u64, due);
            let len = connection.write(bytes).await.map_err(LoadError::io("write a response"))?;
            if len == 0 {
                return Err(LoadError::io("write a response")(io::ErrorKind::WriteZero.into()));
            }
            (sent, due) = (sent + len, due - len);
        }
        if exchange.connects && sent > 0 {
            break;
        }
    }
    connection.shutdown().await.map_err(LoadError::io("close a connection at the stack"))
}

/// Answers requests over UDP. Returns only with an error.
pub(crate) async fn serve_datagrams(
    datagrams: impl netstacks::Datagrams,
    exchange: &Exchange,
) -> Result<(), LoadError> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut response = exchange.response.slice(0, exchange.response.period).to_vec();
    let mark = exchange.mark_len();
    loop {
        for _ in 0..BATCH {
            let datagram = datagrams.recv(&mut buffer).await.map_err(LoadError::io("receive a request"))?;
            let request = &buffer[..datagram.len];
            if request.len() != exchange.request.period {
                continue;
            }
            if exchange.verify.checks(!exchange.is_timed()) {
                exchange.request.verify(mark as u64, &request[mark..])?;
            }
            response[..mark].copy_from_slice(&request[..mark]);
            match datagrams.try_send(datagram.local, datagram.peer, &response) {
                // Without room, the response is lost.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(LoadError::io("send a response")(error));
                }
                _ => {}
            }
        }
        yield_now().await;
    }
}
